//! Against the stored vectors, and against the numbers of the released model that are public.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;

use super::*;
use crate::weights::{Weights, safetensors as files_of};

fn oracle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/tiny-deepseek-v41")
}

/// A tensor of whole numbers.
fn whole(file: &SafeTensors<'_>, name: &str) -> Vec<i64> {
    let view = file.tensor(name).unwrap();
    let size = view.data().len() / view.shape().iter().product::<usize>();
    let number = |bytes: &[u8]| match size {
        4 => i64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        _ => i64::from_le_bytes(bytes.try_into().unwrap()),
    };
    view.data().chunks_exact(size).map(number).collect()
}

/// The hashes of a stored checkpoint, and the settings they come from.
fn opened(folder: &Path) -> Engram {
    let path = folder.join("config.json");
    let config = files::json(&path).unwrap();
    let settings = Settings::json(&path, config.as_object().unwrap());
    let text = settings.section("text_config").unwrap().unwrap();
    Engram::open(&text, 512).unwrap().unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn longs<T: Copy>(values: &[T]) -> Vec<i64>
where
    i64: TryFrom<T>,
{
    values.iter().map(|&value| i64::try_from(value).unwrap_or(-1)).collect()
}

const WINDOWS: [&str; 2] = ["w16", "w128"];

#[test]
fn tables_follow_from_the_settings_and_the_tokenizer() {
    for window in WINDOWS {
        let folder = oracle().join(format!("ckpt-{window}"));
        let engram = opened(&folder);
        let bytes = std::fs::read(folder.join("engram_tables.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(longs(&engram.classes), whole(&stored, "vocab_map"));
        let of_all =
            |values: fn(&Hash) -> Vec<u64>| longs(&engram.hashes.iter().flat_map(values).collect::<Vec<_>>());
        assert_eq!(of_all(|hash| hash.multipliers.clone()), whole(&stored, "multipliers"));
        let primes = of_all(|hash| hash.heads.iter().map(|(rows, _)| *rows).collect());
        assert_eq!(primes, whole(&stored, "primes"));
        assert_eq!((engram.table_of(0), engram.table_of(3)), (None, Some(1)));
    }
}

#[test]
fn tokens_name_the_rows_that_are_stored() {
    for window in WINDOWS {
        let engram = opened(&oracle().join(format!("ckpt-{window}")));
        let said = files::json(&oracle().join(format!("vectors-{window}.json"))).unwrap();
        let bytes = std::fs::read(oracle().join(format!("vectors-{window}.safetensors"))).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let tokens = ids(&said["prompts"]["300"]["tokens"]);
        let (mut ngrams, mut rows) = (Vec::new(), Vec::new());
        engram.ngrams(&[], &tokens, Some(505), &mut ngrams);
        assert_eq!(longs(&ngrams), whole(&stored, "p300.ngram_ids"));
        for layer in [1, 3] {
            engram.rows(layer, &ngrams, &mut rows);
            assert_eq!(longs(&rows), whole(&stored, &format!("p300.engram_rows.L{layer}")));
        }
        // An image in the middle; then the same however the tokens are cut.
        let tokens = ids(&said["vision"]["tokens"]);
        engram.ngrams(&[], &tokens, Some(505), &mut ngrams);
        assert_eq!(longs(&ngrams), whole(&stored, "vision.ngram_ids"));
        for cut in 0..tokens.len() {
            let (mut first, mut rest) = (Vec::new(), Vec::new());
            engram.ngrams(&[], &tokens[..cut], Some(505), &mut first);
            engram.ngrams(&tokens[cut.saturating_sub(3)..cut], &tokens[cut..], Some(505), &mut rest);
            assert_eq!([first, rest].concat(), ngrams, "cut at {cut}");
        }
    }
}

#[test]
fn rows_are_gathered_as_they_are_stored() {
    let folder = oracle().join("ckpt-w16");
    let engram = opened(&folder);
    let name = "layers.3.engram.embed.weight";
    let open = || Weights::new(&folder, files_of::open(&folder).unwrap(), None);
    let all = open().stored(name, 606, 16).unwrap().to_f32();
    let table = EngramRows::take(&mut open(), name, 606, 16).unwrap();
    let (mut ngrams, mut rows) = (Vec::new(), Vec::new());
    engram.ngrams(&[7, 8, 9], &[10, 11, 300], None, &mut ngrams);
    engram.rows(3, &ngrams, &mut rows);
    assert_eq!(rows.len(), 3 * engram.shape.rows_per_token());
    rows.extend([605, 0, 0]);
    table.fetch(&rows);
    table.fetch(&[usize::MAX, 606]);
    let mut values = vec![f32::NAN; rows.len() * 16];
    table.gather(&rows, &mut values);
    let want: Vec<f32> = rows.iter().flat_map(|row| &all[row * 16..][..16]).copied().collect();
    assert_eq!(values, want);
}

/// A folder of one table in FP8, of random bytes, an exponent for each eight values.
fn in_fp8(folder: &Path, rows: usize, width: usize) -> (Vec<u8>, Vec<u8>) {
    let mut sample = crate::check::Sample::new(4_110);
    let mut bytes = |count: usize, from: usize, below: usize| -> Vec<u8> {
        (0..count).map(|_| (from + sample.below(below)) as u8).collect()
    };
    let (codes, exponents) = (bytes(rows * width, 0, 0x7f), bytes(rows * width / 8, 1, 180));
    let view = |dtype, shape, bytes| safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap();
    let tensors = [
        ("t.weight", view(safetensors::Dtype::F8_E4M3, vec![rows, width], &codes)),
        ("t.scale", view(safetensors::Dtype::F8_E8M0, vec![rows, width / 8], &exponents)),
    ];
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    (codes, exponents)
}

#[test]
fn rows_of_eight_bits_have_a_power_of_two_for_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let (codes, exponents) = in_fp8(folder.path(), 40, 32);
    let mut weights = Weights::new(folder.path(), files_of::open(folder.path()).unwrap(), Some((32, 32)));
    let table = EngramRows::take(&mut weights, "t.weight", 40, 32).unwrap();
    assert_eq!((weights.taken(), table.width(), table.is_far()), ((40 * 32, 40 * 36), 32, false));
    weights.finish(|_| false).unwrap();
    let rows = [39, 0, 7, 7];
    let mut values = vec![0.0; rows.len() * 32];
    table.fetch(&rows);
    table.gather(&rows, &mut values);
    for (at, &value) in values.iter().enumerate() {
        let place = rows[at / 32] * 32 + at % 32;
        let (code, exponent) = (codes[place], i32::from(exponents[place / 8]));
        let (size, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
        let plain =
            if size == 0 { mantissa * 2_f64.powi(-6) } else { (1.0 + mantissa) * 2_f64.powi(size - 7) };
        assert_eq!(f64::from(value), plain * 2_f64.powi(exponent - 127), "{at}: {code:#x} {exponent}");
    }
}

#[test]
fn the_released_sizes_come_out() {
    let shape = EngramShape {
        layers: vec![1, 14],
        rows: vec![384_006_168, 384_016_682],
        longest: 4,
        heads: 8,
        width: 256,
        rows_per_head: 16_000_000,
        pad: 2,
        classes: 99_092,
    };
    let engram = Engram::new(shape, (0..99_092).collect());
    assert_eq!(engram.hashes.iter().map(Hash::rows).collect::<Vec<_>>(), engram.shape.rows);
    // No product overflows, and no row lies outside, with the largest classes.
    let (mut ngrams, mut rows) = (Vec::new(), Vec::new());
    engram.ngrams(&[], &[99_091; 8], None, &mut ngrams);
    for (layer, &count) in engram.shape.layers.iter().zip(&engram.shape.rows) {
        engram.rows(*layer, &ngrams, &mut rows);
        assert!(rows.iter().all(|&row| row < count));
    }
}

#[test]
fn settings_that_contradict_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let from = oracle().join("ckpt-w16");
    std::fs::copy(from.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let path = folder.path().join("config.json");
    let config = files::json(&from.join("config.json")).unwrap();
    let refused = |key: &str, value: Value| {
        let mut text = config["text_config"].as_object().unwrap().clone();
        text.insert(key.to_owned(), value);
        let error = Engram::open(&Settings::json(&path, &text), 512).unwrap_err();
        error.to_string().split_once(": ").unwrap().1.to_owned()
    };
    for (key, value, want) in [
        (
            "engram_compressed_vocab_size",
            445,
            "engram_compressed_vocab_size: is 445, the tokenizer has 446 classes",
        ),
        ("engram_pad_token_id", 512, "engram_pad_token_id: 512 is no token"),
        ("engram_vocab_size", 60, ""),
        ("engram_n_heads", 1, "engram_num_embeddings: is [434, 606], the heads have [199, 235] rows"),
        ("engram_max_ngram_size", 1, "engram_max_ngram_size: is less than two tokens"),
    ] {
        if want.is_empty() {
            // The first prime from here on is the same.
            let mut text = config["text_config"].as_object().unwrap().clone();
            text.insert(key.to_owned(), value.into());
            assert!(Engram::open(&Settings::json(&path, &text), 512).is_ok());
        } else {
            assert_eq!(refused(key, value.into()), want);
        }
    }
    assert_eq!(refused("engram_layer_ids", vec![3, 1].into()), "engram_layer_ids: [3, 1] are not ascending");
    assert_eq!(
        refused("engram_num_embeddings", vec![434].into()),
        "engram_num_embeddings: is [434], the heads have [434, 606] rows"
    );
}
