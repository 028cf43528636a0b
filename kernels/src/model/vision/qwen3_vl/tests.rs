//! Against stored pixels, block norms and embeddings, and against itself.

use super::super::stored::{Stored, difference, json, oracle, weights};
use super::*;
use crate::config::QwenImages;
use crate::config::settings::Settings;
use crate::cpu::CpuBackend;
use crate::model::load::object;
use crate::reference::ReferenceBackend;

/// Loaded eyes, the vectors that go with them as numbers and as text.
fn eyes() -> (Eyes, Stored, serde_json::Value) {
    let path = oracle("tiny-qwen3-vl").expect("stored");
    let (config, images) = (path.join("config.json"), path.join("preprocessor_config.json"));
    let (config_json, images_json) = (json(&config), json(&images));
    let settings = Settings::json(&images, object(&images, &images_json).expect("an object"));
    let images = QwenImages::from_json(&settings).expect("settings");
    let settings = Settings::json(&config, config_json["vision_config"].as_object().expect("an object"));
    let config = QwenEyes::from_json(&settings, images).expect("settings");
    let eyes = Eyes::load(&mut weights(&path), config).expect("loads");
    (eyes, Stored::open(&path.join("vision.safetensors")), json(&path.join("vision.json")))
}

/// The bytes of the image that stored values of patches `[patches, 3, 2, 16, 16]` were made of; columns of patches given.
fn pixels(values: &[f32], columns: usize) -> Vec<u8> {
    let (patches, width) = (values.len() / 1_536, columns * 16);
    let mut rgb = vec![0; patches * 256 * 3];
    for (patch, values) in values.chunks_exact(1_536).enumerate() {
        // Squares of two by two, in reading order.
        let (square, within) = (patch / 4, patch % 4);
        let row = square / (columns / 2) * 2 + within / 2;
        let column = square % (columns / 2) * 2 + within % 2;
        for (at, value) in values.iter().enumerate() {
            let (channel, y, x) = (at / 512, at % 256 / 16, at % 16);
            let byte = (value * 127.5 + 127.5).round() as u8;
            rgb[((row * 16 + y) * width + column * 16 + x) * 3 + channel] = byte;
        }
    }
    rgb
}

#[test]
fn stored_images_are_seen_as_stored() {
    let (eyes, numbers, vectors) = eyes();
    for image in vectors["images"].as_array().expect("images") {
        let name = image["name"].as_str().expect("a name");
        let size = |key: &str| image[key].as_u64().expect("a number") as u32;
        let plan = eyes.plan(size("width"), size("height")).expect("an image");
        let grid = [1, 2].map(|at| image["grid_thw"][at].as_u64().expect("a number") as u32);
        assert_eq!([plan.height / 16, plan.width / 16], grid, "{name}");
        assert_eq!((plan.grid, plan.tokens as u32), ((grid[0] / 2, grid[1] / 2), size("tokens")), "{name}");
        let resized = (plan.width, plan.height) != (size("width"), size("height"));
        assert_eq!(Some(resized), image["resized"].as_bool(), "{name}");
        let stored = |what: &str| numbers.floats(&format!("image.{name}.{what}"));
        let values = stored("pixel_values");
        let rgb = pixels(&values, grid[1] as usize);
        let image = Pixels { width: plan.width, height: plan.height, rgb: &rgb };
        assert_eq!(eyes.cut().run(image).values, values, "{name}: values of patches, to the bit");
        for backend in [&mut CpuBackend::new(2, &[]) as &mut dyn Backend, &mut ReferenceBackend] {
            let (mut norms, width) = (Vec::new(), eyes.tower.width());
            let seen = eyes.see(image, backend, &mut |_, x, _| {
                let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
                norms.extend(x.chunks_exact(width).map(norm));
            });
            let worst = difference(&norms, &stored("block_norms"));
            assert!(worst < 1e-4, "{name}: norms differ by {worst}");
            let mut all = vec![stored("embeddings")];
            all.extend((0..3).map(|level| stored(&format!("deepstack.{level}"))));
            for (level, want) in all.iter().enumerate() {
                let got: Vec<f32> =
                    seen.chunks_exact(4 * 64).flat_map(|token| &token[level * 64..][..64]).copied().collect();
                let worst = difference(&got, want);
                eprintln!("{name}, level {level}: {worst:e}");
                assert!(worst < 2e-5, "{name}, level {level}: embeddings differ by {worst}");
            }
        }
        let (two, one) = (&mut CpuBackend::new(2, &[]), &mut CpuBackend::new(1, &[]));
        let [two, one] = [two, one].map(|backend| eyes.encode(&plan, image, backend).expect("an image"));
        assert_eq!(two, one, "{name}: one thread");
    }
}

#[test]
fn no_plan_goes_beyond_its_bounds() {
    let (eyes, ..) = eyes();
    let mut sample = crate::check::Sample::new(12);
    let mut seen = 0;
    for _ in 0..20_000 {
        let [width, height] = [(); 2].map(|()| {
            let most = 2 << sample.below(13);
            1 + sample.below(most) as u32
        });
        let Ok(plan) = eyes.plan(width, height) else {
            assert!(width.max(height) > 200 * width.min(height), "{width} x {height}");
            continue;
        };
        seen += 1;
        assert_eq!((plan.width % 32, plan.height % 32), (0, 0), "{width} x {height}: {plan:?}");
        let pixels = plan.width * plan.height;
        // Where a side would be less than one token, it is one.
        let thin = plan.width.min(plan.height) == 32;
        assert!(pixels >= 4_096 && (pixels <= 36_864 || thin), "{width} x {height}: {plan:?}");
        let places = plan.width.max(plan.height) / 16;
        assert!((places as usize) < eyes.tower.rope.positions(), "{width} x {height}: {plan:?}");
    }
    assert!(seen > 10_000, "{seen}");
    assert!(eyes.plan(0, 3).is_err() && eyes.plan(3, 0).is_err());
}

#[test]
fn places_do_not_depend_on_where_one_begins() {
    let (eyes, ..) = eyes();
    let plan = |rows, columns| ImagePlan {
        width: 32 * columns,
        height: 32 * rows,
        tokens: (rows * columns) as usize,
        grid: (rows, columns),
    };
    let spans = [(4, plan(2, 3)), (10, plan(1, 5)), (20, plan(4, 2))];
    let all = eyes.turns(&spans, 0, 40);
    for first in 0..40 {
        let count = 40 - first as usize;
        assert_eq!(eyes.turns(&spans, first, count), all[first as usize..]);
    }
    assert_eq!(eyes.turns(&[], 7, 2), [[7; 3], [8; 3]]);
    // An image takes as many positions as its longer side has tokens.
    assert_eq!((all[9], all[10], all[14], all[15]), ([4, 5, 6], [7; 3], [7, 7, 11], [12; 3]));
    assert_eq!((all[27], all[28]), ([17, 20, 18], [21; 3]));
}
