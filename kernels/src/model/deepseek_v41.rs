//! DeepSeek-V4.1: several residual streams, windows beside few sources of compressed keys of which each token chooses
//! some, lookups by hashes of the newest tokens, and layers that draft further tokens.

mod attend;
mod compress;
mod draft;
mod engram;
mod narrow;
mod parts;
mod pass;
mod refuse;
mod scratch;
mod state;
mod weights;

pub(super) use scratch::StreamScratch;

use std::sync::Arc;

use super::parts::Ends;
use super::source::Source;
use super::vision::deepseek_v41::Eyes;
use super::{CompressedFacts, Drafter, Facts, Model, Row, Scratch, StateFacts, Vision};
use crate::backend::Backend;
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::kv::KvMemory;
use crate::work::{ImageWork, WorkFacts};
use engram::{Engram, EngramShape};
use parts::{Block, DraftPart};
use pass::Streams;
use state::{SPARE, State};
use weights::Taker;

/// A loaded model.
pub(super) struct DeepSeekV41 {
    facts: Facts,
    config: config::DeepSeekV41,
    ends: Ends,
    layers: Vec<Block>,
    drafts: Option<DraftPart>,
    engram: Option<Engram>,
    /// Frequencies that heads turn by: in layers that see their window only, and in the others.
    frequencies: [Vec<f32>; 2],
    /// The first layer that needs the newest tokens of a prompt only.
    first_decoder: Option<usize>,
    eyes: Option<Eyes>,
    state: State,
    /// Rows that need not be computed are, and only not seen.
    #[cfg(test)]
    masks: bool,
}

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    Ok(Arc::new(open(source, settings)?))
}

fn open(mut source: Source, settings: &Settings<'_>) -> Result<DeepSeekV41, Error> {
    let config = config::DeepSeekV41::from_json(settings)?;
    let text = settings.section("text_config")?;
    let vocab = config.shape.vocab.unwrap_or_default();
    let of_engram = text.as_ref().unwrap_or(settings);
    let engram = match source.weights.is_noting() {
        true => Engram::outline(of_engram)?,
        false => Engram::open(of_engram, vocab)?,
    };
    let mut taker = Taker { source: &mut source, config: &config, engram: engram.as_ref() };
    let ends = taker.ends()?;
    let layers = (0..config.shape.layers).map(|layer| taker.layer(layer)).collect::<Result<Vec<_>, _>>()?;
    let drafts = config.drafter.as_ref().map(|drafter| taker.drafts(drafter)).transpose()?;
    let state = State {
        window: config.window,
        dim: config.shape.head_dim,
        rings: config.shape.layers + drafts.as_ref().map_or(0, |drafts| drafts.blocks.len()),
        paired: config.sources.iter().filter(|&&source| config.ratios[source] == 2).count(),
    };
    let (plain, slowed) = &config.ropes;
    let frequencies = [plain.frequencies(config.turning), slowed.frequencies(config.turning)];
    let eyes = settings.section("vision_config")?;
    let eyes = eyes.map(|eyes| Eyes::load(&mut source.weights, &eyes, config.shape.hidden)).transpose()?;
    let own = ["vision.", "aligner.", "image_"];
    let unused = |name: &str| eyes.is_none() && own.iter().any(|own| name.starts_with(own));
    let facts = source.finish(("deepseek_v41", work(settings)?), &config.shape, &ends, unused)?;
    let facts = facts_of(facts, &config, &state);
    let facts = Facts { image_token: facts.image_token.filter(|_| eyes.is_some()), ..facts };
    let first_decoder = config.first_decoder();
    #[cfg(test)]
    let masks = false;
    Ok(DeepSeekV41 {
        facts,
        config,
        ends,
        layers,
        drafts,
        engram,
        frequencies,
        first_decoder,
        eyes,
        state,
        #[cfg(test)]
        masks,
    })
}

/// What its steps ask, from the settings.
///
/// # Errors
/// [`Error::Config`], [`Error::Unsupported`].
pub(super) fn work(settings: &Settings<'_>) -> Result<WorkFacts, Error> {
    let config = config::DeepSeekV41::from_json(settings)?;
    let text = settings.section("text_config")?;
    let tables = EngramShape::from_settings(text.as_ref().unwrap_or(settings))?;
    let lookup = |layer: usize| {
        let tables = tables.as_ref().filter(|tables| tables.layers.contains(&layer))?;
        Some((tables.rows_per_token(), tables.rows_per_token() * tables.width))
    };
    let eyes =
        settings.section("vision_config")?.map(|eyes| config::DeepSeekEyes::from_json(&eyes)).transpose()?;
    let image = eyes.map(|eyes| ImageWork::of_deepseek(&eyes, config.shape.hidden));
    Ok(config.work(lookup).with_image(image))
}

/// What is known of the model besides what all have.
fn facts_of(facts: Facts, config: &config::DeepSeekV41, state: &State) -> Facts {
    let window = state.window as u32;
    Facts {
        key_dim: config.index_heads.1,
        value_dim: state.dim,
        image_token: config.image_token,
        state: Some(StateFacts {
            window,
            exact_replay: config.shape.layers as u32 * window,
            decoder_keep: config.first_decoder().map(|_| window + SPARE as u32),
            rewind: SPARE as u32,
        }),
        compressed: Some(CompressedFacts {
            sources: config.sources.len(),
            paired: state.paired,
            state: state.numbers(),
        }),
        ..facts
    }
}

impl Model for DeepSeekV41 {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn vision(&self) -> Option<&dyn Vision> {
        self.eyes.as_ref().map(|eyes| eyes as &dyn Vision)
    }

    fn drafter(&self) -> Option<&dyn Drafter> {
        self.drafts.as_ref().map(|_| self as &dyn Drafter)
    }

    fn forward(
        &self,
        step: &[Row<'_>],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        let mut pass = Streams::begin(self, step, kv, scratch, backend)?;
        pass.embed(step);
        for (index, layer) in self.layers.iter().enumerate() {
            pass.layer(index, layer);
        }
        if let Some(drafts) = &self.drafts {
            pass.draft_keys(drafts);
        }
        pass.finish();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
