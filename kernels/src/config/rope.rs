//! How fast each pair of a head turns with the position, from the settings: plain, or slowed down for long texts.

use std::f64::consts::TAU;

use super::CONTEXT_MAX;
use super::settings::Settings;
use crate::error::Error;

/// Kinds of scaling that are built, for messages.
const KNOWN: &str = "default, linear, dynamic, llama3, yarn";

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
    Yarn(Yarn),
}

/// YaRN: pairs that turn slowly by a factor, fast ones not at all, a ramp between them; and all are stretched.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Yarn {
    /// What slow pairs are divided by.
    factor: f64,
    /// Positions the model was trained with first.
    original: f64,
    /// Fast: so many turns within the original positions, or more.
    fast: f64,
    /// Slow: so many turns, or fewer.
    slow: f64,
    /// The ends of the ramp are rounded to whole pairs.
    truncate: bool,
    /// Factor of queries and keys.
    stretch: f64,
    /// Factor of the scores that DeepSeek models have besides.
    score: f64,
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
        settings.must("rope.scaling.type", &["none", "linear", "yarn"])?;
        settings.must("rope.scaling.attn_factor", &["1"])?;
        if settings.text("rope.scaling.type")?.as_deref() == Some("yarn") {
            settings.ignore("rope.scaling.finetuned");
            return Ok(Rope { base, scaling: Scaling::Yarn(Yarn::from_gguf(settings)?) });
        }
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

    /// The same, but for ends of a ramp that are not rounded.
    pub fn untruncated(mut self) -> Rope {
        if let Scaling::Yarn(yarn) = &mut self.scaling {
            yarn.truncate = false;
        }
        self
    }

    /// Positions that the model reaches, if its settings name `context`: people add YaRN to settings without raising that.
    pub fn reach(&self, context: u32) -> u32 {
        let Scaling::Yarn(yarn) = &self.scaling else { return context };
        context.max((yarn.original * yarn.factor).min(CONTEXT_MAX as f64) as u32)
    }

    /// Factor of queries and keys when they turn.
    pub fn stretch(&self) -> f32 {
        if let Scaling::Yarn(yarn) = &self.scaling { yarn.stretch as f32 } else { 1.0 }
    }

    /// Factor of the scores besides, in the family that asks for it.
    pub fn score_factor(&self) -> f64 {
        if let Scaling::Yarn(yarn) = &self.scaling { yarn.score } else { 1.0 }
    }

    /// Radians per position of each of the `head_dim / 2` pairs.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let pairs = head_dim / 2;
        let frequency = |i: usize| self.base.powf(-(i as f64) / pairs as f64);
        if let Scaling::Yarn(yarn) = &self.scaling {
            let ramp = yarn.ramp(self.base, head_dim);
            return (0..pairs).map(|i| yarn.apply(frequency(i), i, ramp) as f32).collect();
        }
        (0..pairs).map(|i| self.scaling.apply(frequency(i)) as f32).collect()
    }
}

impl Yarn {
    /// From an object with the numbers.
    fn from_section(section: &Settings<'_>) -> Result<Yarn, Error> {
        let factor = section.float("factor")?;
        let (part, all) = (section.float_or("mscale", 0.0)?, section.float_or("mscale_all_dim", 0.0)?);
        let stretch = if part > 0.0 && all > 0.0 {
            grown(factor, part) / grown(factor, all)
        } else {
            grown(factor, 1.0)
        };
        Ok(Yarn {
            factor,
            original: section.float("original_max_position_embeddings")?,
            fast: section.float_or("beta_fast", 32.0)?,
            slow: section.float_or("beta_slow", 1.0)?,
            truncate: section.flag_or("truncate", true)?,
            stretch: section.float_or("attention_factor", stretch)?,
            score: grown(factor, all).powi(2),
        })
    }

    /// From GGUF metadata. Where it has a multiplier of the logarithm, that is a tenth of the two equal numbers that a
    /// folder's settings have instead, which then cancel in the stretch.
    fn from_gguf(settings: &Settings<'_>) -> Result<Yarn, Error> {
        settings.must("rope.scaling.yarn_ext_factor", &["1"])?;
        let key = |name: &str| format!("rope.scaling.{name}");
        let factor = settings.float(&key("factor"))?;
        let all = 10.0 * settings.float_or(&key("yarn_log_multiplier"), 0.0)?;
        let stretch = if all > 0.0 { 1.0 } else { grown(factor, 1.0) };
        Ok(Yarn {
            factor,
            original: settings.float(&key("original_context_length"))?,
            fast: settings.float_or(&key("yarn_beta_fast"), 32.0)?,
            slow: settings.float_or(&key("yarn_beta_slow"), 1.0)?,
            truncate: true,
            stretch: settings.float_or(&key("yarn_attn_factor"), stretch)?,
            score: grown(factor, all).powi(2),
        })
    }

    /// First and last pair of the ramp between fast and slow ones.
    fn ramp(&self, base: f64, head_dim: usize) -> (f64, f64) {
        // The pair that turns so often within the original positions.
        let pair = |turns: f64| head_dim as f64 * (self.original / (turns * TAU)).ln() / (2.0 * base.ln());
        let (mut low, mut high) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low.max(0.0), high.min(head_dim as f64 - 1.0))
    }

    /// The frequency of pair `i`, slowed down.
    fn apply(&self, frequency: f64, i: usize, (low, high): (f64, f64)) -> f64 {
        let width = if low == high { 0.001 } else { high - low };
        let slow = ((i as f64 - low) / width).clamp(0.0, 1.0);
        frequency * (1.0 - slow) + frequency / self.factor * slow
    }
}

/// How much longer queries and keys become where positions are `factor` times as many, by a strength.
fn grown(factor: f64, strength: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * strength * factor.ln() + 1.0 }
}

impl Scaling {
    /// From an object with `rope_type` (in older files `type`) and the numbers that go with it.
    fn from_section(section: &Settings<'_>) -> Result<Scaling, Error> {
        let key = if section.has("rope_type") { "rope_type" } else { "type" };
        match section.text(key)?.as_deref() {
            // The dynamic kind scales nothing up to the positions that the settings name, and further none are accepted.
            None | Some("default" | "dynamic") => Ok(Scaling::None),
            Some("yarn") => Ok(Scaling::Yarn(Yarn::from_section(section)?)),
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
            Scaling::None | Scaling::Yarn(_) => frequency,
            Scaling::Linear(factor) => frequency / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                let waves = original * frequency / TAU;
                let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}
