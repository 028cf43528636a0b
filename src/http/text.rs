//! `/tokenize` and `/detokenize`, in the shape that vLLM gave them, and what else the shell needs the tokenizer for. The
//! rules are those of requests: what a user wrote never becomes a control token, in messages nor in a prompt; who wants
//! control tokens in a prompt sends token ids.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use millstream_actors::assemble::Resources;
use millstream_actors::prompt::{self, Encoding, Eyes, Reader};
use millstream_actors::request::{Outcome, Prompt};
use millstream_actors::text::Tokenizer;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::ask::{self, Ask};
use super::fault::Fault;
use super::fields::{self, Fields};
use super::{Facts, Http, Images, images};

/// Texts that are encoded or decoded at once; more wait with their bodies held, which are bounded.
const AT_ONCE: usize = 2;

/// The tokenizer as the shell uses it.
pub(crate) struct Text {
    resources: Resources,
    /// Tokens of prompt and answer together.
    reach: u32,
    places: Semaphore,
}

impl Text {
    pub(crate) fn new(resources: Resources, reach: u32) -> Self {
        Self { resources, reach, places: Semaphore::new(AT_ONCE) }
    }

    pub(crate) fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.resources.tokenizer)
    }

    /// What stands before each answer of a response: its prompt, where the client wants to see it.
    pub(crate) fn echoes(&self, ask: &Ask) -> Result<Vec<String>, Fault> {
        let tokenizer = &self.resources.tokenizer;
        let mut echoes = Vec::new();
        for submit in ask.submits() {
            let echo = match &*submit.prompt {
                _ if !ask.echo => String::new(),
                Prompt::Text(text) => text.clone(),
                Prompt::Tokens(ids) => tokenizer.decode(ids),
                Prompt::Hollow { .. } => String::new(),
                Prompt::Chat(_) => return Err(Fault::field("echo", "a chat is not repeated")),
            };
            echoes.extend((0..ask.choices).map(|_| echo.clone()));
        }
        Ok(echoes)
    }

    /// Runs what takes long for long texts where it holds up nobody else.
    async fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let _place = self.places.acquire().await.map_err(|_| Fault::server("the tokenizer is closed"))?;
        let text = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&text)).await;
        done.map_err(|_| Fault::server("the server has made a mistake"))
    }

    fn encode(&self, prompt: &Prompt, how: Encoding) -> Result<Vec<u32>, Fault> {
        let Resources { tokenizer, template, model, .. } = &self.resources;
        let (template, eyes) = (template.as_deref(), Eyes::of(model.as_ref()));
        let reader = Reader { tokenizer, template, eyes, tokens_max: None };
        let encoded = reader.encode(prompt, how);
        encoded.map(|encoded| encoded.ids).map_err(|refusal| Fault::unfinished(&Outcome::Refused(refusal)))
    }
}

/// `POST /tokenize`.
pub(super) async fn tokenize(State(http): State<Http>, request: Request) -> Result<Json<Value>, Fault> {
    let (parts, body) = request.into_parts();
    let held = http.bodies.read(&parts.headers, body).await?;
    let facts = Arc::clone(&http.facts);
    let (prompt, how, strings) = http.read(held, move |body, images| read(&facts, body, images)).await?;
    let _kept = http.bodies.keep(images::bytes(&prompt))?;
    let answer = http.text.apart(move |text| {
        let ids = text.encode(&prompt, how)?;
        let spelled = |id: &u32| String::from_utf8_lossy(text.resources.tokenizer.spelling(*id)).into_owned();
        let strings = strings.then(|| ids.iter().map(spelled).collect::<Vec<_>>());
        Ok(json!({
            "count": ids.len(), "max_model_len": text.reach, "tokens": ids, "token_strs": strings,
        }))
    });
    answer.await?.map(Json)
}

/// The prompt, how it is encoded, and whether the tokens are spelled out.
fn read(facts: &Facts, body: &Value, images: Option<&Images>) -> Result<(Prompt, Encoding, bool), Fault> {
    let fields = Fields::of(body)?;
    let plain = ["prompt", "add_special_tokens"];
    let chat = ["messages", "add_special_tokens", "add_generation_prompt"];
    let own: &[&str] = if fields.get("messages").is_some() { &chat } else { &plain };
    fields.only(&[&["model", "return_token_strs", "with_strings"], own])?;
    check_model(facts, &fields)?;
    let flag = |name: &str, usual| fields.get(name).map_or(Ok(usual), |field| field.flag());
    let strings = flag("return_token_strs", false)? || flag("with_strings", false)?;
    let Some(messages) = fields.get("messages") else {
        let text = fields.need("prompt")?.text()?.to_owned();
        let how = Encoding { framed: flag("add_special_tokens", true)?, ..Encoding::SERVED };
        return Ok((Prompt::Text(text), how, strings));
    };
    if flag("add_special_tokens", false)? {
        return Err(Fault::field("add_special_tokens", "a chat template writes its control tokens itself"));
    }
    let how = Encoding { opened: flag("add_generation_prompt", true)?, ..Encoding::SERVED };
    Ok((Prompt::Chat(ask::messages(&messages, images)?), how, strings))
}

/// `POST /detokenize`.
pub(super) async fn detokenize(State(http): State<Http>, request: Request) -> Result<Json<Value>, Fault> {
    let (parts, body) = request.into_parts();
    let held = http.bodies.read(&parts.headers, body).await?;
    let body = fields::parse(&held.bytes)?;
    let fields = Fields::of(&body)?;
    fields.only(&[&["model", "tokens"]])?;
    check_model(&http.facts, &fields)?;
    let ids = fields.need("tokens")?.counts(usize::MAX)?;
    prompt::known(&http.text.resources.tokenizer, "tokens", ids.iter().copied())
        .map_err(|refusal| Fault::unfinished(&Outcome::Refused(refusal)))?;
    let text = http.text.apart(move |text| text.resources.tokenizer.spell(&ids)).await?;
    Ok(Json(json!({"prompt": text})))
}

fn check_model(facts: &Facts, fields: &Fields<'_>) -> Result<(), Fault> {
    fields.get("model").map_or(Ok(()), |model| facts.serves(model.text()?))
}
