//! Qwen 3 VL: Qwen 3 with eyes. Its heads turn by time, row and column, and images enter its first layers as well as its
//! embeddings.

use std::sync::Arc;

use super::decoder::{Decoder, Layer};
use super::load::object;
use super::pass::Pass;
use super::source::{AttentionSettings, Source, Tokens};
use super::vision::qwen3_vl::Eyes;
use super::{Facts, Model, Row, Scratch, Vision};
use crate::backend::Backend;
use crate::config::settings::Settings;
use crate::config::{self, QwenEyes, QwenImages};
use crate::error::Error;
use crate::files;
use crate::kv::KvMemory;
use crate::op::RopeAxes;
use crate::work::WorkFacts;

/// A loaded model of the family.
struct Qwen3Vl {
    text: Decoder,
    axes: RopeAxes,
    eyes: Eyes,
}

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    let part = |key: &str| settings.section(key)?.ok_or_else(|| settings.wrong(key, "is missing".to_owned()));
    let text_settings = part("text_config")?;
    let tied = settings.has("tie_word_embeddings").then(|| settings.flag_or("tie_word_embeddings", false));
    let config = config::Qwen3Vl::from_json(&text_settings, tied.transpose()?)?;
    let eyes = QwenEyes::from_json(&part("vision_config")?, images(settings)?)?;
    let work = config.text.work_with_eyes(&eyes);
    source.root = "model.language_model";
    let (ends, begins) = (text_settings.tokens("eos_token_id")?, text_settings.tokens("bos_token_id")?);
    let known = std::mem::replace(&mut source.tokens, Box::new(|| Ok(Tokens::default())));
    source.tokens = Box::new(move || {
        let Tokens { bos, mut eos } = known()?;
        eos.extend(ends);
        eos.sort_unstable();
        eos.dedup();
        Ok(Tokens { bos: bos.or(begins.first().copied()), eos })
    });
    let shape = &config.text.shape;
    if eyes.out != shape.hidden || eyes.deep.len() > shape.layers {
        let problem = format!("{} values for layers of {}", eyes.out, shape.hidden);
        return Err(settings.wrong("vision_config.out_hidden_size", problem));
    }
    let Some(image) = settings.token("image_token_id")? else {
        return Err(settings.wrong("image_token_id", "is missing".to_owned()));
    };
    let ends = source.ends(shape, config.text.tied)?;
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let settings = AttentionSettings { norms: true, ..AttentionSettings::plain(shape) };
        layers.push(Layer::dense(&mut source, layer, shape, settings)?);
    }
    let rope = source.rope(&config.text.rope, shape.head_dim, shape.context)?;
    let axes = RopeAxes::new(rope.clone(), config.axes);
    let eyes = Eyes::load(&mut source.weights, eyes)?;
    let mut facts = source.finish(("qwen3_vl", work), shape, &ends, |_| false)?;
    facts.image_token = Some(image);
    let text = Decoder { facts, ends, rope, layers };
    Ok(Arc::new(Qwen3Vl { text, axes, eyes }))
}

/// What its steps ask, from the settings.
///
/// # Errors
/// [`Error::Config`], [`Error::Unsupported`].
pub(super) fn work(settings: &Settings<'_>) -> Result<WorkFacts, Error> {
    let part = |key: &str| settings.section(key)?.ok_or_else(|| settings.wrong(key, "is missing".to_owned()));
    let text = config::Qwen3Vl::from_json(&part("text_config")?, None)?.text;
    Ok(text.work_with_eyes(&QwenEyes::from_json(&part("vision_config")?, QwenImages::DEFAULT)?))
}

/// How images are prepared, from the files beside the settings.
fn images(settings: &Settings<'_>) -> Result<QwenImages, Error> {
    let path = settings.beside("preprocessor_config.json");
    if let Some(json) = files::json_if_any(&path)? {
        return QwenImages::from_json(&Settings::json(&path, object(&path, &json)?));
    }
    let path = settings.beside("processor_config.json");
    let Some(json) = files::json_if_any(&path)? else { return Ok(QwenImages::DEFAULT) };
    match Settings::json(&path, object(&path, &json)?).section("image_processor")? {
        Some(section) => QwenImages::from_json(&section),
        None => Ok(QwenImages::DEFAULT),
    }
}

impl Model for Qwen3Vl {
    fn facts(&self) -> &Facts {
        self.text.facts()
    }

    fn vision(&self) -> Option<&dyn Vision> {
        Some(&self.eyes)
    }

    fn forward(
        &self,
        step: &[Row<'_>],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        let mut pass = Pass::begin(self.facts(), step, kv, scratch, backend)?;
        pass.axes = Some(&self.axes);
        self.text.run(pass);
        Ok(())
    }
}
