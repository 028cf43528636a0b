//! Models that are only looked at: everything is held against the settings, and nothing is read.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod released;
    #[expect(dead_code, reason = "other tests read stored numbers")]
    pub mod stored;
}

use fixtures::released::{self, Shape};
use fixtures::stored::oracle;
use millstream_kernels::{KvFormat, KvLayout, Survey, load, survey};

/// A survey of a folder of nothing but shapes.
fn surveyed(shards: &[Vec<Shape>]) -> Result<Survey, String> {
    let folder = tempfile::tempdir().unwrap();
    released::write(folder.path(), &released::config(), shards);
    survey(folder.path()).map_err(|error| error.to_string())
}

#[test]
fn the_released_model_fits_its_settings() {
    let shards = released::shards(&released::config());
    // As many as the released index names.
    assert_eq!(shards.iter().map(Vec::len).sum::<usize>(), 96_085);
    let Survey { facts, tensors } = surveyed(&shards).unwrap();
    assert_eq!(tensors.len(), 96_085);
    let bytes: u64 = shards.iter().flatten().map(released::size).sum();
    assert_eq!(tensors.values().map(|tensor| tensor.bytes).sum::<u64>(), bytes);
    let unused: Vec<_> = tensors.iter().filter(|(_, tensor)| !tensor.used).collect();
    assert!(unused.is_empty(), "{unused:?}");
    let used: u64 = tensors.values().filter(|tensor| tensor.used).map(|tensor| tensor.bytes).sum();
    assert_eq!(facts.bytes, used);
    let tables = tensors.iter().filter(|(name, _)| name.contains("engram.embed"));
    assert_eq!(tables.map(|(_, tensor)| tensor.bytes).sum::<u64>(), 202_758_032_400);
    // Three sources of pairs and one of single tokens, each of 512 numbers and 128 for the choice.
    let bytes = |format| KvLayout { format, ..facts.kv_layout(64) }.bytes_per_block() / 64;
    assert_eq!(bytes(KvFormat::F32), 640 * 4 * 5 / 2);
    assert_eq!(facts.context, 1 << 20);
}

#[test]
fn a_tensor_that_is_not_as_it_should_be_is_named() {
    let shards = released::shards(&released::config());
    let refused = |name: &str, change: &dyn Fn(&mut Shape), part: &str| {
        let mut shards = shards.clone();
        let tensor = shards.iter_mut().flatten().find(|(own, _, _)| own == name).unwrap();
        change(tensor);
        let error = surveyed(&shards).unwrap_err();
        assert!(error.contains(part), "no {part:?} in: {error}");
    };
    let expert = "layers.39.ffn.experts.383.w2.scale";
    refused(expert, &|tensor| tensor.2[0] -= 1, "w2.scale\" is F8_E8M0 [5119, 72], needed: [5120, 72]");
    refused(expert, &|tensor| tensor.1 = "BOOL", "w2.scale\"");
    refused(expert, &|tensor| tensor.0.push('d'), "no tensor \"layers.39.ffn.experts.383.w2");
    let table = "layers.14.engram.embed.weight";
    refused(table, &|tensor| tensor.2[0] -= 1, "is F8E4M3 [384016681, 256], needed: [384016682, 256]");
}

#[test]
fn what_is_seen_is_what_is_loaded() {
    let names = ["tiny-llama", "tiny-gemma3", "tiny-qwen3-moe", "tiny-gpt-oss-mxfp4", "tiny-deepseek-v3"];
    for name in names.into_iter().chain(["tiny-deepseek-v41/ckpt-w16"]) {
        let (seen, loaded) = (survey(&oracle(name)).unwrap(), load(&oracle(name)).unwrap());
        assert_eq!(format!("{:?}", seen.facts), format!("{:?}", loaded.model.facts()), "{name}");
    }
    let nothing = survey(&oracle("tiny-llama/nothing")).unwrap_err();
    assert!(nothing.to_string().contains("no config.json"), "{nothing}");
}
