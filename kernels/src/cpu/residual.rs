//! Several residual streams with vectors: mixes of eight tokens side by side, streams read and written eight values at a
//! time. Models of another number of streams than four take the plain loops, compiled for the same instructions.

use super::threads::Pool;
use super::{Level, PART, norm, output::Output, whole_rows};
use crate::reference;
use crate::residual::{self, Mixes, Mixing, OneMix, Recall};

/// Tokens whose mixes one thread makes at a time.
const TOKENS: usize = 32;

/// Makes mixes of products that are in `mixes` already.
pub(super) fn mix((pool, level): (&mut Pool, Level), args: &Mixing<'_>, x: &[f32], mixes: &mut Mixes) {
    let (n, width) = (args.streams, args.weight.cols);
    let tokens = x.len() / width;
    let Mixes { read, write, carry, raw } = mixes;
    let (read, write, carry) = (Output::new(read), Output::new(write), Output::new(carry));
    let raw = &raw[..];
    pool.run(tokens.div_ceil(TOKENS), &|chunk| {
        let (first, count) = (chunk * TOKENS, TOKENS.min(tokens - chunk * TOKENS));
        // SAFETY: each chunk is run once, and tokens of different chunks differ.
        #[expect(unsafe_code, reason = "threads write tokens of one output")]
        let out = unsafe {
            OneMix {
                read: read.part(first * n, count * n),
                write: write.part(first * n, count * n),
                carry: carry.part(first * n * n, count * n * n),
            }
        };
        let (x, raw) =
            (&x[first * width..][..count * width], &raw[first * n * (2 + n)..][..count * n * (2 + n)]);
        rows(level, args, (x, raw), out);
    });
}

/// Mixes of some tokens.
fn rows(level: Level, args: &Mixing<'_>, (x, raw): (&[f32], &[f32]), out: OneMix<'_>) {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Plain && args.streams == avx2::STREAMS {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { avx2::mix(args, (x, raw), out) };
    }
    let _ = level;
    let n = args.streams;
    let parts = out.read.chunks_exact_mut(n).zip(out.write.chunks_exact_mut(n));
    let parts = parts.zip(out.carry.chunks_exact_mut(n * n));
    let data = x.chunks_exact(args.weight.cols).zip(raw.chunks_exact(n * (2 + n)));
    for (((read, write), carry), (x, raw)) in parts.zip(data) {
        let factor = reference::norm_factor(x, args.eps);
        residual::mix_row(args, factor, raw, OneMix { read, write, carry });
    }
}

/// The norm of what streams are read as.
pub(super) fn collapse(
    (pool, level): (&mut Pool, Level),
    (x, read): (&[f32], &[f32]),
    (weight, eps): (&[f32], f32),
    out: &mut [f32],
) {
    let (width, n) = (weight.len(), x.len() / out.len().max(1));
    pool.run_parts(out, whole_rows(width), &|start, out| {
        let first = start / width;
        for (token, out) in out.chunks_exact_mut(width).enumerate() {
            let x = &x[(first + token) * n * width..][..n * width];
            let read = &read[(first + token) * n..][..n];
            #[cfg(target_arch = "x86_64")]
            if level != Level::Plain {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX2")]
                unsafe {
                    avx2::collapse(x, read, out);
                }
                continue;
            }
            residual::collapse_row(x, read, out);
        }
        norm::rows(level, out, weight, eps);
    });
}

/// Writes results to streams.
pub(super) fn spread((pool, level): (&mut Pool, Level), x: &mut [f32], y: &[f32], mixes: &Mixes, n: usize) {
    let width = x.len() / mixes.write.len().max(1);
    let each = n * width;
    pool.run_parts(x, (PART / each.max(1)).max(1) * each, &|start, x| {
        let first = start / each;
        let mut old = vec![0.0; each];
        for (token, x) in x.chunks_exact_mut(each).enumerate() {
            let token = first + token;
            let y = &y[token * width..][..width];
            let (write, carry) = (&mixes.write[token * n..][..n], &mixes.carry[token * n * n..][..n * n]);
            #[cfg(target_arch = "x86_64")]
            if level != Level::Plain && n == avx2::STREAMS {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX2")]
                unsafe {
                    avx2::spread(x, y, write, carry);
                }
                continue;
            }
            let _ = level;
            residual::spread_row(x, y, (write, carry), &mut old);
        }
    });
}

/// Adds what was looked up.
pub(super) fn recall((pool, level): (&mut Pool, Level), args: &Recall<'_>, x: &mut [f32], kv: &[f32]) {
    let all = args.norms.0.len();
    let each = all + all / args.streams;
    pool.run_parts(x, whole_rows(all), &|start, x| {
        let first = start / all;
        for (token, x) in x.chunks_exact_mut(all).enumerate() {
            let token = first + token;
            if args.skip.get(token).copied().unwrap_or(false) {
                continue;
            }
            let kv = &kv[token * each..][..each];
            #[cfg(target_arch = "x86_64")]
            if level != Level::Plain {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX2")]
                unsafe {
                    avx2::recall(args, x, kv);
                }
                continue;
            }
            let _ = level;
            residual::recall_row(args, x, kv);
        }
    });
}

/// Turns the ends of heads.
pub(super) fn turn(
    (pool, level): (&mut Pool, Level),
    x: &mut [f32],
    (width, head_dim): (usize, usize),
    turns: &[f32],
    back: bool,
) {
    let rotated = turns.len() / (x.len() / width.max(1)).max(1);
    pool.run_parts(x, whole_rows(width.max(1)), &|start, x| {
        let first = start / width;
        for (token, x) in x.chunks_exact_mut(width).enumerate() {
            let turn = &turns[(first + token) * rotated..][..rotated];
            #[cfg(target_arch = "x86_64")]
            if level != Level::Plain && rotated.is_multiple_of(super::lanes::LANES) {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX2")]
                unsafe {
                    avx2::turn(x, head_dim, turn, back);
                }
                continue;
            }
            let _ = level;
            reference::turn_ends(x, head_dim, turn, back);
        }
    });
}

/// Vectors.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use crate::cpu::lanes::{self, LANES};
    use crate::cpu::norm;
    use crate::residual::{Mixing, OneMix, Recall};
    use std::arch::x86_64::*;

    /// The number of streams that vectors are written for.
    pub(super) const STREAMS: usize = 4;
    /// Values that mixes of a token are made of.
    const RAW: usize = STREAMS * (2 + STREAMS);
    /// A value of eight tokens.
    type Eight = [f32; LANES];

    /// Mixes of some tokens, eight side by side.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn mix(args: &Mixing<'_>, (x, raw): (&[f32], &[f32]), out: OneMix<'_>) {
        let width = args.weight.cols;
        let tokens = x.len() / width;
        for first in (0..tokens).step_by(LANES) {
            let count = LANES.min(tokens - first);
            let mut values = [[0.0; LANES]; RAW];
            for lane in 0..count {
                let x = &x[(first + lane) * width..][..width];
                let factor = 1.0 / (norm::squares_of(x) / width as f32 + args.eps).sqrt();
                let raw = &raw[(first + lane) * RAW..][..RAW];
                for (value, raw) in values.iter_mut().zip(raw) {
                    value[lane] = raw * factor;
                }
            }
            for (i, value) in values.iter_mut().enumerate() {
                let (scale, base) = (args.scale[(i / STREAMS).min(2)], args.base[i]);
                value.iter_mut().for_each(|value| *value = *value * scale + base);
            }
            eight(args, &mut values);
            for lane in 0..count {
                let token = first + lane;
                for i in 0..STREAMS {
                    out.read[token * STREAMS + i] = values[i][lane];
                    out.write[token * STREAMS + i] = values[STREAMS + i][lane];
                }
                let carry = &mut out.carry[token * STREAMS * STREAMS..][..STREAMS * STREAMS];
                for (carry, value) in carry.iter_mut().zip(&values[2 * STREAMS..]) {
                    *carry = value[lane];
                }
            }
        }
    }

    /// Makes mixes of the sums of eight tokens.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn eight(args: &Mixing<'_>, values: &mut [Eight; RAW]) {
        let (one, zero) = (_mm256_set1_ps(1.0), _mm256_setzero_ps());
        let small = _mm256_set1_ps(args.small);
        for (i, value) in values[..2 * STREAMS].iter_mut().enumerate() {
            let turned = lanes::exp(_mm256_sub_ps(zero, lanes::load(value, 0)));
            let sigmoid = _mm256_div_ps(one, _mm256_add_ps(one, turned));
            let doubled = _mm256_add_ps(sigmoid, sigmoid);
            lanes::store(value, 0, if i < STREAMS { _mm256_add_ps(sigmoid, small) } else { doubled });
        }
        let mut carry = [zero; STREAMS * STREAMS];
        for (carry, value) in carry.iter_mut().zip(&values[2 * STREAMS..]) {
            *carry = lanes::load(value, 0);
        }
        for row in carry.as_chunks_mut::<STREAMS>().0 {
            let max = _mm256_max_ps(_mm256_max_ps(row[0], row[1]), _mm256_max_ps(row[2], row[3]));
            row.iter_mut().for_each(|x| *x = lanes::exp(_mm256_sub_ps(*x, max)));
            let by = _mm256_div_ps(one, sum(*row));
            row.iter_mut().for_each(|x| *x = _mm256_fmadd_ps(*x, by, small));
        }
        columns(&mut carry, small);
        for _ in 1..args.rounds {
            for row in carry.as_chunks_mut::<STREAMS>().0 {
                let by = _mm256_div_ps(one, _mm256_add_ps(sum(*row), small));
                row.iter_mut().for_each(|x| *x = _mm256_mul_ps(*x, by));
            }
            columns(&mut carry, small);
        }
        for (carry, value) in carry.iter().zip(&mut values[2 * STREAMS..]) {
            lanes::store(value, 0, *carry);
        }
    }

    /// Divides columns by their sums.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn columns(carry: &mut [__m256; STREAMS * STREAMS], small: __m256) {
        for column in 0..STREAMS {
            let all = [0, 1, 2, 3].map(|row| carry[row * STREAMS + column]);
            let by = _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_add_ps(sum(all), small));
            for row in 0..STREAMS {
                carry[row * STREAMS + column] = _mm256_mul_ps(carry[row * STREAMS + column], by);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn sum(v: [__m256; STREAMS]) -> __m256 {
        _mm256_add_ps(_mm256_add_ps(v[0], v[1]), _mm256_add_ps(v[2], v[3]))
    }

    /// What the streams of a token are read as.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn collapse(x: &[f32], read: &[f32], out: &mut [f32]) {
        let width = out.len();
        for at in (0..width).step_by(LANES) {
            let whole = at + LANES <= width;
            let mut sum = _mm256_setzero_ps();
            for (x, &by) in x.chunks_exact(width).zip(read) {
                let x = if whole { lanes::load(x, at) } else { lanes::load_part(x, at) };
                sum = _mm256_fmadd_ps(_mm256_set1_ps(by), x, sum);
            }
            if whole { lanes::store(out, at, sum) } else { lanes::store_part(out, at, sum) }
        }
    }

    /// Writes a result to the streams of a token.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn spread(x: &mut [f32], y: &[f32], write: &[f32], carry: &[f32]) {
        let width = y.len();
        let (write, carry): (&[f32; STREAMS], &[f32; STREAMS * STREAMS]) = (
            write.try_into().expect("a mix of four streams"),
            carry.try_into().expect("a mix of four streams"),
        );
        for at in (0..width).step_by(LANES) {
            let whole = at + LANES <= width;
            let load = |v: &[f32]| if whole { lanes::load(v, at) } else { lanes::load_part(v, at) };
            let y = load(y);
            let old = [0, 1, 2, 3].map(|from| load(&x[from * width..(from + 1) * width]));
            for to in 0..STREAMS {
                let mut sum = _mm256_mul_ps(_mm256_set1_ps(write[to]), y);
                for from in 0..STREAMS {
                    sum = _mm256_fmadd_ps(_mm256_set1_ps(carry[from * STREAMS + to]), old[from], sum);
                }
                let into = &mut x[to * width..(to + 1) * width];
                if whole { lanes::store(into, at, sum) } else { lanes::store_part(into, at, sum) }
            }
        }
    }

    /// Adds what a token looked up.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn recall(args: &Recall<'_>, x: &mut [f32], kv: &[f32]) {
        let width = x.len() / args.streams;
        let (keys, value) = kv.split_at(x.len());
        let norms = args.norms.0.chunks_exact(width).zip(args.norms.1.chunks_exact(width));
        for ((x, key), (xs, keys)) in x.chunks_exact_mut(width).zip(keys.chunks_exact(width)).zip(norms) {
            let factor = |v: &[f32]| 1.0 / (norm::squares_of(v) / width as f32 + args.eps).sqrt();
            let (by_x, by_key) = (factor(x), factor(key));
            let mut dot = _mm256_setzero_ps();
            for at in (0..width).step_by(LANES) {
                let [x, xs, key, keys] = [&*x, xs, key, keys].map(|v| lanes::load_part(v, at));
                let (x, key) = (_mm256_mul_ps(x, xs), _mm256_mul_ps(key, keys));
                dot = _mm256_fmadd_ps(x, key, dot);
            }
            let dot = lanes::sum(dot) * by_x * by_key / (width as f32).sqrt();
            let strength = dot.abs().max(1e-6).sqrt();
            let gate = if dot == 0.0 { 0.5 } else { 1.0 / (1.0 + (-strength.copysign(dot)).exp()) };
            x.iter_mut().zip(value).for_each(|(x, v)| *x = gate.mul_add(*v, *x));
        }
    }

    /// Turns the ends of the heads of a token; the values that turn fill vectors.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn turn(x: &mut [f32], head_dim: usize, turn: &[f32], back: bool) {
        let (cos, sin) = turn.split_at(turn.len() / 2);
        let first = head_dim - turn.len();
        for at in (0..turn.len()).step_by(LANES) {
            let (mut by, mut other) = ([0.0; LANES], [0.0; LANES]);
            for pair in 0..LANES / 2 {
                let (cos, sin) = (cos[at / 2 + pair], sin[at / 2 + pair]);
                let sin = if back { -sin } else { sin };
                (by[2 * pair], by[2 * pair + 1]) = (cos, cos);
                (other[2 * pair], other[2 * pair + 1]) = (-sin, sin);
            }
            let (by, other) = (lanes::load(&by, 0), lanes::load(&other, 0));
            for head in x.chunks_exact_mut(head_dim) {
                let v = lanes::load(head, first + at);
                let swapped = _mm256_permute_ps::<0b10_11_00_01>(v);
                lanes::store(head, first + at, _mm256_fmadd_ps(v, by, _mm256_mul_ps(swapped, other)));
            }
        }
    }
}
