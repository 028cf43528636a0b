//! The table of operations a model is written against. It stands between the model families, which know shapes and
//! order, and the code that computes; another device is another implementation, held to [`crate::check`].

use crate::experts::{self, ExpertBuffers, Experts};
use crate::kv::KvMemory;
use crate::matrix::Matrix;
use crate::op::{self, Activation, Attention, Pairing, RopeAxes, RopeTable, Whole};
use crate::reference;
use crate::residual::{self, Mixes, Mixing, OneMix, Recall};
use crate::select::{self, Select};
use crate::windowed::{self, Lists, Windowed};

/// Computes operations on activations: plain row-major f32 slices.
///
/// What an implementation promises:
/// - A row's values are bit-identical whatever other rows share the call, however a prompt is cut into chunks, and
///   however many threads compute.
/// - Weights take part as the f32 values that [`Matrix::widen`] gives; products are summed in f32.
/// - Shapes that do not fit panic before anything is written: such a call is a bug.
pub trait Backend: Send {
    /// For logs and reports: which implementation this is, and what it uses of the machine.
    fn name(&self) -> &'static str;

    /// `out [tokens, table.cols]`: the rows of `table` that `tokens` number.
    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut [f32]);

    /// `out [rows, weight.rows]` = `x [rows, weight.cols]` times `weight` transposed.
    fn matmul(&mut self, x: &[f32], rows: usize, weight: &Matrix, out: &mut [f32]) {
        self.matmul_many(x, rows, &mut [(weight, out)]);
    }

    /// [`Backend::matmul`] of rows that are always many, such as the patches of an image: a product may widen its weights
    /// first. Sums may be in another order than there, which depends on the number of rows no more than there.
    fn matmul_tall(&mut self, x: &[f32], rows: usize, weight: &Matrix, out: &mut [f32]) {
        self.matmul(x, rows, weight, out);
    }

    /// [`Backend::matmul`] of the same `x` with several weights (query, key and value; gate and up) at once.
    fn matmul_many(&mut self, x: &[f32], rows: usize, parts: &mut [(&Matrix, &mut [f32])]);

    /// `out [rows, heads, outputs]` = `x [rows, heads, cols]`, each head times the transpose of its own weight; all
    /// weights are of one shape.
    fn matmul_heads(&mut self, x: &[f32], rows: usize, weights: &[Matrix], out: &mut [f32]) {
        op::check_heads(x, rows, weights, out);
        let (heads, cols, outputs) = (weights.len(), weights[0].cols, weights[0].rows);
        let (mut part, mut product) = (vec![0.0; rows * cols], vec![0.0; rows * outputs]);
        for (head, weight) in weights.iter().enumerate() {
            for (part, x) in part.chunks_exact_mut(cols).zip(x.chunks_exact(heads * cols)) {
                part.copy_from_slice(&x[head * cols..][..cols]);
            }
            self.matmul(&part, rows, weight, &mut product);
            for (product, out) in product.chunks_exact(outputs).zip(out.chunks_exact_mut(heads * outputs)) {
                out[head * outputs..][..outputs].copy_from_slice(product);
            }
        }
    }

    /// `out [tokens, hidden]`: of each row of `x`, the outputs of the experts that `args.routing` chose for it, weighted
    /// and summed in ascending order of the experts.
    fn experts(&mut self, args: &Experts<'_>, x: &[f32], buffers: &mut ExpertBuffers, out: &mut [f32]) {
        experts::run(self, args, x, buffers, out);
    }

    /// Each row of `weight.len()` values: `out = x / sqrt(mean(x²) + eps) * weight`.
    fn rms_norm(&mut self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);

    /// [`Backend::rms_norm`] onto itself, as norms of single heads want it.
    fn rms_norm_in_place(&mut self, x: &mut [f32], weight: &[f32], eps: f32);

    /// Each row of `weight.len()` values: `x = (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * weight + bias`.
    fn layer_norm_in_place(&mut self, x: &mut [f32], (weight, bias): (&[f32], &[f32]), eps: f32) {
        op::check_layer_norm(x, weight, bias);
        reference::layer_norm_rows(x, (weight, bias), eps);
    }

    /// Turns the heads of `x [positions, heads, head_dim]` by the angles of `positions`. Only the first
    /// `table.rotated()` values of a head turn.
    #[expect(clippy::too_many_arguments, reason = "all five are what the formula names")]
    fn rope(&mut self, x: &mut [f32], heads: usize, positions: &[u32], table: &RopeTable, pairing: Pairing);

    /// [`Backend::rope`] by halves, of tokens that have a place on each axis of `rope`.
    fn rope_axes(&mut self, x: &mut [f32], heads: usize, places: &[[u32; 3]], rope: &RopeAxes) {
        let head_dim = op::check_axes(x, heads, places, rope);
        reference::turn_axes(x, (heads, head_dim), places, rope);
    }

    /// `gate = activation(gate) * up`, value by value.
    fn gated(&mut self, gate: &mut [f32], up: &[f32], activation: Activation);

    /// [`Backend::gated`] of ones.
    fn activate(&mut self, x: &mut [f32], activation: Activation) {
        self.gated(x, &vec![1.0; x.len()], activation);
    }

    /// `x += y`, value by value.
    fn add(&mut self, x: &mut [f32], y: &[f32]);

    /// `x += bias`, each row of `bias.len()` values.
    fn add_bias(&mut self, x: &mut [f32], bias: &[f32]) {
        op::check_bias(x, bias);
        x.chunks_exact_mut(bias.len()).for_each(|row| self.add(row, bias));
    }

    /// `x *= factor`, value by value.
    fn scale(&mut self, x: &mut [f32], factor: f32);

    /// Causal attention of `q [tokens, heads, key_dim]` over the keys and values in `kv`, which hold the tokens of the
    /// step already, to `out [tokens, heads, value_dim]`. Tokens lie in the order of `args.rows`.
    fn attention(&mut self, args: &Attention<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]);

    /// Attention of `tokens` tokens that all see each other, to `out [tokens, heads, head_dim]`.
    fn attention_whole(&mut self, args: &Whole<'_>, tokens: usize, out: &mut [f32]) {
        let head_dim = op::check_whole(args, out, tokens);
        for (token, out) in out.chunks_exact_mut((args.heads * head_dim).max(1)).enumerate() {
            reference::attend_whole(args, head_dim, token, out);
        }
    }

    /// Turns the last values of the heads of `x [tokens, heads, head_dim]`, neighbours together, by the angles of their
    /// tokens, or back: `turns [tokens, 2, pairs]` are cosines and sines.
    fn turn(&mut self, x: &mut [f32], heads: (usize, usize), turns: &[f32], back: bool) {
        let head_dim = op::check_turn(x, heads, turns);
        let (tokens, heads) = heads;
        let each = x.chunks_exact_mut((heads * head_dim).max(1));
        let turns = turns.chunks_exact((turns.len() / tokens.max(1)).max(1));
        each.zip(turns).for_each(|(x, turn)| reference::turn_ends(x, head_dim, turn, back));
    }

    /// Mixes of the streams `x [tokens, streams, width]`.
    fn mix(&mut self, args: &Mixing<'_>, x: &[f32], mixes: &mut Mixes) {
        let tokens = residual::check_mix(args, x);
        let n = args.streams;
        mixes.size(tokens, n);
        self.matmul(x, tokens, args.weight, &mut mixes.raw);
        let Mixes { read, write, carry, raw } = mixes;
        let out = read.chunks_exact_mut(n).zip(write.chunks_exact_mut(n)).zip(carry.chunks_exact_mut(n * n));
        let data = x.chunks_exact(args.weight.cols).zip(raw.chunks_exact(n * (2 + n)));
        for (((read, write), carry), (x, raw)) in out.zip(data) {
            let factor = reference::norm_factor(x, args.eps);
            residual::mix_row(args, factor, raw, OneMix { read, write, carry });
        }
    }

    /// `out [tokens, width]`: the norm of what the streams `x` are read as with `read [tokens, streams]`.
    #[expect(clippy::too_many_arguments, reason = "all five are what the formula names")]
    fn collapse(&mut self, x: &[f32], read: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let streams = residual::check_collapse(x, read, weight, out);
        let width = weight.len();
        let rows = x.chunks_exact(streams * width).zip(read.chunks_exact(streams));
        rows.zip(out.chunks_exact_mut(width))
            .for_each(|((x, read), out)| residual::collapse_row(x, read, out));
        self.rms_norm_in_place(out, weight, eps);
    }

    /// Writes the result `y [tokens, width]` of a part of a layer to the streams `x`.
    fn spread(&mut self, x: &mut [f32], y: &[f32], mixes: &Mixes) {
        let (n, width) = residual::check_spread(x, y, mixes);
        let mut old = vec![0.0; n * width];
        let mixes = mixes.write.chunks_exact(n).zip(mixes.carry.chunks_exact(n * n));
        for ((x, y), mixes) in x.chunks_exact_mut(n * width).zip(y.chunks_exact(width)).zip(mixes) {
            residual::spread_row(x, y, mixes, &mut old);
        }
    }

    /// Adds to the streams `x [tokens, streams, width]` what was looked up: `kv [tokens, streams + 1, width]`.
    fn recall(&mut self, args: &Recall<'_>, x: &mut [f32], kv: &[f32]) {
        let width = residual::check_recall(args, x, kv);
        let all = args.norms.0.len();
        for (token, (x, kv)) in x.chunks_exact_mut(all).zip(kv.chunks_exact(all + width)).enumerate() {
            if !args.skip.get(token).copied().unwrap_or(false) {
                residual::recall_row(args, x, kv);
            }
        }
    }

    /// Chooses entries for the tokens of queries `q [tokens, heads, key_dim]` with `weights [tokens, heads]`, and runs of
    /// entries, if it is a call that does.
    #[expect(clippy::too_many_arguments, reason = "two inputs, two outputs, and the memory")]
    fn select(
        &mut self,
        args: &Select<'_>,
        q: (&[f32], &[f32]),
        kv: &KvMemory,
        chosen: &mut Lists,
        kept: &mut Lists,
    ) {
        select::run(args, q, kv, (chosen, kept));
    }

    /// Attention of `q [tokens, heads, dim]` over windows and chosen entries, to `out` of the same shape.
    fn windowed(&mut self, args: &Windowed<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
        windowed::run(args, q, kv, out);
    }
}
