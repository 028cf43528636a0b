//! Settings of the eyes of models that have some: the part `vision_config` of `config.json`, and for some families the
//! settings of preparing images, which stand in a file of their own.

use super::settings::Settings;
use super::{HEAD_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::error::Error;

/// Bound of the sides of a patch and of what is merged.
const SIDE_MAX: usize = 1 << 10;
/// Bound of pixels and of tokens of an image.
const PIXELS_MAX: usize = 1 << 28;

/// What all towers have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TowerShape {
    pub layers: usize,
    /// Width of a token.
    pub width: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    pub heads: usize,
    /// Sides of a patch in pixels.
    pub patch: usize,
    /// So many by so many patches become one token of the text model.
    pub merge: usize,
    /// Pair `i` of `n` of either axis turns by `base^(-i / n)` radians per position.
    pub rope_base: f64,
}

impl TowerShape {
    /// Under the keys of a family: layers, heads, merge.
    fn from(settings: &Settings<'_>, [layers, heads, merge]: [&str; 3]) -> Result<TowerShape, Error> {
        let rope_base = match settings.section("rope_parameters")? {
            Some(section) => {
                section.must("rope_type", &["axial", "default"])?;
                section.float_or("rope_theta", 10_000.0)?
            }
            None => settings.float_or("rope_theta", 10_000.0)?,
        };
        let shape = TowerShape {
            layers: settings.count(layers, LAYERS_MAX)?,
            width: settings.count("hidden_size", WIDTH_MAX)?,
            intermediate: settings.count("intermediate_size", WIDTH_MAX)?,
            heads: settings.count(heads, WIDTH_MAX)?,
            patch: settings.count("patch_size", SIDE_MAX)?,
            merge: settings.count(merge, SIDE_MAX)?,
            rope_base,
        };
        let head = shape.width / shape.heads;
        let fits = shape.width.is_multiple_of(shape.heads) && head.is_multiple_of(4) && head <= HEAD_MAX;
        if !fits {
            let problem =
                format!("{} heads of {} values cannot turn by row and column", shape.heads, shape.width);
            return Err(settings.wrong(heads, problem));
        }
        Ok(shape)
    }

    /// Radians per position of each of the pairs of one axis.
    pub fn frequencies(&self) -> Vec<f32> {
        let pairs = self.width / self.heads / 4;
        (0..pairs).map(|i| self.rope_base.powf(-(i as f64) / pairs as f64) as f32).collect()
    }
}

/// Eyes of the family `deepseek_v41`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeepSeekEyes {
    pub tower: TowerShape,
    /// Tokens of an image, at most, with those that begin, part and end it.
    pub tokens_max: usize,
    /// Smaller images are enlarged.
    pub pixels_min: f64,
    /// Wider images are taken as if they were narrower.
    pub ratio_max: Option<f64>,
}

impl DeepSeekEyes {
    /// From the part `vision_config`.
    pub fn from_json(settings: &Settings<'_>) -> Result<DeepSeekEyes, Error> {
        let tower =
            TowerShape::from(settings, ["num_hidden_layers", "num_attention_heads", "downsample_ratio"])?;
        let tokens_max = settings.count("max_image_tokens", PIXELS_MAX)?;
        if tokens_max < 4 {
            let problem = format!("{tokens_max} tokens hold no image and what begins, parts and ends it");
            return Err(settings.wrong("max_image_tokens", problem));
        }
        let ratio_max = settings.has("max_wh_ratio").then(|| settings.float("max_wh_ratio")).transpose()?;
        let pixels_min =
            if settings.is_zero("min_pixels") { 0.0 } else { settings.float_or("min_pixels", 0.0)? };
        Ok(DeepSeekEyes { tower, tokens_max, pixels_min, ratio_max })
    }
}

/// Eyes of the family `qwen3_vl`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QwenEyes {
    pub tower: TowerShape,
    /// Width of the text model.
    pub out: usize,
    /// Times a patch repeats a picture.
    pub frames: usize,
    /// The table of positions has so many rows and columns.
    pub side: usize,
    /// Blocks whose tokens also enter the text model, ascending: the first behind its first layer, and so on.
    pub deep: Vec<usize>,
    pub images: QwenImages,
}

/// How the family `qwen3_vl` prepares images.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QwenImages {
    /// Smaller images are enlarged.
    pub pixels_min: usize,
    /// Larger images are made smaller.
    pub pixels_max: usize,
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

impl QwenEyes {
    /// From the part `vision_config`, and the settings of preparing images.
    pub fn from_json(settings: &Settings<'_>, images: QwenImages) -> Result<QwenEyes, Error> {
        settings.must("hidden_act", &["gelu_pytorch_tanh"])?;
        settings.must("in_channels", &["3"])?;
        let tower = TowerShape::from(settings, ["depth", "num_heads", "spatial_merge_size"])?;
        let positions = settings.count("num_position_embeddings", WIDTH_MAX)?;
        let side = positions.isqrt();
        if side * side != positions {
            return Err(settings.wrong("num_position_embeddings", format!("{positions} are no square")));
        }
        let deep: Vec<usize> =
            settings.numbers("deepstack_visual_indexes")?.into_iter().map(|block| block as usize).collect();
        if !deep.is_sorted_by(|a, b| a < b) || deep.last().is_some_and(|&last| last >= tower.layers) {
            let problem = format!("{deep:?} are no ascending blocks of {}", tower.layers);
            return Err(settings.wrong("deepstack_visual_indexes", problem));
        }
        let out = settings.count("out_hidden_size", WIDTH_MAX)?;
        let frames = settings.count_or("temporal_patch_size", 2, SIDE_MAX)?;
        Ok(QwenEyes { tower, out, frames, side, deep, images })
    }
}

impl QwenImages {
    /// Where no file says otherwise.
    pub const DEFAULT: QwenImages =
        QwenImages { pixels_min: 256 * 256, pixels_max: 4_096 * 4_096, mean: [0.5; 3], deviation: [0.5; 3] };

    /// From `preprocessor_config.json`, in the style of older files (`min_pixels`) and of newer ones (`size`).
    pub fn from_json(settings: &Settings<'_>) -> Result<QwenImages, Error> {
        settings.must("resample", &["3"])?;
        for always in ["do_resize", "do_rescale", "do_normalize"] {
            settings.must(always, &["true"])?;
        }
        let mut bounds = [QwenImages::DEFAULT.pixels_min, QwenImages::DEFAULT.pixels_max];
        if let Some(size) = settings.section("size")? {
            bounds[0] = size.count_or("shortest_edge", bounds[0], PIXELS_MAX)?;
            bounds[1] = size.count_or("longest_edge", bounds[1], PIXELS_MAX)?;
        }
        let pixels_min = settings.count_or("min_pixels", bounds[0], PIXELS_MAX)?;
        let pixels_max = settings.count_or("max_pixels", bounds[1], PIXELS_MAX)?;
        if pixels_min > pixels_max {
            return Err(settings.wrong("size", format!("from {pixels_min} to {pixels_max} pixels")));
        }
        let channels = |key: &str| match settings.numbers(key)?.as_slice() {
            [] => Ok([0.5; 3]),
            &[r, g, b] => Ok([r as f32, g as f32, b as f32]),
            _ => Err(settings.wrong(key, "is no list of three numbers".to_owned())),
        };
        let (mean, deviation) = (channels("image_mean")?, channels("image_std")?);
        if deviation.contains(&0.0) {
            return Err(settings.wrong("image_std", "holds a zero".to_owned()));
        }
        Ok(QwenImages { pixels_min, pixels_max, mean, deviation })
    }
}
