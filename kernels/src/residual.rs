//! Several residual streams instead of one (hyper-connections): how a part of a layer reads them, and how it writes to
//! them. Plain loops, a token at a time; the fast backends compute the same.

use crate::matrix::Matrix;

/// How mixes are made of the streams.
#[derive(Copy, Clone, Debug)]
pub struct Mixing<'a> {
    /// Streams of a token.
    pub streams: usize,
    /// `[streams * (2 + streams), streams * width]`: what to read with, what to write with, how streams go over into each
    /// other (from, to).
    pub weight: &'a Matrix,
    /// Factor of each of the three.
    pub scale: [f32; 3],
    /// Added to all.
    pub base: &'a [f32],
    /// Added to the mean square of the streams.
    pub eps: f32,
    /// Added where mixes are divided.
    pub small: f32,
    /// Times that rows and columns of the streams' transition are divided by their sums.
    pub rounds: usize,
}

/// Mixes of some tokens; grows to the largest step once.
#[derive(Clone, Debug, Default)]
pub struct Mixes {
    /// `[tokens, streams]`: with what the streams are read.
    pub read: Vec<f32>,
    /// `[tokens, streams]`: with what a result is written to them.
    pub write: Vec<f32>,
    /// `[tokens, streams, streams]`: what of each stream (outer) goes on in each (inner).
    pub carry: Vec<f32>,
    /// `[tokens, streams * (2 + streams)]`: what they are made of.
    pub(crate) raw: Vec<f32>,
}

impl Mixes {
    /// Exactly as many as tokens have.
    pub(crate) fn size(&mut self, tokens: usize, streams: usize) {
        self.read.resize(tokens * streams, 0.0);
        self.write.resize(tokens * streams, 0.0);
        self.carry.resize(tokens * streams * streams, 0.0);
        self.raw.resize(tokens * streams * (2 + streams), 0.0);
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let all = [&self.read, &self.write, &self.carry, &self.raw];
        all.iter().map(|buffer| buffer.capacity() * size_of::<f32>()).sum()
    }
}

/// Checks the arguments of `mix`; gives the number of tokens.
pub(crate) fn check_mix(args: &Mixing<'_>, x: &[f32]) -> usize {
    let outputs = args.streams * (2 + args.streams);
    assert!(args.streams > 0 && args.weight.cols > 0, "mix: no streams");
    assert!(
        args.weight.cols.is_multiple_of(args.streams),
        "mix: {:?} of {} streams",
        args.weight,
        args.streams
    );
    assert_eq!((args.weight.rows, args.base.len()), (outputs, outputs), "mix: outputs");
    assert!(x.len().is_multiple_of(args.weight.cols), "mix: {} values of {:?}", x.len(), args.weight);
    x.len() / args.weight.cols
}

/// Checks the arguments of `collapse`; gives the number of streams.
pub(crate) fn check_collapse(x: &[f32], read: &[f32], weight: &[f32], out: &[f32]) -> usize {
    assert!(!weight.is_empty() && out.len().is_multiple_of(weight.len()), "collapse: out");
    let tokens = out.len() / weight.len();
    let streams = read.len().checked_div(tokens).unwrap_or(1);
    assert_eq!(read.len(), tokens * streams, "collapse: mixes of {tokens} tokens");
    assert_eq!(x.len(), streams * out.len(), "collapse: {streams} streams of {tokens} tokens");
    streams
}

/// Checks the arguments of `spread`; gives the number of streams and the width of one.
pub(crate) fn check_spread(x: &[f32], y: &[f32], mixes: &Mixes) -> (usize, usize) {
    let streams = x.len().checked_div(y.len()).unwrap_or(1);
    assert_eq!(x.len(), streams * y.len(), "spread: streams");
    let tokens = mixes.write.len() / streams;
    let fits = mixes.write.len() == tokens * streams && mixes.carry.len() == tokens * streams * streams;
    assert!(fits && y.len().is_multiple_of(tokens.max(1)), "spread: mixes of {tokens} tokens");
    (streams, y.len() / tokens.max(1))
}

/// The mixes of one token, of the products with its streams and the factor of their norm.
pub(crate) struct OneMix<'a> {
    pub read: &'a mut [f32],
    pub write: &'a mut [f32],
    pub carry: &'a mut [f32],
}

/// Makes mixes of products.
#[inline(always)]
pub(crate) fn mix_row(args: &Mixing<'_>, factor: f32, raw: &[f32], out: OneMix<'_>) {
    let n = args.streams;
    let value = |i: usize, scale: f32| raw[i] * factor * scale + args.base[i];
    for i in 0..n {
        out.read[i] = sigmoid(value(i, args.scale[0])) + args.small;
        out.write[i] = 2.0 * sigmoid(value(n + i, args.scale[1]));
    }
    for (row, carry) in out.carry.chunks_exact_mut(n).enumerate() {
        for (i, carry) in carry.iter_mut().enumerate() {
            *carry = value((2 + row) * n + i, args.scale[2]);
        }
        let max = carry.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        carry.iter_mut().for_each(|x| *x = (*x - max).exp());
        let total: f32 = carry.iter().sum();
        carry.iter_mut().for_each(|x| *x = *x / total + args.small);
    }
    columns(out.carry, n, args.small);
    for _ in 1..args.rounds {
        for row in out.carry.chunks_exact_mut(n) {
            let by = 1.0 / (row.iter().sum::<f32>() + args.small);
            row.iter_mut().for_each(|x| *x *= by);
        }
        columns(out.carry, n, args.small);
    }
}

/// Divides columns by their sums.
#[inline(always)]
fn columns(carry: &mut [f32], n: usize, small: f32) {
    for column in 0..n {
        let total = carry[column..].iter().step_by(n).sum::<f32>() + small;
        carry[column..].iter_mut().step_by(n).for_each(|x| *x /= total);
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// What the streams of one token are read as.
#[inline(always)]
pub(crate) fn collapse_row(x: &[f32], read: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (x, &by) in x.chunks_exact(out.len()).zip(read) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out += by * x);
    }
}

/// Writes a result `y` to the streams of one token, by way of `old`, which is as long.
#[inline(always)]
pub(crate) fn spread_row(x: &mut [f32], y: &[f32], (write, carry): (&[f32], &[f32]), old: &mut [f32]) {
    old.copy_from_slice(x);
    let n = write.len();
    for (to, x) in x.chunks_exact_mut(y.len()).enumerate() {
        x.iter_mut().zip(y).for_each(|(x, y)| *x = write[to] * y);
        for (from, old) in old.chunks_exact(y.len()).enumerate() {
            let by = carry[from * n + to];
            x.iter_mut().zip(old).for_each(|(x, old)| *x += by * old);
        }
    }
}

/// What a lookup is to the streams of a token.
#[derive(Copy, Clone, Debug)]
pub struct Recall<'a> {
    /// Norms of streams `[streams, width]`, and of the keys they are compared with.
    pub norms: (&'a [f32], &'a [f32]),
    /// Streams of a token.
    pub streams: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
    /// Tokens that look nothing up; none at all if it is empty.
    pub skip: &'a [bool],
}

/// Checks the arguments of `recall`; gives the width of a stream.
pub(crate) fn check_recall(args: &Recall<'_>, x: &[f32], kv: &[f32]) -> usize {
    let all = args.norms.0.len();
    assert!(args.streams > 0 && all > 0 && all.is_multiple_of(args.streams), "recall: norms");
    assert_eq!(all, args.norms.1.len(), "recall: norms");
    assert!(x.len().is_multiple_of(all), "recall: streams");
    let (tokens, width) = (x.len() / all, all / args.streams);
    assert_eq!(kv.len(), tokens * (all + width), "recall: keys and values of {tokens} tokens");
    assert!(args.skip.is_empty() || args.skip.len() == tokens, "recall: which of {tokens} tokens");
    width
}

/// Adds to each stream of one token the value that was looked up, as far as stream and key are alike. `kv` holds a key for
/// each stream, then the value.
#[inline(always)]
pub(crate) fn recall_row(args: &Recall<'_>, x: &mut [f32], kv: &[f32]) {
    let width = x.len() / args.streams;
    let (keys, value) = kv.split_at(x.len());
    let norms = args.norms.0.chunks_exact(width).zip(args.norms.1.chunks_exact(width));
    for ((x, key), (xs, keys)) in x.chunks_exact_mut(width).zip(keys.chunks_exact(width)).zip(norms) {
        let norm = |v: &[f32]| {
            let squares = v.iter().fold(0.0_f32, |sum, v| sum + v * v);
            1.0 / (squares / width as f32 + args.eps).sqrt()
        };
        let (by_x, by_key) = (norm(x), norm(key));
        let mut dot = 0.0;
        for i in 0..width {
            dot += x[i] * by_x * xs[i] * (key[i] * by_key * keys[i]);
        }
        dot *= 1.0 / (width as f32).sqrt();
        let strength = dot.abs().max(1e-6).sqrt();
        // The sign of nothing is nothing.
        let gate = sigmoid(if dot == 0.0 { 0.0 } else { strength.copysign(dot) });
        x.iter_mut().zip(value).for_each(|(x, v)| *x += gate * v);
    }
}
