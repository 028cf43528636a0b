//! Every file of `good` and `bad` against the text stored beside it: what a good file resolves to, what a bad one is
//! told. `MILLSTREAM_REWRITE=1 cargo test -p millstream-topology` stores what comes out; read the difference then.

use std::fs;

use crate::stored::{HOST, all_good, compare, files, folder, good};
use millstream_topology::{HostFacts, Plan, check, diff, expand, laptop, parse, resolve};

/// The plan as text: its notes, its refusal, and the file with everything written out.
fn story(plan: &Plan) -> String {
    let mut out = format!("# plan {}\n", plan.id);
    for note in &plan.notes {
        out.push_str(&format!("# {note}\n"));
    }
    if let Some(refusal) = plan.refusal() {
        out.push_str(&format!("# serve: {refusal}\n"));
    }
    out.push_str(&expand(plan));
    out
}

#[test]
fn good_files_resolve_as_stored() {
    let mut wrong = Vec::new();
    for (file, text) in all_good() {
        let stored = folder("tests/good").join(&file).with_extension("txt");
        compare(&stored, &story(&good(&text, &file)), &mut wrong);
    }
    assert!(wrong.is_empty(), "{} files differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn bad_files_are_told_as_stored() {
    let mut wrong = Vec::new();
    let files = files("tests/bad");
    assert!(files.len() >= 50, "bad files: {}", files.len());
    for (file, text) in files {
        let stored = folder("tests/bad").join(&file).with_extension("txt");
        match check(&text, &file, &HOST) {
            Ok(_) => wrong.push(format!("{file} passes")),
            Err(problems) => compare(&stored, &format!("{problems}\n"), &mut wrong),
        }
    }
    assert!(wrong.is_empty(), "{} files differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_is_written_out_has_the_same_id() {
    for (file, text) in all_good() {
        let plan = good(&text, &file);
        let written = expand(&plan);
        // Whatever the machine: every default is written out.
        let again = check(&written, "expanded.toml", &HostFacts { cores: 1024, buckets: true })
            .unwrap_or_else(|problems| {
                panic!("{file} written out is bad:\n{problems}");
            });
        assert_eq!(again.id, plan.id, "{file}: {:?}", diff(&plan, &again));
        assert_eq!(diff(&plan, &again), [], "{file}");
        assert_eq!(expand(&again), written, "{file}");
    }
}

#[test]
fn a_bucket_is_noted_where_none_can_be_opened() {
    let text = format!("{}[cache]\ntiers = [{{ shared = \"s3://kv/here\" }}]\n", laptop("builtin"));
    let refused = |buckets| {
        let plan = check(&text, "mill.toml", &HostFacts { cores: 2, buckets }).unwrap();
        plan.refusal().unwrap_or_default()
    };
    assert_eq!(refused(true), "");
    assert!(refused(false).contains("without the feature cloud"), "{}", refused(false));
}

#[test]
fn only_what_is_not_built_is_refused() {
    for (name, built) in
        [("minimal", true), ("joined", true), ("split", true), ("two_groups", true), ("supernode", false)]
    {
        let path = folder("../examples/topologies").join(name).with_extension("toml");
        let plan = good(&fs::read_to_string(path).unwrap(), name);
        assert_eq!(plan.refusal().is_none(), built, "{name}");
        assert_eq!(plan.notes.is_empty(), built, "{name}");
    }
}

#[test]
fn the_id_does_not_depend_on_form() {
    let minimal = good(&laptop("builtin"), "a");
    let texts = [
        "model='builtin' # a comment\n\n\n[actors]\ndecode = {}\ngateway = {}\nprefill = {}\n",
        "[actors.decode]\n[actors.prefill]\nchunk_tokens = 0x100\n[actors.gateway]\nlisten = '127.0.0.1:8000'\n",
    ];
    assert_eq!(good(texts[0], "b").id, minimal.id);
    assert_eq!(good(&format!("model = \"\\u0062uiltin\"\n{}", texts[1]), "c").id, minimal.id);
    let other = good(&laptop("other"), "d");
    assert_ne!(other.id, minimal.id);
}

#[test]
fn changes_are_told_with_what_they_cost() {
    let split = "model = \"builtin\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\njoined = false\n";
    let other = split.replace("[actors.prefill]", "[actors.prefill]\nchunk_tokens = 512")
        + "[cache]\nreplay = \"bounded\"\nwindows = \"state\"\n[limits]\nrestarts = 9\n[[wires]]\nfrom = \"prefill.handover\"\nto = \"decode.handover\"\ncapacity = 8\n";
    let changes = |a: &str, b: &str| -> Vec<String> {
        diff(&good(a, "a"), &good(b, "b")).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        changes(split, &other),
        [
            "actors.prefill.chunk_tokens: 256 → 512 (restarts unit prefill)",
            "cache.replay: \"exact\" → \"bounded\" (starts anew)",
            "cache.windows: \"blocks\" → \"state\" (starts anew)",
            "limits.restarts: 5 → 9 (starts anew)",
            "wires.prefill.handover -> decode.handover: offer 64 local → offer 8 local (restarts units decode, prefill)",
        ]
    );
    let joined = changes(split, &laptop("builtin"));
    assert!(
        joined.contains(&"actors.decode.joined: false → true (restarts unit decode)".to_owned()),
        "{joined:#?}"
    );
    assert!(
        joined
            .iter()
            .any(|change| change.starts_with("wires.router.admit -> decode.admit: new, offer 512 local"))
    );
    assert!(joined.iter().any(|change| change.contains("→ gone")));
    assert_eq!(changes(split, split), [""; 0]);
}

#[test]
fn a_plan_goes_through_json() {
    for (file, text) in all_good() {
        let plan = good(&text, &file);
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan, "{file}");
    }
}

#[test]
fn parsing_and_resolving_apart_are_checking() {
    for (file, text) in all_good() {
        let plan = resolve(&parse(&text, &file).unwrap(), &HOST).unwrap();
        assert_eq!(plan, good(&text, &file), "{file}");
    }
}

#[test]
fn any_model_can_be_named() {
    for model in ["builtin", "a \"b\" \\ c", "\u{1b}[31m\n\t", "日本/x.gguf", "'"] {
        assert_eq!(good(&laptop(model), "laptop").model, model);
    }
}
