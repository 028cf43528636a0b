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
mod rope;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod strips;
mod threads;

use crate::backend::Backend;
use crate::kv::KvMemory;
use crate::matrix::Matrix;
use crate::op::{self, Activation, Attention, Pairing, RopeTable};
use crate::reference;
use buffer::Buffer;
use heads::Split;
use matmul::{Matmul, Rows};
use threads::Pool;

/// Values of a pointwise operation that one thread takes at a time; fewer are not shared out at all.
const PART: usize = 1 << 14;

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
    /// Activations of a product, in rows of whole cache lines; written by each product.
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

    fn rope(&mut self, x: &mut [f32], heads: usize, positions: &[u32], table: &RopeTable, pairing: Pairing) {
        let head_dim = op::check_rope(x, heads, positions, table);
        let (turn, width) = (rope::Turn { table, pairing, head_dim }, (heads * head_dim).max(1));
        self.pool.run_parts(x, whole_rows(width), &|start, x| {
            turn.run(x, &positions[start / width..][..x.len() / width]);
        });
    }

    fn gated(&mut self, gate: &mut [f32], up: &[f32], activation: Activation) {
        op::check_pair("gated", gate, up);
        let level = self.level;
        self.pool.run_parts(gate, PART, &|start, gate| {
            gate::gated(level, gate, &up[start..][..gate.len()], activation);
        });
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
}

/// The size of a part that is whole rows of `width`.
fn whole_rows(width: usize) -> usize {
    (PART / width).max(1) * width
}
