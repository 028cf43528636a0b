//! What is said of tokens, in the two shapes that the API has for it.

use millstream_actors::text::Tokenizer;
use serde_json::{Map, Value, json};

use super::choice::Said;

/// What stands for the logarithm of zero, which JSON cannot write; the API's own.
const IMPOSSIBLE: f32 = -9999.0;

/// `logprobs` of a chat's choice.
pub(crate) fn chat(said: &[Said], tokenizer: &Tokenizer) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.spelling(id);
        json!({"token": String::from_utf8_lossy(bytes), "logprob": finite(logprob), "bytes": bytes})
    };
    let token = |said: &Said| {
        let mut token = entry(said.id, said.logprobs.chosen);
        let best = said.logprobs.best.iter().map(|&(id, logprob)| entry(id, logprob));
        token["top_logprobs"] = best.collect();
        token
    };
    json!({"content": said.iter().map(token).collect::<Vec<_>>(), "refusal": null})
}

/// `logprobs` of a completion's choice. The likeliest tokens always have the chosen one among them.
pub(crate) fn completion(said: &[Said], tokenizer: &Tokenizer) -> Value {
    let best = |said: &Said| {
        let own = (said.id, said.logprobs.chosen);
        let mut best = Map::new();
        for (id, logprob) in said.logprobs.best.iter().copied().chain([own]) {
            best.entry(spelled(tokenizer.spelling(id))).or_insert_with(|| finite(logprob).into());
        }
        Value::Object(best)
    };
    json!({
        "tokens": said.iter().map(|said| spelled(tokenizer.spelling(said.id))).collect::<Vec<_>>(),
        "token_logprobs": said.iter().map(|said| finite(said.logprobs.chosen)).collect::<Vec<_>>(),
        "top_logprobs": said.iter().map(best).collect::<Vec<_>>(),
        "text_offset": said.iter().map(|said| said.offset).collect::<Vec<_>>(),
    })
}

/// A token as a name: tokens that are part of a character would all read the same.
fn spelled(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}
