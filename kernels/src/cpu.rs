//! The backend for processors: AVX2 with FMA and F16C, AVX-512, NEON and its dot products where the machine has them, which
//! is looked up once at run time, and the plain loops of the reference elsewhere. One file per family of operations, one
//! for the threads they share.
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "some parts serve the vector code only")
)]

mod attention;
mod buffer;
#[cfg(target_arch = "x86_64")]
mod dots;
mod floats;
#[cfg(target_arch = "x86_64")]
mod format;
mod gate;
mod heads;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod matmul;
mod norm;
mod output;
mod packed;
mod probe;
mod residual;
mod rope;
mod select;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod strips;
#[cfg(target_arch = "x86_64")]
mod tall;
mod threads;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod windowed;

use crate::backend::Backend;
use crate::kv::KvMemory;
use crate::matrix::Matrix;
use crate::op::{self, Activation, Attention, Pairing, RopeAxes, RopeTable, Whole};
use crate::reference;
use crate::residual::{Mixes, Mixing, Recall, check_collapse, check_mix, check_recall, check_spread};
use crate::select::{Select, check as check_select};
use crate::windowed::{Lists, Windowed, check as check_windowed};
use buffer::Buffer;
use heads::Split;
use matmul::{Matmul, Rows};
use threads::Pool;

/// Values of a pointwise operation that one thread takes at a time; fewer are not shared out at all.
const PART: usize = 1 << 14;
/// What nothing is gated with.
static ONES: [f32; PART] = [1.0; PART];

/// Which code runs.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Level {
    /// The reference's loops.
    Plain,
    /// AVX2, FMA and F16C; made only where the machine has them.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same, and AVX-512 with its integer dot products; made only where the machine has them.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, which is always there.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same, and its integer dot products; made only where the machine has them.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

impl Level {
    /// All that this machine has, the best one last.
    fn all() -> Vec<Level> {
        let mut all = vec![Level::Plain];
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            all.push(Level::Avx2);
            all.extend(has_avx512().then_some(Level::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Level::Neon);
            all.extend(std::arch::is_aarch64_feature_detected!("dotprod").then_some(Level::NeonDot));
        }
        all
    }

    /// The best that this machine has.
    fn best() -> Level {
        Level::all().pop().unwrap_or(Level::Plain)
    }
}

/// True where the machine has what [`Level::Avx512`] needs.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// True where the machine has what [`Level::Avx2`] needs.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// True where the machine has more than plain loops.
pub(crate) fn has_vectors() -> bool {
    Level::best() != Level::Plain
}

/// Computes on one or several threads of this machine.
pub struct CpuBackend {
    /// The calling thread and others.
    pool: Pool,
    /// Fixed at the start.
    level: Level,
    /// Activations of a product, in rows of whole cache lines; or keys and values of an image. Written by each operation.
    input: Buffer,
    /// Rows of products by heads; written by each of these.
    split: Split,
}

impl CpuBackend {
    /// A backend of `threads` threads, the calling one among them; it is the one thread that should call operations.
    /// Extra thread `i` (from 1) is bound to core `pin[i]` where `pin` is long enough; the caller binds itself.
    pub fn new(threads: usize, pin: &[usize]) -> CpuBackend {
        CpuBackend::with(Pool::new(threads, pin), Level::best())
    }

    /// One for each way to compute that this machine has, from plain loops to the best. For tests and comparisons.
    pub fn all(threads: usize) -> Vec<CpuBackend> {
        Level::all().into_iter().map(|level| CpuBackend::with(Pool::new(threads, &[]), level)).collect()
    }

    /// The same without vector instructions, as on machines that lack them.
    pub fn plain(threads: usize) -> CpuBackend {
        CpuBackend::with(Pool::new(threads, &[]), Level::Plain)
    }

    /// Computes with these threads and this code.
    fn with(pool: Pool, level: Level) -> CpuBackend {
        CpuBackend { pool, level, input: Buffer::new(), split: Split::default() }
    }

    /// Threads that compute, the calling one among them.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        match self.level {
            Level::Plain => "cpu, plain",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "cpu, AVX2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "cpu, AVX-512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "cpu, NEON",
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => "cpu, NEON with dot products",
        }
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut [f32]) {
        op::check_embed(table, tokens, out);
        reference::embed(table, tokens, out);
    }

    fn matmul_many(&mut self, x: &[f32], rows: usize, parts: &mut [(&Matrix, &mut [f32])]) {
        op::check_matmul(x, rows, parts);
        let mut matmul = Matmul { pool: &mut self.pool, level: self.level, input: &mut self.input };
        matmul.run(Rows { x, rows, own: false }, parts);
    }

    fn matmul_heads(&mut self, x: &[f32], rows: usize, weights: &[Matrix], out: &mut [f32]) {
        op::check_heads(x, rows, weights, out);
        let matmul = Matmul { pool: &mut self.pool, level: self.level, input: &mut self.input };
        heads::run(matmul, &mut self.split, (x, rows), weights, out);
    }

    fn matmul_tall(&mut self, x: &[f32], rows: usize, weight: &Matrix, out: &mut [f32]) {
        op::check_matmul(x, rows, &[(weight, &mut *out)]);
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 if !weight.is_packed() => {
                tall::run((&mut self.pool, self.level), (x, rows), weight, out);
            }
            _ => self.matmul(x, rows, weight, out),
        }
    }

    fn rms_norm(&mut self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        op::check_norm(x, weight, out.len());
        let level = self.level;
        self.pool.run_parts(out, whole_rows(weight.len()), &|start, out| {
            out.copy_from_slice(&x[start..][..out.len()]);
            norm::rows(level, out, weight, eps);
        });
    }

    fn rms_norm_in_place(&mut self, x: &mut [f32], weight: &[f32], eps: f32) {
        op::check_norm(x, weight, x.len());
        let level = self.level;
        self.pool.run_parts(x, whole_rows(weight.len()), &|_, x| norm::rows(level, x, weight, eps));
    }

    fn layer_norm_in_place(&mut self, x: &mut [f32], (weight, bias): (&[f32], &[f32]), eps: f32) {
        op::check_layer_norm(x, weight, bias);
        let level = self.level;
        self.pool.run_parts(x, whole_rows(weight.len()), &|_, x| {
            norm::layer_rows(level, x, (weight, bias), eps);
        });
    }

    fn rope(&mut self, x: &mut [f32], heads: usize, positions: &[u32], table: &RopeTable, pairing: Pairing) {
        let head_dim = op::check_rope(x, heads, positions, table);
        let (turn, width) = (rope::Turn { table, pairing, head_dim }, (heads * head_dim).max(1));
        self.pool.run_parts(x, whole_rows(width), &|start, x| {
            turn.run(x, &positions[start / width..][..x.len() / width]);
        });
    }

    fn rope_axes(&mut self, x: &mut [f32], heads: usize, places: &[[u32; 3]], rope: &RopeAxes) {
        let head_dim = op::check_axes(x, heads, places, rope);
        let width = (heads * head_dim).max(1);
        self.pool.run_parts(x, whole_rows(width), &|start, x| {
            reference::turn_axes(x, (heads, head_dim), &places[start / width..][..x.len() / width], rope);
        });
    }

    fn gated(&mut self, gate: &mut [f32], up: &[f32], activation: Activation) {
        op::check_pair("gated", gate, up);
        let level = self.level;
        self.pool.run_parts(gate, PART, &|start, gate| {
            gate::gated(level, gate, &up[start..][..gate.len()], activation);
        });
    }

    fn activate(&mut self, x: &mut [f32], activation: Activation) {
        let level = self.level;
        self.pool.run_parts(x, PART, &|_, x| gate::gated(level, x, &ONES[..x.len()], activation));
    }

    fn add(&mut self, x: &mut [f32], y: &[f32]) {
        op::check_pair("add", x, y);
        self.pool.run_parts(x, PART, &|start, x| reference::add(x, &y[start..]));
    }

    fn scale(&mut self, x: &mut [f32], factor: f32) {
        self.pool.run_parts(x, PART, &|_, x| reference::scale(x, factor));
    }

    fn attention(&mut self, args: &Attention<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
        op::check_attention(args, q, kv, out);
        attention::run((&mut self.pool, self.level), args, (q, kv), out);
    }

    fn attention_whole(&mut self, args: &Whole<'_>, tokens: usize, out: &mut [f32]) {
        let head_dim = op::check_whole(args, out, tokens);
        let own = (&mut self.pool, self.level, &mut self.input);
        attention::whole(own, args, (tokens, head_dim), out);
    }

    fn turn(&mut self, x: &mut [f32], heads: (usize, usize), turns: &[f32], back: bool) {
        let head_dim = op::check_turn(x, heads, turns);
        if !turns.is_empty() {
            residual::turn((&mut self.pool, self.level), x, (heads.1 * head_dim, head_dim), turns, back);
        }
    }

    fn mix(&mut self, args: &Mixing<'_>, x: &[f32], mixes: &mut Mixes) {
        let tokens = check_mix(args, x);
        mixes.size(tokens, args.streams);
        self.matmul(x, tokens, args.weight, &mut mixes.raw);
        residual::mix((&mut self.pool, self.level), args, x, mixes);
    }

    fn collapse(&mut self, x: &[f32], read: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        check_collapse(x, read, weight, out);
        residual::collapse((&mut self.pool, self.level), (x, read), (weight, eps), out);
    }

    fn spread(&mut self, x: &mut [f32], y: &[f32], mixes: &Mixes) {
        let (streams, _) = check_spread(x, y, mixes);
        residual::spread((&mut self.pool, self.level), x, y, mixes, streams);
    }

    fn recall(&mut self, args: &Recall<'_>, x: &mut [f32], kv: &[f32]) {
        check_recall(args, x, kv);
        residual::recall((&mut self.pool, self.level), args, x, kv);
    }

    fn select(
        &mut self,
        args: &Select<'_>,
        q: (&[f32], &[f32]),
        kv: &KvMemory,
        chosen: &mut Lists,
        kept: &mut Lists,
    ) {
        check_select(args, q, kv, kept);
        select::run((&mut self.pool, self.level), args, q, kv, (chosen, kept));
    }

    fn windowed(&mut self, args: &Windowed<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
        let dim = check_windowed(args, q, kv, out);
        if !out.is_empty() {
            windowed::run((&mut self.pool, self.level), args, (q, kv), dim, out);
        }
    }
}

/// The size of a part that is whole rows of `width`.
fn whole_rows(width: usize) -> usize {
    (PART / width).max(1) * width
}
