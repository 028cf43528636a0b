//! The commands as a person types them: what they print and the exit codes they end with.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const BIN: &str = env!("CARGO_BIN_EXE_millstream");

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn run(args: &[&str]) -> Output {
    Command::new(BIN).args(args).current_dir(root()).stdin(Stdio::null()).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ended by itself")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

const SPLIT: &str = "examples/topologies/split.toml";
const BAD: &[u8] =
    b"model = \"builtin\"\n[actors.gateway]\nlisten = 7\n[actors.prefil]\n[actors.decode]\nchunk_token = 4\n";

#[test]
fn good_files_are_checked_expanded_drawn_and_compared() {
    let checked = run(&["check", SPLIT]);
    assert_eq!(code(&checked), 0, "{}", err(&checked));
    assert!(out(&checked).contains("plan "));
    let json = run(&["check", SPLIT, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["ok"], true);
    for format in ["text", "mermaid", "svg"] {
        let drawn = run(&["graph", SPLIT, "--format", format]);
        assert!(code(&drawn) == 0 && out(&drawn).contains("decode"), "{format}: {}", err(&drawn));
    }
    let same = run(&["diff", SPLIT, SPLIT]);
    assert!(code(&same) == 0 && out(&same).contains("no difference"));
    let other = run(&["diff", SPLIT, "examples/topologies/joined.toml"]);
    assert!(code(&other) == 0 && out(&other).contains("joined"), "{}", out(&other));
    let schema = run(&["schema"]);
    assert!(serde_json::from_slice::<serde_json::Value>(&schema.stdout).unwrap().is_object());
}

#[test]
fn an_expanded_file_is_the_same_plan() {
    let folder = tempfile::tempdir().unwrap();
    let expanded = run(&["expand", SPLIT]);
    assert_eq!(code(&expanded), 0);
    let written = file(folder.path(), "expanded.toml", &expanded.stdout);
    assert!(out(&run(&["diff", SPLIT, &written])).contains("no difference"));
}

#[test]
fn all_problems_are_printed_and_the_exit_code_is_2() {
    let folder = tempfile::tempdir().unwrap();
    let bad = file(folder.path(), "bad.toml", BAD);
    for args in [
        ["check", &bad].as_slice(),
        &["expand", &bad],
        &["graph", &bad],
        &["diff", &bad, SPLIT],
        &["diff", SPLIT, &bad],
        &["serve", &bad],
        &["simulate", &bad],
        &["chat", "--topology", &bad, "hi"],
    ] {
        let refused = run(args);
        assert_eq!(code(&refused), 2, "{args:?}: {}", err(&refused));
        let said = err(&refused);
        assert!(
            said.contains("bad.toml:3:") && said.contains("bad.toml:4:") && said.contains("bad.toml:6:"),
            "{args:?}: {said}"
        );
    }
    let json = run(&["check", &bad, "--json"]);
    assert_eq!(code(&json), 2);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["problems"].as_array().unwrap().len() >= 3);
}

#[test]
fn files_that_are_no_text_are_refused_clearly() {
    let folder = tempfile::tempdir().unwrap();
    let binary = file(folder.path(), "binary.toml", b"model = \"\xff\"\n");
    let huge = file(folder.path(), "huge.toml", &vec![b'#'; 8 << 20]);
    for (path, word) in
        [("no/such.toml", "cannot read"), (&binary, "UTF-8"), (&huge, "larger"), ("examples", "folder")]
    {
        let refused = run(&["check", path]);
        assert_eq!(code(&refused), 2);
        assert!(err(&refused).contains(word), "{}", err(&refused));
    }
}

#[test]
fn what_is_not_built_is_checked_but_not_served() {
    let big = "examples/topologies/supernode.toml";
    let checked = run(&["check", big]);
    assert_eq!(code(&checked), 0, "{}", err(&checked));
    assert!(err(&checked).contains("note"));
    let served = run(&["serve", big]);
    assert_eq!(code(&served), 2);
    assert!(err(&served).contains("not built yet"), "{}", err(&served));
}

#[test]
fn wrong_arguments_end_with_2() {
    assert_eq!(code(&run(&["serve"])), 2);
    assert_eq!(code(&run(&["simulate", SPLIT, "--seeds", "9..9"])), 2);
    for hot in ["9", "-1"] {
        let refused = run(&["chat", "--temperature", hot, "hi"]);
        assert!(code(&refused) == 2 && err(&refused).contains("between 0 and 2"), "{}", err(&refused));
    }
    let refused = run(&["serve", "--model", "builtin", "--listen", "here"]);
    assert!(code(&refused) == 2 && err(&refused).contains("such as 127.0.0.1:8000"), "{}", err(&refused));
    assert_eq!(code(&run(&["chat", "--model", "a", "--server", "b", "hi"])), 2);
    assert_eq!(code(&run(&["frobnicate"])), 2);
}

#[test]
fn a_simulation_is_repeated_bit_by_bit() {
    let args = ["simulate", SPLIT, "--seeds", "1..4", "--requests", "12"];
    let (first, second) = (run(&args), run(&args));
    assert_eq!(code(&first), 0, "{}{}", out(&first), err(&first));
    assert_eq!(out(&first), out(&second));
    assert_eq!(out(&first).lines().next(), Some("model builtin"));
    assert_eq!(out(&first).lines().count(), 1 + 3);
    assert!(out(&first).contains("ledgers at zero"));
    let calm = run(&["simulate", SPLIT, "--seed", "1", "--requests", "12", "--faults", "none"]);
    assert!(code(&calm) == 0 && out(&calm).contains("0 restarts"), "{}", out(&calm));
}

#[test]
fn the_oracle_agrees_however_the_graph_is_cut() {
    let folder = "kernels/tests/oracle/tiny-llama";
    for flags in [
        &[][..],
        &["--split"],
        &["--chunk", "7", "--batch", "4"],
        &["--split", "--chunk", "64", "--batch", "16"],
    ] {
        let compared = run(&[&["oracle", folder], flags].concat());
        assert_eq!(code(&compared), 0, "{flags:?}: {}{}", out(&compared), err(&compared));
        assert!(out(&compared).contains("32/32"), "{}", out(&compared));
    }
    assert_eq!(code(&run(&["oracle", "src"])), 2);
    assert_eq!(code(&run(&["oracle", "no/such/folder"])), 2);
}

#[test]
fn the_model_inside_the_program_answers_and_is_marked() {
    let said = run(&["chat", "What is 37 + 45?"]);
    assert_eq!(code(&said), 0, "{}", err(&said));
    assert!(out(&said).trim_end().ends_with("</think>82"), "{}", out(&said));
    let marked = run(&["eval", "--task", "arithmetic", "--task", "image", "--at-least", "0.9", "--json"]);
    assert_eq!(code(&marked), 0, "{}{}", out(&marked), err(&marked));
    let report: serde_json::Value = serde_json::from_str(&out(&marked)).unwrap();
    assert_eq!(report["scores"]["arithmetic"]["of"], 100);
    assert!(report["scores"]["sort"].is_null());
    assert_eq!(code(&run(&["eval", "--task", "arithmetic", "--at-least", "1"])), 1);
}

#[test]
fn memory_that_cannot_be_had_is_said_and_nothing_hangs() {
    for (kilobytes, model, part) in [
        (170_000, "builtin", "bytes of memory for weights"),
        (900_000, "builtin", "actors.decode.memory must be less: the system does not give"),
    ] {
        let limited = format!("ulimit -v {kilobytes} && exec timeout 100 {BIN} chat --model {model} hi");
        let mut shell = Command::new("sh");
        // How many threads there are, and what each sets aside, would depend on the machine.
        shell.args(["-c", &limited]).env("TOKIO_WORKER_THREADS", "1").env("MALLOC_ARENA_MAX", "1");
        let refused = shell.current_dir(root()).stdin(Stdio::null()).output().unwrap();
        assert_eq!(code(&refused), 2, "{kilobytes}: {}", err(&refused));
        assert!(err(&refused).contains(part), "{kilobytes}: {}", err(&refused));
    }
}

#[test]
fn cases_that_cannot_be_marked_are_refused() {
    for (args, part) in [
        (&["eval", "--task", "singing"][..], "no task \"singing\"; the cases have arithmetic, copy"),
        (&["eval", "kernels/tests/oracle/tiny-llama"], "eval.jsonl): name a file with --cases"),
        (&["eval", "--cases", "README.md"], "README.md:1: not a case"),
        (&["eval", "--at-least", "90"], "must be a number from 0 to 1"),
    ] {
        let refused = run(args);
        assert_eq!(code(&refused), 2, "{args:?}: {}", err(&refused));
        assert!(err(&refused).contains(part), "{args:?}: {}", err(&refused));
    }
}

#[test]
fn a_chat_is_answered_once_or_line_by_line() {
    let model = "kernels/tests/oracle/tiny-llama";
    let args = ["chat", "--model", model, "--temperature", "0", "--max-tokens", "8"];
    let once = run(&[&args[..], &["Hello"]].concat());
    assert_eq!(code(&once), 0, "{}", err(&once));
    let mut talk = Command::new(BIN)
        .args(args)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut talk.stdin.take().unwrap(), b"Hello\n\nHello again\n").unwrap();
    let talk = talk.wait_with_output().unwrap();
    assert_eq!(code(&talk), 0);
    assert!(out(&talk).starts_with(out(&once).as_str()), "{:?} {:?}", out(&talk), out(&once));
    assert_ne!(code(&run(&["chat", "--model", "no/such", "hi"])), 0);
    for (more, problem) in [(&[" "][..], "the prompt is empty"), (&["--image", "a.png", "hi"], "has no eyes")]
    {
        let said = run(&[&args[..], more].concat());
        assert!(code(&said) != 0 && err(&said).contains(problem), "{}", err(&said));
    }
}

#[test]
fn a_chat_is_sampled_as_its_flags_say() {
    let model = "kernels/tests/oracle/tiny-llama";
    let chat = |flags: &[&str]| {
        let said = run(&[&["chat", "--model", model, "--max-tokens", "24"], flags, &["Hello"]].concat());
        assert_eq!(code(&said), 0, "{flags:?}: {}", err(&said));
        out(&said)
    };
    let hot = ["--temperature", "1", "--min-p", "0.01", "--top-p", "1", "--presence-penalty", "-0.5"];
    let seeded = |seed: &str| chat(&[&hot[..], &["--seed", seed, "--repetition-penalty", "1.2"]].concat());
    assert_eq!(seeded("-3"), seeded("18446744073709551613"), "the same 64 bits");
    assert_ne!(seeded("-3"), seeded("4"));
    assert_ne!(chat(&["--logit-bias", "70=100"]), chat(&[]));
    let missing = run(&["chat", "--model", model, "--logit-bias", "999999=1", "Hello"]);
    assert!(code(&missing) != 0 && err(&missing).contains("logit_bias: token 999999"), "{}", err(&missing));
}

#[test]
fn a_model_is_measured_beside_the_machine() {
    let model = "kernels/tests/oracle/tiny-llama";
    let args = ["bench", model, "--prompt", "8", "--generate", "4", "--batch", "1,2", "--repeat", "2"];
    let told = run(&[&args[..], &["--depth", "4"]].concat());
    assert_eq!(code(&told), 0, "{}", err(&told));
    assert!(
        out(&told).contains("decode x 2 after 4") && out(&told).contains("peak memory"),
        "{}",
        out(&told)
    );
    let json = run(&[&args[..], &["--json", "--threads", "1", "--activations", "f32"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let positive = |field: &str| row[field].as_f64().is_some_and(|figure| figure > 0.0);
        assert!(
            ["tokens_per_second", "share_of_read", "share_of_arithmetic"].into_iter().all(positive),
            "{row}"
        );
        assert_eq!(row["runs_s"].as_array().unwrap().len(), 2);
    }
    assert!(json["threads"] == 1 && json["arithmetic"] == "f32", "{json}");
    let long = run(&["bench", model, "--prompt", "1000000"]);
    assert!(code(&long) == 2 && err(&long).contains("smaller --prompt"), "{}", err(&long));
    assert_eq!(code(&run(&["bench"])), 2);
    assert_eq!(code(&run(&["bench", model, "--threads", "0"])), 2);
}

#[test]
fn the_doctor_says_what_to_do_about_what_is_missing() {
    let told = run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(code(&told), if json["serves"] == true { 0 } else { 1 });
    let findings = json["findings"].as_array().unwrap();
    for name in
        ["cores", "kernels", "memory", "huge pages", "file descriptors", "port", "model cache", "GPUs"]
    {
        let finding = findings.iter().find(|finding| finding["name"] == name).unwrap();
        assert!(finding["state"] == "ok" || finding["do"].is_string(), "{finding}");
    }
    let lines = out(&run(&["doctor"]));
    assert!(lines.lines().count() >= findings.len() && lines.contains("kernels"), "{lines}");
}
