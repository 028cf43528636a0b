//! Images over HTTP, with a double for the model's eyes: they are answered, counted, bounded, and refused by their place
//! in the request.

#[path = "../actors/tests/common/eyes.rs"]
mod eyes;
mod house;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use eyes::{file, with_eyes};
use house::{House, JOINED, SPLIT, source};
use millstream::server::Bounds;
use millstream_actors::assemble::Resources;
use serde_json::{Value, json};

fn seeing() -> Resources {
    let folder = house::checkpoint().with_file_name("tiny-qwen3-moe");
    with_eyes(&Resources::load(&folder).expect("the checkpoint is in the tree"))
}

async fn open(actors: &str) -> House {
    House::of(&source("", actors), &seeing(), Bounds::default()).await
}

fn data(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(bytes))
}

fn image(url: impl Into<String>) -> Value {
    json!({"type": "image_url", "image_url": {"url": url.into()}})
}

/// What is this? With these parts behind it.
fn ask(parts: &[Value]) -> Value {
    let content: Vec<Value> =
        [json!({"type": "text", "text": "what is this?"})].iter().chain(parts).cloned().collect();
    json!({
        "model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 12,
        "ignore_eos": true
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_answered_and_counted() {
    let (joined, split) = (open(JOINED).await, open(SPLIT).await);
    let mut texts = Vec::new();
    for number in 0..4 {
        let body = ask(&[image(data(&file(number, 20, 13)))]);
        let whole = joined.whole(&body).await;
        let text = whole["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
        assert_eq!(split.text(&body).await, text);
        assert_eq!(house::text_of(&split.stream(&body).await.all().await), text);
        texts.push(text);
        let counted = json!({"messages": body["messages"].clone()});
        let counted = joined.ask("/tokenize", &counted).await;
        assert_eq!(counted["count"], whole["usage"]["prompt_tokens"]);
        let of_image =
            counted["tokens"].as_array().expect("a list").iter().filter(|id| **id == eyes::IMAGE).count();
        assert_eq!(of_image, 22);
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
    let metrics =
        joined.client.get(joined.url("/metrics")).send().await.expect("metrics").text().await.expect("text");
    assert!(metrics.contains("millstream_images_encoded_total{actor=\"encode\"} 4"), "{metrics}");
    for house in [joined, split] {
        house.at_rest().await;
        house.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_refused_by_its_place() {
    let house = open(&format!(
        "{JOINED}[actors.encode]\nimages_max = 3\nimage_bytes = \"40KiB\"\npixels_max = 10000"
    ))
    .await;
    let whole = file(5, 60, 60);
    let low = |detail: &str| {
        let mut part = image(data(&whole));
        part["image_url"]["detail"] = detail.into();
        part
    };
    let first = image(data(&file(1, 9, 9)));
    let place = "messages[0].content[2]";
    for (part, param, why) in [
        (image("data:image/png;base64,!!!!"), place, "not base64"),
        (image("data:image/png,abc"), place, "not base64"),
        (image("data:text/plain;base64,aGVsbG8="), place, "text/plain"),
        (image("data:image/png;base64,"), place, "is empty"),
        (image("data:image/png;base64,aGVsbG8="), place, "not a PNG, JPEG, WebP or GIF"),
        (image(data(&whole[..whole.len() / 2])), place, "cannot be decoded"),
        (image(data(&file(5, 101, 100))), place, "101 x 100 pixels"),
        (image(data(&file(5, 90, 1))), place, "too flat"),
        (image(data(&[0; 60_000])), place, "only 40960 are taken"),
        (image("http://images.example.org/a.png"), "messages[0].content[2].image_url.url", "https://"),
        (
            image("https://images.example.org/a.png"),
            "messages[0].content[2].image_url.url",
            "fetches no images",
        ),
        (image(""), "messages[0].content[2].image_url.url", "data URL"),
        (low("tiny"), "messages[0].content[2].image_url.detail", "must be"),
        (low("original"), "messages[0].content[2].image_url.detail", "not supported"),
        (json!({"type": "image_url"}), "messages[0].content[2].image_url", "required"),
        (json!({"type": "image_url", "image_url": "x"}), "messages[0].content[2].image_url", "an object"),
        (json!({"type": "input_audio", "input_audio": {}}), "messages[0].content[2].type", "input_audio"),
    ] {
        let mut body = ask(&[first.clone(), part]);
        for streamed in [false, true] {
            body["stream"] = streamed.into();
            let (status, error) = house.refused(&body).await;
            assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{error}");
            assert!(error["message"].as_str().is_some_and(|message| message.contains(why)), "{why}: {error}");
        }
        let counted = json!({"messages": body["messages"].clone()});
        let broken = why == "cannot be decoded";
        assert_eq!(
            house.post_to("/tokenize", &counted).await.status(),
            if broken { 200 } else { 400 },
            "{why}"
        );
    }
    let (status, error) =
        house.refused(&ask(&[first.clone(), first.clone(), first.clone(), first.clone()])).await;
    assert_eq!((status, error["param"].as_str()), (400, Some("messages[0].content[4]")), "{error}");
    assert!(
        house.whole(&ask(&[first, low("low"), low("auto")])).await["choices"][0]["message"]["content"]
            .is_string()
    );
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_eyes_says_so() {
    let house = House::open("", JOINED).await;
    let (status, error) = house.refused(&ask(&[image(data(&file(1, 9, 9)))])).await;
    assert_eq!((status, error["param"].as_str()), (400, Some("messages[0].content[1].type")));
    assert!(error["message"].as_str().is_some_and(|message| message.contains("no eyes")), "{error}");
    let metrics =
        house.client.get(house.url("/metrics")).send().await.expect("metrics").text().await.expect("text");
    assert!(!metrics.contains("millstream_images_encoded_total"));
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_not_named_are_not_asked() {
    let actors = format!("{JOINED}[actors.encode]\nhosts = [\"images.example.org\", \"localhost\"]");
    let house = open(&actors).await;
    for (url, why) in [
        ("https://other.example.org/a.png", "fetches no images from \\\"other.example.org\\\""),
        ("https://images.example.org:8443/a.png", "usual port"),
        ("https://me@images.example.org/a.png", "without a name"),
        ("https://localhost/a.png", "no public address"),
    ] {
        let (status, error) = house.refused(&ask(&[image(url)])).await;
        assert_eq!(status, 400);
        assert!(error.to_string().contains(why), "{url}: {error}");
    }
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_of_the_eyes_does_not_show() {
    let house = open(SPLIT).await;
    let body = ask(&[image(data(&file(7, 20, 13))), image(data(&file(8, 24, 24)))]);
    let expected = house.text(&body).await;
    for wait in [0, 1, 3] {
        let asked = house.text(&body);
        let killed = async {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert!(house.server.mill().running().kill("encode"));
        };
        let (text, ()) = tokio::join!(asked, killed);
        assert_eq!(text, expected);
    }
    house.at_rest().await;
    house.server.stop().await;
}

/// A folder with the tiny Qwen3-VL and a template that shows images.
fn folder() -> tempfile::TempDir {
    let (folder, from) =
        (tempfile::tempdir().expect("a folder"), house::checkpoint().with_file_name("tiny-qwen3-vl"));
    let names = [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    for name in names {
        std::fs::copy(from.join(name), folder.path().join(name)).expect("it is copied");
    }
    std::fs::write(folder.path().join("chat_template.jinja"), eyes::TEMPLATE).expect("it is written");
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_requests_inside_count_until_they_end() {
    let source = source("body_max = \"64KiB\"", JOINED);
    let house = House::of(&source, &seeing(), Bounds { bodies_max: 100 << 10, ..Bounds::default() }).await;
    let mut large = file(2, 20, 13);
    large.resize(40_000, 0);
    let mut body = ask(&[image(data(&large))]);
    body["max_tokens"] = 2000.into();
    let inside = [house.stream(&body).await, house.stream(&body).await];
    for path in ["/v1/chat/completions", "/tokenize"] {
        let asked =
            if path == "/tokenize" { json!({"messages": body["messages"].clone()}) } else { body.clone() };
        let refused = house.post_to(path, &asked).await;
        assert_eq!(refused.status(), 429, "{path}");
        assert!(refused.headers().contains_key("retry-after"));
    }
    drop(inside);
    house.at_rest().await;
    body["max_tokens"] = 4.into();
    assert!(!house.text(&body).await.is_empty());
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn photographs_fit_into_the_body_where_the_model_has_eyes() {
    let mut photograph = file(2, 20, 13);
    photograph.resize(5 << 20, 0);
    let body = ask(&[image(data(&photograph)), image(data(&photograph))]);
    let (seeing, blind) = (open(JOINED).await, House::open("", JOINED).await);
    assert_eq!(seeing.post(&body).await.status(), 200);
    assert_eq!(blind.post(&body).await.status(), 413);
    seeing.server.stop().await;
    blind.server.stop().await;
}

#[test]
fn chat_shows_files() {
    let folder = folder();
    let images = house::checkpoint().with_file_name("tiny-qwen3-vl").join("images");
    let broken = folder.path().join("broken.png");
    std::fs::write(&broken, &file(1, 60, 60)[..200]).expect("it is written");
    let chat = |model: &std::path::Path, files: &[&std::path::Path]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(["chat", "--temperature", "0", "--max-tokens", "8", "--model"]).arg(model);
        files.iter().for_each(|file| {
            command.arg("--image").arg(file);
        });
        let output = command.arg("what is this?").output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (a, c) = (images.join("a.png"), images.join("c.png"));
    let answers = [&[][..], &[&*a], &[&*c], &[&*a, &*c]].map(|files| chat(folder.path(), files));
    assert!(answers.iter().all(|(well, said, _)| *well && !said.trim().is_empty()), "{answers:?}");
    assert!(answers.iter().skip(1).all(|(_, said, _)| *said != answers[0].1), "{answers:?}");
    let (well, _, why) = chat(folder.path(), &[&a, &broken]);
    assert!(!well && why.contains("broken.png: this image cannot be decoded"), "{why}");
    let (well, _, why) = chat(folder.path(), &[std::path::Path::new("no/such.png")]);
    assert!(!well && why.contains("cannot read no/such.png"), "{why}");
    let (well, _, why) = chat(&house::checkpoint(), &[&a]);
    assert!(!well && why.contains("no eyes"), "{why}");
}
