//! `place`, as a person types it: the released shapes of DeepSeek-V4.1-Flash on a group of ranks, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "../kernels/tests/fixtures/released.rs"]
mod released;

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn place(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.arg("place").arg(folder).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_released_model_is_placed_on_64_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (config, shards) = (released::config(), released::shards(&released::config()));
    released::write(folder.path(), &config, &shards);
    let output = place(folder.path(), &["--ranks", "64", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let part = |wanted: fn(&str) -> bool| -> u64 {
        shards.iter().flatten().filter(|tensor| wanted(&tensor.0)).map(released::size).sum()
    };
    let (experts, tables) = (
        part(|name| name.contains(".experts.")),
        part(|name| name.contains(".embed.") && name.contains("engram")),
    );
    let rest = shards.iter().flatten().map(released::size).sum::<u64>() - experts - tables;
    for rank in json["ranks"].as_array().unwrap() {
        assert_eq!(rank["experts"], experts / 64);
        assert_eq!((rank["tables"].as_u64(), rank["rest"].as_u64()), (Some(0), Some(rest)));
    }
    assert_eq!(json["parts"]["lookup tables"]["bytes"], tables);
    assert_eq!(json["unused"]["tensors"], 0);
    assert_eq!(json["kv"][0]["bytes_per_token"], 6400.0);
    let output = place(folder.path(), &["--ranks", "8", "--tables", "split", "--rest", "split"]);
    let said = text(&output.stdout);
    println!("{said}");
    assert!(said.contains("96085 tensors as config.json asks for them"), "{said}");
    assert!(said.contains("ranks 0 to 7") || said.contains("rank 0 "), "{said}");
}

#[test]
fn a_folder_that_does_not_fit_its_settings_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = released::config();
    let mut shards = released::shards(&config);
    shards[3].retain(|(name, _, _)| name != "layers.2.attn.compressor.wkv.weight");
    released::write(folder.path(), &config, &shards);
    let output = place(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("no tensor \"layers.2.attn.compressor.wkv.weight\""), "{said}");
}
