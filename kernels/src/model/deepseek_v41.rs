//! DeepSeek-V4.1: several residual streams, windows beside few sources of compressed keys of which each token chooses
//! some, lookups by hashes of the newest tokens, and layers that draft further tokens.

mod attend;
mod compress;
mod engram;
mod parts;
mod pass;
mod scratch;
mod state;
mod weights;

pub(super) use scratch::StreamScratch;

use std::sync::Arc;

use super::parts::Ends;
use super::source::{Naming, Source};
use super::{CompressedFacts, Facts, Model, Row, Scratch, StateFacts};
use crate::backend::Backend;
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::kv::KvMemory;
use engram::Engram;
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
    if source.naming == Naming::Gguf {
        return Err(settings.unsupported("general.architecture", "deepseek_v41".to_owned(), "a folder"));
    }
    let config = config::DeepSeekV41::from_json(settings)?;
    let text = settings.section("text_config")?;
    let vocab = config.shape.vocab.unwrap_or_default();
    let engram = Engram::open(text.as_ref().unwrap_or(settings), vocab)?;
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
    let eyes = ["vision.", "aligner.", "image_"];
    let unused = |name: &str| eyes.iter().any(|eyes| name.starts_with(eyes));
    let facts = source.finish("deepseek_v41", &config.shape, &ends, unused)?;
    let facts = facts_of(facts, &config, &state);
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
        state,
        #[cfg(test)]
        masks,
    })
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
