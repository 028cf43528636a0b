//! Against stored spans and layouts, and against itself.

use super::super::stored::{Stored, difference, json, oracle, weights};
use super::*;
use crate::config::settings::Settings;
use crate::cpu::CpuBackend;
use crate::reference::ReferenceBackend;

/// The stored models, of which one is always there.
const STORED: [&str; 2] = ["w16", "w128"];

/// Loaded eyes, the vectors that go with them as numbers and as text.
fn eyes(stored: &str) -> Option<(Eyes, Stored, serde_json::Value)> {
    let folder = oracle("tiny-deepseek-v41")?;
    let (path, numbers) = (folder.join(format!("ckpt-{stored}")), format!("vectors-{stored}"));
    if !path.join("model.safetensors").exists() {
        return None;
    }
    let config = json(&path.join("config.json"));
    let section = config["vision_config"].as_object().expect("an object");
    let settings = Settings::json(&path.join("config.json"), section);
    let eyes = Eyes::load(&mut weights(&path), &settings, 64).expect("loads");
    let vectors = json(&folder.join(format!("{numbers}.json")));
    Some((eyes, Stored::open(&folder.join(format!("{numbers}.safetensors"))), vectors))
}

#[test]
fn the_stored_image_becomes_the_stored_span() {
    assert!(eyes("w16").is_some());
    for stored in STORED {
        let Some((eyes, numbers, vectors)) = eyes(stored) else { continue };
        let (shape, rgb) = numbers.bytes("vision.rgb");
        let (height, width) = (shape[0] as u32, shape[1] as u32);
        let plan = eyes.plan(width, height).expect("an image");
        assert_eq!((plan.width, plan.height), (width, height));
        let grid = &vectors["vision"]["grid_h_w_llm_h_w"];
        assert_eq!(
            [plan.grid.0, plan.grid.1].map(|n| Some(u64::from(n))),
            [grid[2].as_u64(), grid[3].as_u64()]
        );
        let want = numbers.floats("vision.span_rows");
        let image = Pixels { width, height, rgb: &rgb };
        let span = eyes.encode(&plan, image, &mut CpuBackend::new(2, &[])).expect("an image");
        assert_eq!(span.len(), plan.tokens * eyes.width());
        let slow = eyes.encode(&plan, image, &mut ReferenceBackend).expect("an image");
        let worst = [difference(&span, &want), difference(&slow, &want)];
        eprintln!("{stored}: span rows differ by {worst:?}");
        assert!(worst.iter().all(|&worst| worst < 2e-5), "span rows differ by {worst:?}");
        let one = eyes.encode(&plan, image, &mut CpuBackend::new(1, &[])).expect("an image");
        assert_eq!(one, span, "one thread");
    }
}

/// Holds a configuration to a table of layouts.
fn hold(config: &DeepSeekEyes, table: &serde_json::Value) {
    let number = |row: &serde_json::Value, at: usize| row[at].as_u64().expect("a number") as u32;
    for row in table.as_array().expect("a list") {
        let plan = layout(config, number(row, 0), number(row, 1)).expect("an image");
        let patch = config.tower.patch as u32;
        let got =
            [plan.width, plan.height, plan.height / patch, plan.width / patch, plan.grid.0, plan.grid.1];
        for (at, got) in got.into_iter().chain([plan.tokens as u32]).enumerate() {
            assert_eq!(got, number(row, at + 2), "column {at} of {row}");
        }
    }
}

#[test]
fn images_are_laid_out_as_stored() {
    let (eyes, _, vectors) = eyes("w16").expect("stored");
    hold(&eyes.config, &vectors["units"]["image_layout_tiny"]);
    let full = DeepSeekEyes { tokens_max: 1_024, pixels_min: 295_936.0, ..eyes.config.clone() };
    hold(&full, &vectors["units"]["image_layout_full_size"]);
    assert!(layout(&full, 0, 5).is_err() && layout(&full, 5, 0).is_err());
    let narrow = DeepSeekEyes { ratio_max: Some(2.0), ..full.clone() };
    assert_eq!(layout(&narrow, 4_000, 600).expect("fits"), layout(&full, 1_200, 600).expect("fits"));
}

#[test]
fn no_layout_goes_beyond_its_bounds() {
    let (eyes, ..) = eyes("w16").expect("stored");
    let mut sample = crate::check::Sample::new(11);
    for _ in 0..20_000 {
        let [width, height] = [(); 2].map(|()| {
            let most = 2 << sample.below(16);
            1 + sample.below(most) as u32
        });
        let plan = layout(&eyes.config, width, height).expect("an image");
        assert!(plan.tokens <= eyes.config.tokens_max, "{width} x {height}: {plan:?}");
        assert_eq!((plan.width % 14, plan.height % 14), (0, 0), "{width} x {height}: {plan:?}");
        let (rows, columns) = plan.grid;
        assert_eq!(plan.tokens as u32, rows * (columns + 1) + 2);
        let places = plan.width.max(plan.height) / 14;
        assert!((places as usize) < eyes.tower.rope.positions(), "{width} x {height}: {plan:?}");
    }
}

#[test]
fn an_image_of_another_size_is_refused() {
    let (eyes, ..) = eyes("w16").expect("stored");
    let plan = eyes.plan(70, 84).expect("an image");
    let rgb = vec![0; 70 * 84 * 3];
    let refused = |width, height, rgb: &[u8]| {
        let image = Pixels { width, height, rgb };
        eyes.encode(&plan, image, &mut ReferenceBackend).expect_err("another size").to_string()
    };
    assert_eq!(refused(84, 70, &rgb), "image: has 84 x 70 pixels, its plan 70 x 84");
    assert_eq!(refused(70, 84, &rgb[1..]), "image: has 17639 bytes, its size needs 17640");
}
