//! A vision transformer: patches of an image become tokens, which look at each other in blocks of attention and
//! feed-forward layers. What comes before and behind it is each family's own.

use super::super::parts::{FeedForward, Linear, Norm};
use crate::backend::Backend;
use crate::op::{Activation, RopeAxes, Whole};

/// The layers of a family's eyes.
pub(super) struct Tower {
    /// `[width, values of a patch]`.
    pub patch: Linear,
    pub blocks: Vec<Block>,
    pub heads: usize,
    /// How queries and keys turn by row and column.
    pub rope: RopeAxes,
}

/// One layer.
pub(super) struct Block {
    pub before_attention: TowerNorm,
    /// `[width, width]`.
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    pub before_feed_forward: TowerNorm,
    pub feed_forward: TowerFeedForward,
}

/// Norms of the two kinds.
pub(super) enum TowerNorm {
    Rms(Norm),
    Layer(LayerNorm),
}

/// Layer norm.
pub(super) struct LayerNorm {
    /// Factors `[width]`.
    pub weight: Vec<f32>,
    /// Added behind them.
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub eps: f32,
}

/// What is computed of each token by itself.
pub(super) enum TowerFeedForward {
    /// Two products, with something between them.
    Plain { up: Linear, activation: Activation, down: Linear },
    /// With a gate.
    Gated(FeedForward),
}

/// An image as a tower takes it.
pub(super) struct Patches {
    /// `[patches, values of a patch]`.
    pub values: Vec<f32>,
    /// Of each patch: time (0), row, column.
    pub places: Vec<[u32; 3]>,
}

/// Is shown what the tokens `[patches, width]` are behind each block.
pub(super) type Tap<'a> = dyn FnMut(usize, &[f32], &mut dyn Backend) + 'a;

impl Tower {
    /// Values of a token.
    pub fn width(&self) -> usize {
        self.patch.weight.rows
    }

    /// Tokens `[patches, width]` behind all blocks. `start` is added to them before the first one, where there is any.
    pub fn run(
        &self,
        patches: &Patches,
        start: Option<&[f32]>,
        backend: &mut dyn Backend,
        tap: &mut Tap<'_>,
    ) -> Vec<f32> {
        let count = patches.places.len();
        let mut x = self.patch.apply(&patches.values, count, backend);
        if let Some(start) = start {
            backend.add(&mut x, start);
        }
        for (index, block) in self.blocks.iter().enumerate() {
            let mut y = x.clone();
            block.before_attention.apply(&mut y, backend);
            let y = self.attend(block, &y, &patches.places, backend);
            backend.add(&mut x, &y);
            let mut y = x.clone();
            block.before_feed_forward.apply(&mut y, backend);
            let y = block.feed_forward.apply(&y, count, backend);
            backend.add(&mut x, &y);
            tap(index, &x, backend);
        }
        x
    }

    /// Attention of a block.
    fn attend(&self, block: &Block, y: &[f32], places: &[[u32; 3]], backend: &mut dyn Backend) -> Vec<f32> {
        let (count, heads) = (places.len(), self.heads);
        let [mut q, mut k, v] =
            [&block.query, &block.key, &block.value].map(|linear| linear.apply(y, count, backend));
        backend.rope_axes(&mut q, heads, places, &self.rope);
        backend.rope_axes(&mut k, heads, places, &self.rope);
        let scale = ((self.width() / heads) as f64).powf(-0.5) as f32;
        let mut attended = vec![0.0; y.len()];
        let args = Whole { heads, scale, q: &q, k: &k, v: &v };
        backend.attention_whole(&args, count, &mut attended);
        block.output.apply(&attended, count, backend)
    }
}

impl Linear {
    /// The products of `count` rows, and what is added to them.
    pub(super) fn apply(&self, x: &[f32], count: usize, backend: &mut dyn Backend) -> Vec<f32> {
        let mut out = vec![0.0; count * self.weight.rows];
        backend.matmul_tall(x, count, &self.weight, &mut out);
        if let Some(bias) = &self.bias {
            backend.add_bias(&mut out, bias);
        }
        out
    }
}

impl TowerNorm {
    /// Norm of each row, in place.
    pub(super) fn apply(&self, x: &mut [f32], backend: &mut dyn Backend) {
        match self {
            TowerNorm::Rms(norm) => backend.rms_norm_in_place(x, &norm.weight, norm.eps),
            TowerNorm::Layer(norm) => norm.apply(x, backend),
        }
    }
}

impl LayerNorm {
    /// Norm of each row, in place.
    pub(super) fn apply(&self, x: &mut [f32], backend: &mut dyn Backend) {
        backend.layer_norm_in_place(x, (&self.weight, &self.bias), self.eps);
    }
}

impl TowerFeedForward {
    /// The layer of `count` rows.
    fn apply(&self, y: &[f32], count: usize, backend: &mut dyn Backend) -> Vec<f32> {
        match self {
            TowerFeedForward::Plain { up, activation, down } => {
                let mut wide = up.apply(y, count, backend);
                backend.activate(&mut wide, *activation);
                down.apply(&wide, count, backend)
            }
            TowerFeedForward::Gated(part) => {
                let (mut gate, mut up) = (vec![0.0; count * part.gate.rows], vec![0.0; count * part.up.rows]);
                backend.matmul_tall(y, count, &part.gate, &mut gate);
                backend.matmul_tall(y, count, &part.up, &mut up);
                backend.gated(&mut gate, &up, part.activation);
                let mut out = vec![0.0; count * part.down.rows];
                backend.matmul_tall(&gate, count, &part.down, &mut out);
                out
            }
        }
    }
}
