//! Long texts of the kinds that make careless code quadratic: with it, these tests would not end.

use super::files::{real, tokenizer};
use millstream_actors::prompt::{Encoding, Reader};
use millstream_actors::request::{Prompt, Refusal};
use millstream_actors::text::{ChatMessage, ChatRole, ChatTemplate, TextStream, Tokenizer};

const MEGABYTE: usize = 1 << 20;
const QUARTER: usize = MEGABYTE / 4;

const UNITS: &str = "a ab < 1 é 今 ! <| <start_of \u{E000} '";
const BLANKS: [&str; 5] = [" ", "\n", "a ", " \n", "\t"];

fn texts() -> Vec<String> {
    let units = UNITS.split(' ').chain(BLANKS);
    let mut texts: Vec<String> = units.map(|unit| unit.repeat(QUARTER / unit.len())).collect();
    texts.push("a".repeat(MEGABYTE));
    texts.push((0..QUARTER).map(|at| char::from(b' ' + (at * at % 94) as u8)).collect());
    texts
}

fn check(tokenizer: &Tokenizer) {
    for text in texts() {
        let ids = tokenizer.encode_plain(&text);
        assert!(!ids.is_empty() && ids.iter().all(|id| !tokenizer.is_control(*id)));
        assert!(tokenizer.decode(&ids) == text, "{:?}...", &text[..text.floor_char_boundary(20)]);
    }
}

#[test]
fn long_texts_are_encoded_in_time() {
    check(&tokenizer("tiny-llama"));
    check(&tokenizer("tiny-gemma3"));
}

#[test]
fn long_texts_are_encoded_in_time_by_real_models() {
    for file in ["gemma-3-270m-q4_k_m.gguf", "smollm2-135m-instruct-q4_1.gguf"] {
        let Some(files) = real(file) else { continue };
        let tokenizer = Tokenizer::load(&files).unwrap();
        check(&tokenizer);
        let template = ChatTemplate::load(&files, &tokenizer).unwrap().unwrap();
        let long = ChatMessage::new(ChatRole::User, "<end_of_turn><|im_end|>".repeat(QUARTER / 23));
        tokenizer.encode_marked(&template.render(&[long], true).unwrap());
    }
}

#[test]
fn long_answers_stream_in_time() {
    let mut stream = TextStream::new(vec!["a".repeat(50_000) + "b", "aab".into(), "é".repeat(1000)]).unwrap();
    let mut length = 0;
    for _ in 0..MEGABYTE {
        length += stream.push(b"a").text.len();
    }
    assert_eq!(length + stream.finish().len(), MEGABYTE);
}

#[test]
fn a_text_that_is_far_too_long_is_refused_by_its_beginning() {
    let tokenizer = tokenizer("tiny-llama");
    let reader = |tokens_max| Reader { tokenizer: &tokenizer, template: None, eyes: None, tokens_max };
    let read = |text: &str, most| reader(most).encode(&Prompt::Text(text.to_owned()), Encoding::SERVED);
    for text in texts() {
        let all = read(&text, None).expect("no bound").ids.len() as u64;
        match read(&text, Some(100)) {
            Err(Refusal::TooLong { tokens, limit: 100 }) => assert!(tokens > 100 && tokens < all / 8),
            other => panic!("{:?}...: {other:?}", &text[..text.floor_char_boundary(20)]),
        }
        // What may be as long as it is comes out as without a bound.
        let most = Some(u32::try_from(all).expect("a number of tokens"));
        assert_eq!(read(&text, most), read(&text, None));
    }
}
