//! Arguments of the operations, and the checks of their shapes. Every backend runs the same check once per operation,
//! so that no kernel has to look at a length again and a mistake of a model reads the same on every device.

mod sight;

pub use sight::{RopeAxes, Whole};
pub(crate) use sight::{check_axes, check_layer_norm, check_whole};

use crate::kv::{KvLayout, KvMemory};
use crate::matrix::Matrix;

/// What is applied to the gate of a feed-forward layer.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU by its tanh form: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`.
    GeluTanh,
    /// GELU by the error function: `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// `g / (1 + exp(-slope * g)) * (u + 1)` of the gate `g`, at most `limit`, and of what it gates, `u`, between `-limit`
    /// and `limit`: the gate of gpt-oss.
    ClampedSwiglu {
        /// Factor in the sigmoid.
        slope: f32,
        /// Bound of both sides.
        limit: f32,
    },
    /// `g / (1 + exp(-g)) * u` of the gate `g`, at most `limit`, and of what it gates, `u`, between `-limit` and `limit`.
    ClampedSilu {
        /// Bound of both sides.
        limit: f32,
    },
}

/// Which two values of a head turn together.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Pairing {
    /// Value `i` with value `i + rotated / 2`: the order of Hugging Face files (NeoX).
    Half,
    /// Value `2 i` with value `2 i + 1`: the order of llama weights in GGUF files.
    Adjacent,
}

/// Cosines and sines of rotary position embedding.
///
/// A table of all positions would take megabytes per layer kind. This one keeps angles of positions 0 to 255 and of the
/// multiples of 256, both computed in f64; the addition theorems give any other position to about 1e-7.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Number of pairs that turn.
    pairs: usize,
    /// Positions this table covers.
    positions: usize,
    /// `[256, 2, pairs]`: cosines, then sines, of positions 0 to 255.
    fine: Vec<f32>,
    /// `[positions / 256 rounded up, 2, pairs]`: the same of multiples of 256, times the scale of the table.
    coarse: Vec<f32>,
}

/// Positions per coarse step of a [`RopeTable`].
const COARSE: usize = 256;

impl RopeTable {
    /// The table for positions below `positions`, where pair `i` turns by `position * frequencies[i]` radians and is
    /// stretched by `scale` (1 unless a long-context method asks for more).
    pub fn new(frequencies: &[f32], scale: f32, positions: usize) -> RopeTable {
        let fine = turns(frequencies, 1.0, COARSE, 1);
        let coarse = turns(frequencies, f64::from(scale), positions.div_ceil(COARSE), COARSE);
        RopeTable { pairs: frequencies.len(), positions, fine, coarse }
    }

    /// Values of a head that turn: twice the number of frequencies.
    pub fn rotated(&self) -> usize {
        2 * self.pairs
    }

    /// Positions below this one are covered.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Writes the cosines and sines at `position` to `turn [2, rotated / 2]`.
    pub fn turn(&self, position: u32, turn: &mut [f32]) {
        let position = position as usize;
        let width = 2 * self.pairs;
        let (cos_a, sin_a) = self.fine[position % COARSE * width..][..width].split_at(self.pairs);
        let (cos_b, sin_b) = self.coarse[position / COARSE * width..][..width].split_at(self.pairs);
        let (cos, sin) = turn[..width].split_at_mut(self.pairs);
        for i in 0..self.pairs {
            cos[i] = cos_a[i] * cos_b[i] - sin_a[i] * sin_b[i];
            sin[i] = sin_a[i] * cos_b[i] + cos_a[i] * sin_b[i];
        }
    }

    /// Cosine and sine of one pair at `position`: those that [`RopeTable::turn`] writes.
    fn pair(&self, i: usize, position: u32) -> (f32, f32) {
        let (position, width) = (position as usize, 2 * self.pairs);
        let (fine, coarse) = (position % COARSE * width + i, position / COARSE * width + i);
        let (cos_a, sin_a) = (self.fine[fine], self.fine[fine + self.pairs]);
        let (cos_b, sin_b) = (self.coarse[coarse], self.coarse[coarse + self.pairs]);
        (cos_a * cos_b - sin_a * sin_b, sin_a * cos_b + cos_a * sin_b)
    }
}

/// `[count, 2, frequencies]`: scaled cosines and sines of the multiples of `step`.
fn turns(frequencies: &[f32], scale: f64, count: usize, step: usize) -> Vec<f32> {
    let mut table = Vec::with_capacity(count * 2 * frequencies.len());
    for n in 0..count {
        let angle = |f: &f32| (n * step) as f64 * f64::from(*f);
        table.extend(frequencies.iter().map(|f| (scale * angle(f).cos()) as f32));
        table.extend(frequencies.iter().map(|f| (scale * angle(f).sin()) as f32));
    }
    table
}

/// What attention needs besides its data. The heads of queries share those of keys in equal, consecutive groups.
#[derive(Copy, Clone, Debug)]
pub struct Attention<'a> {
    /// Layer whose keys and values are read.
    pub layer: usize,
    /// Heads of the queries; a multiple of the layout's `kv_heads`.
    pub heads: usize,
    /// Factor of the scores, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// A token sees this many positions, itself included; none: all up to itself.
    pub window: Option<u32>,
    /// A score for each head of queries that takes part in the softmax and has no value: weight that goes nowhere.
    pub sinks: Option<&'a [f32]>,
    /// The sequences of the step, in the order of their tokens.
    pub rows: &'a [AttentionRow<'a>],
}

impl Attention<'_> {
    /// Tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens).sum()
    }

    /// First position that the token at `position` of a row sees.
    pub fn first_seen(&self, row: &AttentionRow<'_>, position: usize) -> usize {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
        first.max(row.from as usize)
    }
}

/// One sequence's share of an attention call.
#[derive(Copy, Clone, Debug)]
pub struct AttentionRow<'a> {
    /// Position of its first token.
    pub start: u32,
    /// How many tokens, at consecutive positions.
    pub tokens: usize,
    /// No position before this one is seen; not behind `start`.
    pub from: u32,
    /// Its block table: position `p` lies in block `blocks[p / block_size]`. Blocks behind the window are not read.
    pub blocks: &'a [u32],
}

/// Checks the arguments of `embed`.
pub(crate) fn check_embed(table: &Matrix, tokens: &[u32], out: &[f32]) {
    assert_eq!(out.len(), tokens.len() * table.cols, "embed: out, for {} tokens of {table:?}", tokens.len());
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= table.rows) {
        panic!("embed: token {token} is outside of {table:?}");
    }
}

/// Checks the arguments of `matmul_many`.
pub(crate) fn check_matmul(x: &[f32], rows: usize, parts: &[(&Matrix, &mut [f32])]) {
    for (weight, out) in parts {
        assert_eq!(x.len(), rows * weight.cols, "matmul: x, for {rows} rows times {weight:?}");
        assert_eq!(out.len(), rows * weight.rows, "matmul: out, for {rows} rows times {weight:?}");
    }
}

/// Checks the arguments of `rms_norm`; `out` is the length of its output.
pub(crate) fn check_norm(x: &[f32], weight: &[f32], out: usize) {
    assert!(!weight.is_empty(), "rms_norm: no weight");
    assert!(x.len().is_multiple_of(weight.len()), "rms_norm: {} values, rows of {}", x.len(), weight.len());
    assert_eq!(out, x.len(), "rms_norm: out");
}

/// Checks the arguments of `rope` and gives the size of a head.
pub(crate) fn check_rope(x: &[f32], heads: usize, positions: &[u32], table: &RopeTable) -> usize {
    let count = positions.len() * heads;
    let head_dim = x.len().checked_div(count).unwrap_or(table.rotated());
    assert_eq!(x.len(), count * head_dim, "rope: x, for {} positions, {heads} heads", positions.len());
    assert!(table.rotated() <= head_dim, "rope: {} values turn, heads have {head_dim}", table.rotated());
    if let Some(position) = positions.iter().find(|&&position| position as usize >= table.positions()) {
        panic!("rope: position {position}, the table covers {}", table.positions());
    }
    head_dim
}

/// Cosines, then sines, of `positions`, to turn heads by: each angle is the product of position and frequency, rounded to
/// f32. `[positions, 2, frequencies]` in `turns`.
pub(crate) fn turns_of(positions: impl Iterator<Item = u32>, frequencies: &[f32], turns: &mut Vec<f32>) {
    turns.clear();
    for position in positions {
        let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
        turns.extend(angles.clone().map(|angle| angle.cos() as f32));
        turns.extend(angles.map(|angle| angle.sin() as f32));
    }
}

/// Checks the arguments of `turn` and gives the size of a head.
pub(crate) fn check_turn(x: &[f32], (tokens, heads): (usize, usize), turns: &[f32]) -> usize {
    let head_dim = x.len().checked_div(tokens * heads).unwrap_or(0);
    let rotated = turns.len().checked_div(tokens).unwrap_or(0);
    assert_eq!(x.len(), tokens * heads * head_dim, "turn: x, for {tokens} tokens, {heads} heads");
    assert_eq!(turns.len(), tokens * rotated, "turn: angles of {tokens} tokens");
    assert!(rotated <= head_dim && rotated.is_multiple_of(2), "turn: {rotated} values of {head_dim}");
    head_dim
}

/// Checks the arguments of `add_bias`.
pub(crate) fn check_bias(x: &[f32], bias: &[f32]) {
    assert!(!bias.is_empty(), "add_bias: no bias");
    assert!(x.len().is_multiple_of(bias.len()), "add_bias: {} values, rows of {}", x.len(), bias.len());
}

/// Checks the arguments of `matmul_heads`.
pub(crate) fn check_heads(x: &[f32], rows: usize, weights: &[Matrix], out: &[f32]) {
    let sizes = |weight: &Matrix| (weight.rows, weight.cols);
    let Some((outputs, cols)) = weights.first().map(sizes) else { panic!("matmul_heads: no heads") };
    assert!(
        weights.iter().all(|weight| sizes(weight) == (outputs, cols)),
        "matmul_heads: heads of one shape"
    );
    assert_eq!(x.len(), rows * weights.len() * cols, "matmul_heads: x, for {rows} rows");
    assert_eq!(out.len(), rows * weights.len() * outputs, "matmul_heads: out, for {rows} rows");
}

/// Checks the arguments of `gated` and `add`.
pub(crate) fn check_pair(op: &str, x: &[f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "{op}: both sides");
}

/// Checks the arguments of `attention`.
pub(crate) fn check_attention(args: &Attention<'_>, q: &[f32], kv: &KvMemory, out: &[f32]) {
    let KvLayout { layers, kv_heads, key_dim, value_dim, block_size, .. } = kv.layout();
    assert!(args.layer < layers, "attention: layer {} of {layers}", args.layer);
    assert!(args.heads.is_multiple_of(kv_heads), "attention: {} heads share {kv_heads}", args.heads);
    assert!(args.window != Some(0), "attention: a window of nothing");
    assert!(args.sinks.is_none_or(|sinks| sinks.len() == args.heads), "attention: a sink for each head");
    let heads = args.tokens() * args.heads;
    assert_eq!(q.len(), heads * key_dim, "attention: q, for {} tokens", args.tokens());
    assert_eq!(out.len(), heads * value_dim, "attention: out, for {} tokens", args.tokens());
    for (r, row) in args.rows.iter().enumerate().filter(|(_, row)| row.tokens > 0) {
        assert!(
            row.from <= row.start,
            "attention: row {r} starts at {}, sees from {} on",
            row.start,
            row.from
        );
        let end = row.start as usize + row.tokens;
        let (first, last) = (args.first_seen(row, row.start as usize) / block_size, end.div_ceil(block_size));
        assert!(
            last <= row.blocks.len(),
            "attention: row {r} ends at {end}, has {} blocks",
            row.blocks.len()
        );
        for &block in &row.blocks[first..last] {
            assert!((block as usize) < kv.blocks(), "attention: row {r}: block {block} of {}", kv.blocks());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_the_angle_of_its_position() {
        let frequencies: Vec<f32> = (0..32).map(|i| 10_000_f32.powf(-i as f32 / 32.0)).collect();
        let table = RopeTable::new(&frequencies, 1.25, 40_000);
        let mut turn = vec![0.0; 64];
        for position in [0, 1, 255, 256, 257, 4_095, 39_999] {
            table.turn(position, &mut turn);
            for (i, f) in frequencies.iter().enumerate() {
                let (sin, cos) = (f64::from(position) * f64::from(*f)).sin_cos();
                assert!((f64::from(turn[i]) - 1.25 * cos).abs() < 3e-7, "cosine {i} at {position}");
                assert!((f64::from(turn[32 + i]) - 1.25 * sin).abs() < 3e-7, "sine {i} at {position}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "embed: token 9 is outside of Matrix(F32 9 x 2)")]
    fn a_token_outside_of_the_table_is_named() {
        check_embed(&Matrix::from_f32(9, 2, &[0.0; 18]), &[3, 9], &[0.0; 4]);
    }
}
