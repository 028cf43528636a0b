//! How fast each pair of a head turns with the position, from the settings: plain, or slowed down for long texts.

use std::f64::consts::TAU;

use super::settings::Settings;
use crate::error::Error;

/// Kinds of scaling that are built, for messages.
const KNOWN: &str = "default, linear, llama3";

/// Settings of rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    /// Pair `i` of `n` turns by `base^(-i / n)` radians per position.
    pub base: f64,
    pub scaling: Scaling,
}

/// What slows the turning down.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scaling {
    /// Nothing.
    None,
    /// Every pair by this factor.
    Linear(f64),
    /// Pairs whose wave is long, by `factor`; those whose wave is short not at all; in between, smoothly.
    Llama3 {
        factor: f64,
        /// Long: the original context holds fewer waves than this.
        low: f64,
        /// Short: it holds more than this.
        high: f64,
        /// Positions the model was trained with first.
        original: f64,
    },
}

impl Rope {
    /// From `config.json`: `rope_parameters` (transformers 5) or `rope_scaling` beside a key for the base.
    pub fn from_json(settings: &Settings<'_>, base_key: &str, base: f64) -> Result<Rope, Error> {
        let base = settings.float_or(base_key, base)?;
        if let Some(parameters) = settings.section("rope_parameters")? {
            return Rope::from_section(&parameters, base);
        }
        let scaling = settings.section("rope_scaling")?;
        let scaling = scaling.map_or(Ok(Scaling::None), |section| Scaling::from_section(&section))?;
        Ok(Rope { base, scaling })
    }

    /// The same where layers of each kind have their own. Older files scale only the layers that see everything.
    pub fn of_layers(settings: &Settings<'_>, kind: &str, base: (&str, f64)) -> Result<Rope, Error> {
        if let Some(parameters) = settings.section("rope_parameters")? {
            let Some(own) = parameters.section(kind)? else {
                return Err(parameters.wrong(kind, "is missing".to_owned()));
            };
            return Rope::from_section(&own, base.1);
        }
        if kind == "full_attention" {
            return Rope::from_json(settings, base.0, base.1);
        }
        Ok(Rope { base: settings.float_or(base.0, base.1)?, scaling: Scaling::None })
    }

    /// From GGUF metadata. The scaling of Llama 3 is a tensor there (`rope_freqs.weight`).
    pub fn from_gguf(settings: &Settings<'_>) -> Result<Rope, Error> {
        let base = settings.float_or("rope.freq_base", 10_000.0)?;
        settings.must("rope.scaling.type", &["none", "linear"])?;
        settings.must("rope.scaling.attn_factor", &["1"])?;
        settings.ignore("rope.scaling.original_context_length");
        settings.ignore("rope.scaling.finetuned");
        let key = if settings.has("rope.scale_linear") { "rope.scale_linear" } else { "rope.scaling.factor" };
        let factor = settings.float_or(key, 1.0)?;
        let off = settings.text("rope.scaling.type")?.as_deref() == Some("none");
        let scaling = if off || factor == 1.0 { Scaling::None } else { Scaling::Linear(factor) };
        Ok(Rope { base, scaling })
    }

    /// From an object that holds base and scaling.
    fn from_section(section: &Settings<'_>, base: f64) -> Result<Rope, Error> {
        section.must("partial_rotary_factor", &["1"])?;
        Ok(Rope { base: section.float_or("rope_theta", base)?, scaling: Scaling::from_section(section)? })
    }

    /// Radians per position of each of the `head_dim / 2` pairs.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let pairs = head_dim / 2;
        let frequency = |i: usize| self.base.powf(-(i as f64) / pairs as f64);
        (0..pairs).map(|i| self.scaling.apply(frequency(i)) as f32).collect()
    }
}

impl Scaling {
    /// From an object with `rope_type` (in older files `type`) and the numbers that go with it.
    fn from_section(section: &Settings<'_>) -> Result<Scaling, Error> {
        let key = if section.has("rope_type") { "rope_type" } else { "type" };
        match section.text(key)?.as_deref() {
            None | Some("default") => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear(section.float("factor")?)),
            Some("llama3") => {
                let (low, high) = (section.float("low_freq_factor")?, section.float("high_freq_factor")?);
                if low >= high {
                    return Err(section.wrong("high_freq_factor", format!("{high} is not above {low}")));
                }
                let original = section.float("original_max_position_embeddings")?;
                Ok(Scaling::Llama3 { factor: section.float("factor")?, low, high, original })
            }
            Some(other) => Err(section.unsupported(key, other.to_owned(), KNOWN)),
        }
    }

    /// A frequency, slowed down.
    fn apply(&self, frequency: f64) -> f64 {
        match *self {
            Scaling::None => frequency,
            Scaling::Linear(factor) => frequency / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                let waves = original * frequency / TAU;
                let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}
