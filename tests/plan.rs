//! `plan`, as a person types it: the examples and what they come to, the shape of its JSON, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn plan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.arg("plan").args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(file: &str) -> Value {
    let output = plan(&[file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{file}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const EXAMPLES: [&str; 3] = [
    "examples/plan/chat.toml",
    "examples/plan/published-cluster.toml",
    "examples/plan/published-margin.toml",
];

#[test]
fn the_published_margin_follows_from_its_published_inputs() {
    let json = json("examples/plan/published-margin.toml");
    let money = &json["money"];
    let figure = |value: &Value| value.as_f64().unwrap();
    assert_eq!(figure(&money["cost"]), 87_072.0);
    assert_eq!(figure(&money["device_hours"]), 226.75 * 8.0 * 24.0);
    let income = &money["income"];
    // 562,027 is published; the published inputs are rounded to a billion tokens, one of which is $550 of misses.
    let revenue = figure(&income["revenue"]);
    assert!((revenue - 562_027.0).abs() < 100.0, "{revenue}");
    assert_eq!(figure(&income["margin_percent"]).floor(), 545.0);
    assert_eq!(figure(&income["hits"]), 47_880.0);
    assert_eq!(figure(&income["misses"]), 146_300.0);
    assert_eq!(figure(&income["answers"]), 367_920.0);
}

#[test]
fn every_example_is_planned_and_shows_its_assumptions() {
    for file in EXAMPLES {
        let said = plan(&[file]);
        assert_eq!(said.status.code(), Some(0), "{file}: {}", text(&said.stderr));
        let said = text(&said.stdout);
        println!("{said}\n");
        assert!(said.contains("assumptions, and where they are from"), "{file}");
        let again = plan(&[file]);
        assert_eq!(said, text(&again.stdout), "{file}: the same twice");
        let json = json(file);
        for of in json["assumptions"].as_array().unwrap() {
            assert!(!of["source"].as_str().unwrap().is_empty(), "{file}: {of}");
        }
    }
}

#[test]
fn what_the_published_cluster_needs_comes_from_the_settings_of_its_model() {
    let json = json("examples/plan/published-cluster.toml");
    let kept = json["kept"].as_array().unwrap();
    let days = |days: f64| kept.iter().find(|of| of["kept_s"] == days * 86_400.0).unwrap();
    let figure = |of: &Value, name: &str| of[name].as_f64().unwrap();
    // 155 T tokens a day, of which 118,000 in 118,440 are prompts, 96 % of them read: 1.71e9 tokens a second.
    let tokens = 155e12 / 86_400.0 * 118_000.0 / 118_440.0;
    let bytes = figure(days(3.0), "read_per_second") / (tokens * 0.96);
    // Four bits a number and their scales: 2.5 sources of entries of 128 and 512 numbers, a byte for 32 of these and 16 of those.
    assert!((bytes - 2.5 * (640.0 / 2.0 + 128.0 / 32.0 + 512.0 / 16.0)).abs() < 1.0, "{bytes} bytes a token");
    let ratio = figure(days(7.0), "held_bytes") / figure(days(3.0), "held_bytes");
    assert!((ratio - 7.0 / 3.0).abs() < 1e-3, "{ratio}");
    assert!(json["published"].as_array().unwrap().iter().all(|of| of["computed"].is_number()));
}

#[test]
fn the_json_has_these_fields() {
    let json = json("examples/plan/chat.toml");
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        fields(&json),
        "title demand tried best others why_none parting table kept money published method assumptions"
    );
    assert_eq!(
        fields(&json["best"]),
        "joined shape groups ratio tier kept_s found fetched devices first_token_ms between_tokens_ms held_bytes \
         read_per_second written_per_second held_a_day cost_a_day million_tokens"
    );
    assert_eq!(fields(&json["table"]), "tier kept_s rows");
    assert_eq!(
        fields(&json["kept"][0]),
        "tier kept_s found held_bytes read_per_second written_per_second held_a_day devices million_tokens"
    );
    assert_eq!(fields(&json["money"]), "device_hours cost million_tokens million_answer_tokens income");
    let best = &json["best"];
    assert!(best["first_token_ms"].as_f64().unwrap() <= 500.0);
    assert!(best["between_tokens_ms"].as_f64().unwrap() <= 40.0);
}

/// A file with something replaced.
fn changed(from: &str, to: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let whole = std::fs::read_to_string(root.join("examples/plan/chat.toml")).unwrap();
    assert!(whole.contains(from), "{from}");
    let models = root.join("examples/models/llama-3.1-8b");
    let whole = whole.replace(from, to).replace("../models/llama-3.1-8b", &models.display().to_string());
    let file = folder.path().join("plan.toml");
    std::fs::write(&file, whole).unwrap();
    plan(&[file.to_str().unwrap()])
}

#[test]
fn what_is_wrong_is_named_with_what_it_should_be() {
    for (from, to, said) in [
        ("prompt = 3_000", "promt = 3_000", "unknown field `promt`"),
        ("prompt = 3_000", "prompt = 0", "workload.prompt is 0: it must be from 1 to"),
        ("requests_a_day = 200_000", "", "[workload] must say one of: tokens_a_day; requests_a_day;"),
        ("peak = 2.5", "peak = 0.5", "workload.peak must be from 1 on"),
        ("share = 0.35", "share = 35", "workload.hits: share is 35: it must be from 0 to 1"),
        ("kept = \"5m\"", "kept = \"5 minutes\"", "is no time: write one such as \"3d\""),
        ("memory = \"48GB\"", "", "[device] must say memory"),
        ("flops = 362e12", "name = \"l40s\"", "there is no \"l40s\" in the table, it has a100"),
        (
            "first_token_ms = 500",
            "first_token_ms = -1",
            "goal.first_token_ms is -1: it must be a number above 0",
        ),
        ("share = 0.95\n", "share = 95\n", "goal.share must be from 0.5 to 0.9999"),
        ("prefill = [1, 2, 4]", "prefill = []", "search.prefill must have 1 to 64 numbers"),
        ("\"device.flops\"", "\"device.flop\"", "did you mean \"device.flops\"?"),
    ] {
        let output = changed(from, to);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {error}");
        assert!(error.contains(said), "{to}: {error}");
    }
    let none = changed("between_tokens_ms = 40", "between_tokens_ms = 0.5");
    assert_eq!(none.status.code(), Some(1));
    let said = text(&none.stdout);
    assert!(
        said.contains("0.5 ms between tokens: the least that some group of these sizes takes is"),
        "{said}"
    );
    let absent = changed("llama-3.1-8b", "llama-of-nobody");
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("model.config: cannot read"), "{}", text(&absent.stderr));
}

#[test]
fn a_trace_says_lengths_and_hits() {
    let folder = tempfile::tempdir().unwrap();
    let line = |at: u64, ids: &str| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": 1536, \"output_length\": 64, \"hash_ids\": [{ids}]}}\n"
        )
    };
    let trace = line(0, "1, 2, 3") + &line(60_000, "1, 2, 4") + &line(7_200_000, "1, 2, 3");
    std::fs::write(folder.path().join("trace.jsonl"), trace).unwrap();
    let file = folder.path().join("plan.toml");
    std::fs::write(
        &file,
        "[workload]\nrequests_a_day = 1000\ntrace = \"trace.jsonl\"\n[model]\nconfig = \"builtin\"\n[device]\nname = \"h100\"\n\
         memory = \"80GiB\"\nhour = 2\n[goal]\nfirst_token_ms = 100\nbetween_tokens_ms = 20\n[tiers.host]\nbytes_per_second = 1e9\n",
    )
    .unwrap();
    let output = plan(&[file.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found: Vec<f64> =
        json["kept"].as_array().unwrap().iter().map(|of| of["found"].as_f64().unwrap()).collect();
    // Of nine blocks two are found again within an hour, and three more within a day.
    assert_eq!(found, [0.222222, 0.555556, 0.555556, 0.555556, 0.555556]);
    let said = json["demand"][1].as_str().unwrap();
    assert!(said.ends_with("1536 and 64 tokens each"), "{said}");
    let out = folder.path().join("report.txt");
    let written = plan(&[file.to_str().unwrap(), "-o", out.to_str().unwrap()]);
    assert_eq!((written.status.code(), written.stdout.len()), (Some(0), 0));
    assert!(std::fs::read_to_string(out).unwrap().contains("when kept for"));
}
