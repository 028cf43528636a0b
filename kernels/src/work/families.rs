//! What layers of each family ask, from its settings.

use super::{EntryWork, ImageWork, LayerWork, Side, WorkFacts};
use crate::config::{
    DeepSeek, DeepSeekV41, Gemma3, GptOss, Llama, Mixture, Qwen2, Qwen3, Qwen3Moe, QwenEyes, Shape,
};

/// Attention with heads of their own for keys and values.
fn heads(shape: &Shape) -> LayerWork {
    let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    LayerWork {
        weights: (2 * shape.hidden * (queries + keys)) as f64,
        pair: (2 * queries) as f64,
        numbers: (2 * keys) as f64,
        ..LayerWork::default()
    }
}

/// A gated feed-forward layer of such a width.
fn gated(hidden: usize, width: usize) -> f64 {
    (3 * hidden * width) as f64
}

impl LayerWork {
    fn with_window(self, window: Option<u32>) -> LayerWork {
        LayerWork { window, ..self }
    }

    fn with_dense(self, shape: &Shape) -> LayerWork {
        LayerWork { weights: self.weights + gated(shape.hidden, shape.intermediate), ..self }
    }

    /// With experts and their router, and some that compute every token.
    fn with_mixture(self, hidden: usize, mixture: &Mixture, shared: usize) -> LayerWork {
        let one = gated(hidden, mixture.intermediate);
        LayerWork {
            weights: self.weights + (mixture.count * hidden) as f64 + shared as f64 * one,
            experts: mixture.per_token as f64 * one,
            experts_all: mixture.count as f64 * one,
            ..self
        }
    }
}

impl WorkFacts {
    fn with_head(mut self, shape: &Shape) -> WorkFacts {
        self.head = (shape.vocab.unwrap_or(0) * shape.hidden) as f64;
        self
    }

    fn with_mixture(mut self, mixture: &Mixture) -> WorkFacts {
        self.left_out = 1.0 - mixture.per_token as f64 / mixture.count as f64;
        self
    }

    /// With these eyes.
    pub(crate) fn with_image(mut self, image: Option<ImageWork>) -> WorkFacts {
        self.image = image;
        self
    }

    /// All layers alike: heads and a dense part.
    fn dense(shape: &Shape) -> WorkFacts {
        let layer = heads(shape).with_dense(shape);
        WorkFacts::of_layers(std::iter::repeat_n(layer, shape.layers)).with_head(shape)
    }
}

impl Llama {
    pub(crate) fn work(&self) -> WorkFacts {
        WorkFacts::dense(&self.shape)
    }
}

impl Qwen2 {
    pub(crate) fn work(&self) -> WorkFacts {
        WorkFacts::dense(&self.shape)
    }
}

impl Qwen3 {
    pub(crate) fn work(&self) -> WorkFacts {
        WorkFacts::dense(&self.shape)
    }

    pub(crate) fn work_with_eyes(&self, eyes: &QwenEyes) -> WorkFacts {
        self.work().with_image(Some(ImageWork::of_qwen(eyes)))
    }
}

impl Qwen3Moe {
    pub(crate) fn work(&self) -> WorkFacts {
        let shape = &self.shape;
        let layer = |&sparse: &bool| match sparse {
            true => heads(shape).with_mixture(shape.hidden, &self.mixture, 0),
            false => heads(shape).with_dense(shape),
        };
        WorkFacts::of_layers(self.sparse.iter().map(layer)).with_head(shape).with_mixture(&self.mixture)
    }
}

impl Gemma3 {
    pub(crate) fn work(&self) -> WorkFacts {
        let layer = |&sliding: &bool| {
            heads(&self.shape).with_dense(&self.shape).with_window(sliding.then_some(self.window))
        };
        WorkFacts::of_layers(self.sliding.iter().map(layer)).with_head(&self.shape)
    }
}

impl GptOss {
    pub(crate) fn work(&self) -> WorkFacts {
        let (shape, mixture) = (&self.shape, &self.mixture);
        let layer = |&sliding: &bool| {
            heads(shape).with_mixture(shape.hidden, mixture, 0).with_window(sliding.then_some(self.window))
        };
        WorkFacts::of_layers(self.sliding.iter().map(layer)).with_head(shape).with_mixture(mixture)
    }
}

impl DeepSeek {
    /// Attention runs in the space of the latent, which is key and value of all heads.
    pub(crate) fn work(&self) -> WorkFacts {
        let Shape { layers, hidden, heads, head_dim, .. } = self.shape;
        let (rank, turning, still) = (self.rank, self.turning, head_dim - self.turning);
        let queries = heads * head_dim;
        let query = self.query_rank.map_or(queries * hidden, |rank| rank * (hidden + queries));
        let latent = (rank + turning) * hidden + heads * rank * (still + self.value_dim);
        let attention = LayerWork {
            weights: (query + latent + hidden * heads * self.value_dim) as f64,
            pair: (heads * (turning + 2 * rank)) as f64,
            numbers: (turning + 2 * rank) as f64,
            ..LayerWork::default()
        };
        let layer = |layer: usize| match layer < self.dense_layers {
            true => attention.with_dense(&self.shape),
            false => attention.with_mixture(hidden, &self.mixture, self.shared),
        };
        WorkFacts::of_layers((0..layers).map(layer)).with_head(&self.shape).with_mixture(&self.mixture)
    }
}

impl DeepSeekV41 {
    /// `lookup` says of a layer how many rows its tokens look up, and how many values those have together.
    pub(crate) fn work(&self, lookup: impl Fn(usize) -> Option<(usize, usize)>) -> WorkFacts {
        let layer = |layer: usize| self.layer_work(layer, lookup(layer));
        let mut facts = WorkFacts::of_layers((0..self.shape.layers).map(layer));
        facts.narrows = self.window as u32;
        let (hidden, dim) = (self.shape.hidden, self.shape.head_dim);
        let keys = |drafter: &crate::config::Drafter| {
            hidden * (drafter.targets.len() * hidden + drafter.layers * dim)
        };
        facts.behind = self.drafter.as_ref().map_or(0, keys) as f64;
        facts.with_head(&self.shape).with_mixture(&self.mixture)
    }

    fn layer_work(&self, layer: usize, lookup: Option<(usize, usize)>) -> LayerWork {
        let Shape { hidden, heads, head_dim: dim, .. } = self.shape;
        let (rank, (groups, narrow), streams) = (self.query_rank, self.groups, self.streams);
        let attention = hidden * (rank + dim) + heads * dim * (rank + narrow) + hidden * groups * narrow;
        let mixes = 2 * streams * (2 + streams) * streams * hidden;
        let (index_heads, index_dim) = self.index_heads;
        let chooses = self.choosers.contains(&layer);
        let chooser = if chooses { index_heads * (index_dim * rank + hidden) } else { 0 };
        let (lookups, values) = lookup.unwrap_or_default();
        let ratio = self.ratios[layer];
        // A source of pairs has a gate too; what it makes of an entry is multiplied once an entry.
        let source = self.sources.contains(&layer);
        let early = values * (streams + 1) * hidden + if source { ratio * dim * hidden } else { 0 };
        let base = LayerWork {
            weights: (attention + mixes + chooser + early) as f64,
            early: early as f64,
            lookups: lookups as f64,
            window: Some(self.window as u32),
            pair: (2 * heads * dim) as f64,
            numbers: dim as f64,
            entries: (ratio > 0).then(|| self.entry_work(layer, chooses)),
            source: source.then_some((ratio as u32, (index_dim * dim) as f64)),
            side: self.side(layer),
            ..LayerWork::default()
        };
        base.with_mixture(hidden, &self.mixture, self.shared)
    }

    fn entry_work(&self, layer: usize, chooses: bool) -> EntryWork {
        let (heads, dim) = self.index_heads;
        let bound = self.candidates.as_ref().filter(|candidates| layer > candidates.layer);
        let looks = bound.map_or(u32::MAX, |bound| (bound.size * bound.kept) as u32);
        EntryWork {
            ratio: self.ratios[layer] as u32,
            chosen: self.chosen as u32,
            looks: if chooses { looks } else { 0 },
            score: (heads * dim) as f64,
            numbers: dim as f64,
        }
    }

    fn side(&self, layer: usize) -> Side {
        match self.first_decoder().map(|first| layer.cmp(&first)) {
            None | Some(std::cmp::Ordering::Less) => Side::Before,
            Some(std::cmp::Ordering::Equal) => Side::At,
            Some(std::cmp::Ordering::Greater) => Side::Behind,
        }
    }
}
