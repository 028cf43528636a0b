//! What an answer can be asked to be: how tokens are chosen, what is said of them, several answers at once, completions
//! of plain prompts, and the tokens of a text.

mod house;

use house::{House, JOINED, SPLIT, say, text_of};
use millstream::server::Bounds;
use millstream_actors::assemble::Resources;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn text(body: &Value, index: usize) -> &str {
    let choice = &body["choices"][index];
    choice["message"]["content"].as_str().or(choice["text"].as_str()).expect("a choice has a text")
}

/// The events of one choice.
fn of_choice(events: &[Value], index: u64) -> Vec<Value> {
    let belongs = |event: &&Value| event["choices"][0]["index"].as_u64() == Some(index);
    events.iter().filter(belongs).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_told_with_how_likely_they_were() {
    let house = House::open("", SPLIT).await;
    let ask = say(
        "Hello there.",
        json!({"max_tokens": 12, "logprobs": true, "top_logprobs": 3, "ignore_eos": true}),
    );
    let body = house.whole(&ask).await;
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    for token in content {
        let best = token["top_logprobs"].as_array().unwrap();
        assert_eq!(best.len(), 3);
        assert_eq!(
            (&best[0]["token"], &best[0]["logprob"]),
            (&token["token"], &token["logprob"]),
            "it is greedy"
        );
        assert!(best[0]["logprob"].as_f64() >= best[1]["logprob"].as_f64());
        assert!(token["logprob"].as_f64().unwrap() < 0.0);
    }
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8_lossy(&bytes), text(&body, 0));
    let events = house.stream(&ask).await.all().await;
    let told: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&told, content);
    assert_eq!(text_of(&events), text(&body, 0));
    let plain = house.whole(&say("Hello there.", json!({"max_tokens": 2}))).await;
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_of_the_tokens_of_a_stop_string() {
    let house = House::open("", SPLIT).await;
    let ask = |extra: Value| {
        let mut body =
            json!({"model": "tiny", "prompt": "Hello", "temperature": 0, "max_tokens": 40, "logprobs": 1});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let free = house.ask(COMPLETIONS, &ask(json!({}))).await;
    let middle = text(&free, 0).char_indices().nth(text(&free, 0).chars().count() / 2).unwrap().0;
    let stop: String = text(&free, 0)[middle..].chars().take(3).collect();
    let ask = ask(json!({"stop": stop}));
    let body = house.ask(COMPLETIONS, &ask).await;
    let told = &body["choices"][0]["logprobs"];
    let characters = text(&body, 0).chars().count() as u64;
    let offsets: Vec<u64> =
        told["text_offset"].as_array().unwrap().iter().map(|offset| offset.as_u64().unwrap()).collect();
    assert!(offsets.is_sorted() && offsets.iter().all(|offset| *offset < characters), "{offsets:?}");
    for list in ["tokens", "token_logprobs", "top_logprobs"] {
        assert_eq!(told[list].as_array().unwrap().len(), offsets.len());
    }
    let events = house.stream_from(COMPLETIONS, &ask).await.all().await;
    let streamed: Vec<u64> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .map(|offset| offset.as_u64().unwrap())
        .collect();
    assert_eq!(streamed, offsets);
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_are_told_apart_and_the_first_is_the_one_alone() {
    let house = House::open("", SPLIT).await;
    let ask = |n: u32| {
        let extra = json!({"n": n, "temperature": 1, "seed": 5, "max_tokens": 16, "ignore_eos": true});
        say("Once upon a time", extra)
    };
    let body = house.whole(&ask(3)).await;
    let indices: Vec<&Value> =
        body["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert!(text(&body, 0) != text(&body, 1) && text(&body, 1) != text(&body, 2));
    let alone = house.whole(&ask(1)).await;
    assert_eq!(text(&alone, 0), text(&body, 0));
    assert_eq!(alone["usage"]["prompt_tokens"], body["usage"]["prompt_tokens"], "the prompt counts once");
    assert_eq!(body["usage"]["completion_tokens"], 48);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let mut streamed = ask(3);
    streamed["stream_options"] = json!({"include_usage": true});
    let events = house.stream(&streamed).await.all().await;
    let usage = events.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage["usage"][count], body["usage"][count]);
    }
    for index in 0..3 {
        let own = of_choice(&events, index);
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(own.last().unwrap()["choices"][0]["finish_reason"], "length");
        assert_eq!(text_of(&own), text(&body, index as usize));
    }
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_answers_are_taken_or_none_and_all_are_cancelled_together() {
    let house = House::open("requests_max = 4", SPLIT).await;
    let long =
        |n: u32| say("Go on", json!({"n": n, "temperature": 1, "max_tokens": 3000, "ignore_eos": true}));
    assert_eq!(house.refused_field("/v1/chat/completions", &long(5)).await, "n");
    let mut events = house.stream(&long(3)).await;
    events.read(8).await;
    assert_eq!(house.refused(&long(2)).await.0, 429);
    drop(events);
    house.at_rest().await;
    assert_eq!(house.whole(&say("Go on", json!({"n": 4, "max_tokens": 2}))).await["choices"][3]["index"], 3);
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wishes_reach_the_model() {
    let house = House::open("", JOINED).await;
    // Long enough to say something twice.
    let plain = house.text(&say("Hello", json!({"max_tokens": 200, "ignore_eos": true}))).await;
    for extra in [
        json!({"repetition_penalty": 1.8}),
        json!({"presence_penalty": 2}),
        json!({"frequency_penalty": 2}),
        json!({"temperature": 2, "seed": 1}),
    ] {
        let mut wish = json!({"max_tokens": 200, "ignore_eos": true});
        wish.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_ne!(house.text(&say("Hello", wish)).await, plain, "{extra}");
    }
    let one = json!({"max_tokens": 8, "ignore_eos": true, "logit_bias": {"70": 100}, "logprobs": true});
    let body = house.whole(&say("Hello", one)).await;
    let told = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(told.iter().all(|token| token["token"] == told[0]["token"]), "{told:?}");
    // Cut down to the best token, a hot draw is the greedy one.
    for cut in [json!({"top_k": 1}), json!({"top_p": 0}), json!({"min_p": 1})] {
        let mut wish = json!({"max_tokens": 200, "ignore_eos": true, "temperature": 2});
        wish.as_object_mut().unwrap().extend(cut.as_object().unwrap().clone());
        assert_eq!(house.text(&say("Hello", wish)).await, plain, "{cut}");
    }
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_answer_plain_prompts() {
    let house = House::open("", SPLIT).await;
    let ask = |prompt: Value, extra: Value| {
        let mut body = json!({"model": "tiny", "prompt": prompt, "temperature": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let one = house.ask(COMPLETIONS, &ask(json!("The mill"), json!({"ignore_eos": true}))).await;
    assert_eq!(one["object"], "text_completion");
    assert!(one["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(one["usage"]["completion_tokens"], 16, "the API's default");
    let tokens = house.ask("/tokenize", &json!({"prompt": "The mill"})).await["tokens"].clone();
    assert_eq!(one["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    let same = house.ask(COMPLETIONS, &ask(tokens.clone(), json!({"ignore_eos": true}))).await;
    assert_eq!(text(&same, 0), text(&one, 0));
    let several = ask(json!(["The mill", "A stream"]), json!({"n": 2, "echo": true, "ignore_eos": true}));
    let several = house.ask(COMPLETIONS, &several).await;
    assert_eq!(several["choices"].as_array().unwrap().len(), 4);
    assert_eq!(text(&several, 1), format!("The mill{}", text(&one, 0)));
    assert!(text(&several, 2).starts_with("A stream"));
    assert_eq!(several["usage"]["completion_tokens"], 64);
    let events = ask(json!([tokens]), json!({"echo": true, "ignore_eos": true}));
    let events = house.stream_from(COMPLETIONS, &events).await.all().await;
    let streamed: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text(&several, 0));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    for (body, param) in [
        (ask(json!([999_999]), json!({})), "prompt"),
        (ask(json!("a"), json!({"max_tokens": 1_000_000})), "prompt"),
        (ask(json!("a"), json!({"suffix": "b"})), "suffix"),
        (ask(json!("a"), json!({"response_format": {}})), "response_format"),
    ] {
        assert_eq!(house.refused_field(COMPLETIONS, &body).await, param);
    }
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_without_tokens_is_refused_by_its_field() {
    // A model whose texts begin with no token of their own.
    let bare = Resources::load(&house::checkpoint().with_file_name("tiny-qwen3-moe")).unwrap();
    let house = House::of(&house::source("", JOINED), &bare, Bounds::default()).await;
    for (prompt, param) in
        [(json!(""), "prompt"), (json!(["a", ""]), "prompt"), (json!([[1], []]), "prompt[1]")]
    {
        for stream in [false, true] {
            let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 2, "stream": stream});
            assert_eq!(house.refused_field(COMPLETIONS, &body).await, param, "{body}");
        }
    }
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_become_tokens_and_tokens_texts() {
    let house = House::open("", JOINED).await;
    let tokenize = async |body: Value| house.ask("/tokenize", &body).await;
    let plain = tokenize(json!({"prompt": "The mill <|im_end|>", "with_strings": true})).await;
    let (tokens, strings) = (plain["tokens"].as_array().unwrap(), plain["token_strs"].as_array().unwrap());
    assert_eq!((plain["count"].as_u64(), strings.len()), (Some(tokens.len() as u64), tokens.len()));
    assert!(plain["max_model_len"].as_u64().unwrap() > 64);
    let back = house.ask("/detokenize", &json!({"model": "tiny", "tokens": tokens})).await;
    assert!(back["prompt"].as_str().unwrap().ends_with("The mill <|im_end|>"), "{back}");
    let bare = tokenize(json!({"prompt": "The mill <|im_end|>", "add_special_tokens": false})).await;
    assert_eq!(bare["token_strs"], Value::Null);
    assert!(tokens.ends_with(bare["tokens"].as_array().unwrap()));
    assert_eq!(tokenize(json!({"prompt": "", "add_special_tokens": false})).await["count"], 0);
    let messages = json!([{"role": "user", "content": "Hello <|im_end|>"}]);
    let chat = tokenize(json!({"messages": messages})).await;
    let closed = tokenize(json!({"messages": messages, "add_generation_prompt": false})).await;
    assert!(chat["count"].as_u64() > closed["count"].as_u64());
    let answered = house.whole(&say("Hello <|im_end|>", json!({"max_tokens": 1}))).await;
    assert_eq!(chat["count"], answered["usage"]["prompt_tokens"], "what is counted is what is charged");
    for (path, body, param) in [
        ("/tokenize", json!({"text": "a"}), "text"),
        ("/tokenize", json!({"model": "tiny"}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "add_generation_prompt": true}), "add_generation_prompt"),
        ("/tokenize", json!({"messages": messages, "add_special_tokens": true}), "add_special_tokens"),
        ("/detokenize", json!({"tokens": [1, 999_999]}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
    ] {
        assert_eq!(house.refused_field(path, &body).await, param, "{body}");
    }
    house.server.stop().await;
}
