//! The HTTP API as a client sees it: order of a stream, usage, stop strings, every refusal with its status and field.

mod house;

use std::time::Duration;

use house::{House, JOINED, SPLIT, say, text_of};
use millstream::server::Bounds;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_order_of_the_api() {
    let house = House::open("", SPLIT).await;
    let ask = say("Hello there.", json!({"max_tokens": 12, "stream_options": {"include_usage": true}}));
    let events = house.stream(&ask).await.all().await;
    let delta = |event: &Value| event["choices"][0]["delta"].clone();
    assert_eq!(delta(&events[0])["role"], "assistant");
    assert_eq!(delta(&events[0])["content"], "");
    let (usage, finish) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(usage["choices"], json!([]));
    assert!(["stop", "length"].contains(&finish["choices"][0]["finish_reason"].as_str().unwrap()));
    assert_eq!(delta(finish), json!({}));
    for event in &events[1..events.len() - 2] {
        assert!(!delta(event)["content"].as_str().unwrap().is_empty());
        assert_eq!(event["usage"], Value::Null);
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event["object"], "chat.completion.chunk");
    }
    let whole = house.whole(&say("Hello there.", json!({"max_tokens": 12}))).await;
    assert_eq!(whole["choices"][0]["message"]["content"], text_of(&events));
    // The second time, what the first left behind is found: whole blocks, and never the last token.
    let found = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let prompt = usage["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 16, "a block at least");
    assert_eq!((found(&usage["usage"]), found(&whole["usage"])), (0, (prompt - 1) / 16 * 16));
    for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(whole["usage"][count], usage["usage"][count]);
    }
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_counts_its_tokens() {
    let house = House::open("", JOINED).await;
    let body =
        house.whole(&say("Hello there.", json!({"max_completion_tokens": 5, "model": "default"}))).await;
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "tiny");
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    let usage = |name: &str| body["usage"][name].as_u64().unwrap();
    assert!(usage("prompt_tokens") > 5 && usage("completion_tokens") <= 5);
    assert_eq!(usage("total_tokens"), usage("prompt_tokens") + usage("completion_tokens"));
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_answer_before_it() {
    let house = House::open("", SPLIT).await;
    let text = house.text(&say("Hello", json!({"max_tokens": 40}))).await;
    let middle = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[middle..].chars().take(3).collect();
    let before = text.split(&stop).next().unwrap();
    let ask = say("Hello", json!({"max_tokens": 40, "stop": ["never said", stop]}));
    let body = house.whole(&ask).await;
    assert_eq!(body["choices"][0]["message"]["content"], before);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(text_of(&house.stream(&ask).await.all().await), before);
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_says_the_same() {
    let house = House::open("", JOINED).await;
    let ask = |seed: i64| say("Once", json!({"temperature": 1.0, "seed": seed, "max_tokens": 24}));
    assert_eq!(house.text(&ask(-3)).await, house.text(&ask(-3)).await);
    assert_ne!(house.text(&ask(1)).await, house.text(&ask(2)).await);
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_field() {
    let house = House::open("", JOINED).await;
    let hi = || json!([{"role": "user", "content": "hi"}]);
    for (body, status, param) in [
        (
            json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 1}]}),
            400,
            "messages[1].content",
        ),
        (json!({"model": "tiny", "messages": hi(), "temperature": "x"}), 400, "temperature"),
        (json!({"model": "tiny", "messages": hi(), "tools": [{}]}), 400, "tools"),
        (json!({"model": "tiny", "messages": hi(), "n": 17}), 400, "n"),
        (json!({"model": "tiny", "messages": hi(), "logit_bias": {"999999": 1}}), 400, "logit_bias"),
        (json!({"model": "tiny", "messages": hi(), "stop_token_ids": [999_999]}), 400, "stop_token_ids"),
        (json!({"model": "tiny", "messages": hi(), "min_tokens": 9, "max_tokens": 8}), 400, "min_tokens"),
        (json!({"model": "tiny", "messages": hi(), "temprature": 1}), 400, "temprature"),
        (json!({"model": "other", "messages": hi()}), 404, "model"),
        (json!({"messages": hi()}), 400, "model"),
        (json!({"model": "tiny"}), 400, "messages"),
        (json!({"model": "tiny", "messages": hi(), "max_tokens": 1_000_000}), 400, "messages"),
    ] {
        let (got, error) = house.refused(&body).await;
        assert_eq!((got, error["param"].as_str()), (status, Some(param)), "{body}: {error}");
        assert!(error["message"].is_string() && error["type"].is_string());
    }
    let (_, error) = house.refused(&json!({"model": "tiny", "messages": hi(), "temprature": 1})).await;
    assert!(error["message"].as_str().unwrap().contains("did you mean `temperature`?"));
    let (_, error) =
        house.refused(&json!({"model": "tiny", "messages": hi(), "max_tokens": 1_000_000})).await;
    assert_eq!(error["code"], "context_length_exceeded");
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_paths_and_methods_get_json_too() {
    let house = House::open("", JOINED).await;
    let get = |path: &str| house.client.get(house.url(path)).send();
    let missing = get("/v1/nothing").await.unwrap();
    assert_eq!(missing.status(), 404);
    assert_eq!(missing.json::<Value>().await.unwrap()["error"]["code"], "unknown_url");
    let method = get("/v1/chat/completions").await.unwrap();
    assert_eq!(method.status(), 405);
    assert_eq!(method.json::<Value>().await.unwrap()["error"]["code"], "method_not_allowed");
    let embeddings = house.post_to("/v1/embeddings", &json!({"model": "tiny", "input": "a"})).await;
    assert_eq!(embeddings.status(), 404);
    let embeddings: Value = embeddings.json().await.unwrap();
    assert!(embeddings["error"]["message"].as_str().unwrap().contains("generates text"), "{embeddings}");
    let models: Value = get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(get("/v1/models/tiny").await.unwrap().status(), 200);
    assert_eq!(get("/v1/models/other").await.unwrap().status(), 404);
    let garbled = get("/v1/models/%ff").await.unwrap();
    assert_eq!(garbled.status(), 400);
    assert!(garbled.json::<Value>().await.unwrap()["error"]["message"].is_string());
    assert!(get("/").await.unwrap().text().await.unwrap().contains("tiny"));
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_origins_are_kept_out() {
    let house = House::open("hosts = \"Mill.example\"", JOINED).await;
    let body = || say("hi", json!({"max_tokens": 2})).to_string();
    let refusal = async |request: reqwest::RequestBuilder| {
        let response = request.send().await.unwrap();
        assert!(response.headers().keys().all(|name| !name.as_str().starts_with("access-control-")));
        let (status, body) = (response.status().as_u16(), response.json::<Value>().await.unwrap());
        (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    // All that a page may send without asking first.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
            let request = house.client.post(house.url(path)).header("content-type", kind).body(body());
            assert_eq!(refusal(request).await, (415, "unsupported_content_type".to_owned()), "{kind} {path}");
        }
    }
    let unsaid = house.client.post(house.url("/v1/chat/completions")).body(body());
    assert_eq!(refusal(unsaid).await.0, 415);
    let asked = house.client.request(reqwest::Method::OPTIONS, house.url("/v1/chat/completions"));
    assert_eq!(refusal(asked.header("origin", "http://evil.example")).await.0, 405);
    for host in ["evil.example", "evil.example:8000", "10.0.0.5"] {
        let get = house.client.get(house.url("/v1/models")).header("host", host);
        assert_eq!(refusal(get).await, (421, "unknown_host".to_owned()), "{host}");
        let post = house.json_bytes(body()).header("host", host);
        assert_eq!(refusal(post).await.0, 421, "{host}");
    }
    for host in ["localhost", "[::1]:8000", "mill.example:8000"] {
        let good = house.json_bytes(body()).header("host", host).send().await.unwrap();
        assert_eq!(good.status(), 200, "{host}");
    }
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_bodies_are_refused_and_harm_nobody() {
    let house = House::open("body_max = \"1MiB\"", JOINED).await;
    let post = async |body: Vec<u8>| {
        let response = house.json_bytes(body).send().await.unwrap();
        let (status, body) = (response.status().as_u16(), response.json::<Value>().await.unwrap());
        (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(post(vec![b' '; 32 << 20]).await, (413, "request_too_large".to_owned()));
    assert_eq!(post(b"{\"model\": \"\xff\xfe\"}".to_vec()).await, (400, "invalid_utf8".to_owned()));
    assert_eq!(post(vec![b'['; 100_000]).await, (400, "invalid_json".to_owned()));
    assert_eq!(post([b"{\"a\":".repeat(100_000)].concat()).await, (400, "invalid_json".to_owned()));
    assert_eq!(post(b"{\"model\": \"tiny\", \"messa".to_vec()).await, (400, "invalid_json".to_owned()));
    assert_eq!(post(b"{\"model\": \"\\ud800\"}".to_vec()).await, (400, "invalid_json".to_owned()));
    let twice = b"{\"model\": \"tiny\", \"messages\": [], \"seed\": 1, \"seed\": 2}".to_vec();
    assert_eq!(post(twice).await, (400, "duplicate_field".to_owned()));
    assert_eq!(post(b"[]".to_vec()).await.0, 400);
    assert_eq!(post(Vec::new()).await.0, 400);
    let chunks = futures::stream::iter((0..16).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 20])));
    let sent = house.json_bytes(reqwest::Body::wrap_stream(chunks)).send();
    assert_eq!(sent.await.unwrap().status(), 413);
    assert!(!house.text(&say("still here?", json!({"max_tokens": 4}))).await.is_empty());
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_break_off_or_crawl_free_their_connection() {
    let mut bounds = Bounds { body_wait_max: Duration::from_millis(300), ..Bounds::default() };
    bounds.connections.head_wait_max = Duration::from_millis(300);
    let house = House::bounded("", JOINED, bounds).await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1000\r\n\r\n{\"model\"";
    let mut broken = TcpStream::connect(house.server.address()).await.unwrap();
    broken.write_all(head.as_bytes()).await.unwrap();
    broken.shutdown().await.unwrap();
    let mut crawling = TcpStream::connect(house.server.address()).await.unwrap();
    crawling.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    tokio::time::timeout(Duration::from_secs(5), crawling.read_to_string(&mut said)).await.unwrap().unwrap();
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    let mut headless = TcpStream::connect(house.server.address()).await.unwrap();
    headless.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: ").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(5), headless.read_to_end(&mut rest)).await.unwrap().unwrap();
    let mut long = TcpStream::connect(house.server.address()).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nlong: {}\r\n\r\n", "x".repeat(1_000_000));
    // The server need not read all of it, so either direction may be reset.
    let _ = long.write_all(head.as_bytes()).await;
    let mut said = String::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), long.read_to_string(&mut said)).await.unwrap();
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
    assert!(!house.text(&say("still here?", json!({"max_tokens": 4}))).await.is_empty());
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_show_the_groups() {
    let house = House::open("", SPLIT).await;
    house.text(&say("count me", json!({"max_tokens": 8}))).await;
    house.at_rest().await;
    let health = house.client.get(house.url("/health")).send().await.unwrap();
    assert_eq!(health.status(), 200);
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["status"], "ok");
    let units: Vec<&str> =
        health["units"].as_array().unwrap().iter().map(|unit| unit["name"].as_str().unwrap()).collect();
    assert!(units.contains(&"prefill") && units.contains(&"decode"), "{units:?}");
    let metrics = house.client.get(house.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in [
        "millstream_requests_total{outcome=\"finished\"} 1",
        "millstream_first_token_seconds_count 1",
        "millstream_group_blocks_used{group=\"decode\"} 0",
        "millstream_prefix_found_tokens_total{group=\"prefill\"} 0",
        "millstream_prefix_replayed_tokens_total{group=\"prefill\"} 0",
        "millstream_group_state_slots_used{group=\"decode\"} 0",
        "millstream_prefix_evicted_blocks_total{group=\"decode\"} 0",
        "millstream_lane_depth{lane=\"http.submit\"} 0",
        "millstream_step_seconds_bucket{group=\"prefill\",le=\"+Inf\"} 1",
        "millstream_step_gap_seconds_count{group=\"prefill\"} 0",
        "millstream_step_prediction_error{group=\"decode\"}",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.contains("millstream_inter_token_seconds_bucket"));
    let gaps = "millstream_step_gap_seconds_count{group=\"decode\"} ";
    assert!(metrics.contains(gaps) && !metrics.contains(&format!("{gaps}0")), "eight tokens, seven steps");
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_need_no_tier_that_lasts() {
    for cache in ["[cache]\ntiers = [{ host = \"1MiB\" }]\n", "[cache]\nreplay = \"snapshot\"\n"] {
        let house = House::open("", &[JOINED, cache].concat()).await;
        let metrics = house.client.get(house.url("/metrics")).send().await.unwrap();
        assert_eq!(metrics.status(), 200, "{cache}");
        assert!(metrics.text().await.unwrap().contains("millstream_requests_open 0"));
        house.server.stop().await;
    }
}

/// The usage of a stream's last event.
async fn streamed_usage(house: &House, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream_options"] = json!({"include_usage": true});
    house.stream_from(path, &body).await.all().await.last().expect("an event")["usage"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_usage_says_what_was_found_however_it_is_asked() {
    let house = House::open("", JOINED).await;
    let text = "Say it once more, and then again, so that there is a block or two.";
    let asks = [
        ("/v1/chat/completions", say(text, json!({"max_tokens": 3}))),
        ("/v1/completions", json!({"model": "tiny", "prompt": text, "max_tokens": 3, "temperature": 0})),
    ];
    for (path, body) in asks {
        let first = house.ask(path, &body).await["usage"].clone();
        let (whole, streamed) =
            (house.ask(path, &body).await["usage"].clone(), streamed_usage(&house, path, &body).await);
        assert_eq!(whole, streamed, "{path}");
        let found = |usage: &Value, what: &str| usage["prompt_tokens_details"][what].as_u64();
        assert_eq!(found(&first, "cached_tokens"), Some(0), "{path}");
        assert!(found(&whole, "cached_tokens") >= Some(16), "{path}: {whole}");
        assert_eq!(found(&whole, "replayed_tokens"), Some(0), "{path}");
    }
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_are_known_and_salts_keep_apart() {
    let house = House::open("", JOINED).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body = |more: Value| {
            let text = "Something long enough for a block of sixteen tokens, or for two.";
            let mut body = match path {
                "/v1/completions" => json!({"model": "tiny", "prompt": text, "max_tokens": 2}),
                _ => say(text, json!({"max_tokens": 2})),
            };
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        for wrong in [
            json!({"prompt_cache_retention": "for ever"}),
            json!({"prompt_cache_retention": 24}),
            json!({"cache_salt": ""}),
            json!({"cache_salt": "x".repeat(257)}),
        ] {
            let field = wrong.as_object().unwrap().keys().next().unwrap().clone();
            assert_eq!(house.refused_field(path, &body(wrong)).await, field);
        }
        for retention in ["24h", "in_memory", "in-memory", "default", "agent", "chat"] {
            house.ask(path, &body(json!({"prompt_cache_retention": retention}))).await;
        }
        let found = async |more: Value| {
            let usage = house.ask(path, &body(more)).await["usage"].clone();
            usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        assert!(found(json!({})).await > 0);
        assert_eq!(found(json!({"cache_salt": "a"})).await, 0, "nobody has named its blocks like this");
        assert_eq!(found(json!({"cache_salt": "b"})).await, 0);
        assert!(found(json!({"cache_salt": "a"})).await > 0);
    }
    house.server.stop().await;
}
