//! Attention over windows and chosen entries: an item is one token and some of its heads. Its keys are brought together
//! in a fixed order first, since they serve all heads, as keys and as values.

use super::Level;
use super::output::Output;
use super::threads::Pool;
use crate::kv::KvMemory;
use crate::windowed::{self, Place, Windowed};

/// Heads of an item.
const HEADS: usize = 16;

/// Runs a call whose arguments have been checked.
pub(super) fn run(
    (pool, level): (&mut Pool, Level),
    args: &Windowed<'_>,
    (q, kv): (&[f32], &KvMemory),
    dim: usize,
    out: &mut [f32],
) {
    let places = args.places();
    let parts = args.heads.div_ceil(HEADS);
    let out = Output::new(out);
    pool.run(places.len() * parts, &|item| {
        let (place, first) = (places[item / parts], item % parts * HEADS);
        let count = HEADS.min(args.heads - first);
        let at = (place.place * args.heads + first) * dim;
        // SAFETY: each item is run once, and no two have a head of a token in common.
        #[expect(unsafe_code, reason = "threads write heads of one output")]
        let out = unsafe { out.part(at, count * dim) };
        heads(level, args, (place, first), (&q[at..][..count * dim], kv), out);
    });
}

/// Some heads of a token, from `first` on.
fn heads(
    level: Level,
    args: &Windowed<'_>,
    (place, first): (Place, usize),
    (q, kv): (&[f32], &KvMemory),
    out: &mut [f32],
) {
    let count = HEADS.min(args.heads - first);
    let dim = q.len() / count;
    let sinks = &args.sinks[first..][..count];
    #[cfg(target_arch = "x86_64")]
    if level != Level::Plain {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { avx2::heads(args, place, (q, sinks), (kv, dim), out) };
    }
    let _ = level;
    let mut keys = Vec::new();
    let seen = args.gather(place, (kv, dim), dim, &mut keys);
    windowed::attend(args.scale, (q, sinks), (&keys[..seen * dim], dim), out);
}

/// Vectors.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;
    use std::cell::Cell;

    use crate::cpu::lanes::{self, LANES, unrolled};
    use crate::kv::KvMemory;
    use crate::windowed::{Place, Windowed};

    /// Heads that go through the keys side by side.
    const TILE: usize = 4;

    thread_local! {
        /// What an item computes with; grows to the largest once.
        static STATE: Cell<State> = const { Cell::new(State { keys: Vec::new(), q: Vec::new(), weight: Vec::new() }) };
    }

    /// Memory of an item.
    #[derive(Default)]
    struct State {
        /// `[seen, stride]`, zeros behind each key.
        keys: Vec<f32>,
        /// `[TILE, stride]`: queries, times the scale of the scores.
        q: Vec<f32>,
        /// `[TILE, seen rounded up]`: scores, then weights.
        weight: Vec<f32>,
    }

    /// Some heads of a token.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn heads(
        args: &Windowed<'_>,
        place: Place,
        (q, sinks): (&[f32], &[f32]),
        (kv, dim): (&KvMemory, usize),
        out: &mut [f32],
    ) {
        let stride = dim.next_multiple_of(LANES);
        let mut state = STATE.take();
        if dim < stride {
            // What an earlier item left is not zero.
            state.keys.clear();
        }
        let seen = args.gather(place, (kv, dim), stride, &mut state.keys);
        let row = seen.next_multiple_of(LANES);
        let tiles = q.chunks(TILE * dim).zip(out.chunks_mut(TILE * dim)).zip(sinks.chunks(TILE));
        for ((q, out), sinks) in tiles {
            state.q.clear();
            state.q.resize(TILE * stride, 0.0);
            for (q, into) in q.chunks_exact(dim).zip(state.q.chunks_exact_mut(stride)) {
                into.iter_mut().zip(q).for_each(|(into, q)| *into = q * args.scale);
            }
            state.weight.clear();
            state.weight.resize(TILE * row, f32::NEG_INFINITY);
            scores(&mut state, (seen, stride, row));
            let mut by = [0.0; TILE];
            for (i, &sink) in sinks.iter().enumerate() {
                by[i] = softmax(&mut state.weight[i * row..][..row], sink);
            }
            let mut at = 0;
            while at < dim {
                if at + 2 * LANES <= stride {
                    sums::<2>(&state, (seen, stride, row), (at, dim), (&by, out));
                    at += 2 * LANES;
                } else {
                    sums::<1>(&state, (seen, stride, row), (at, dim), (&by, out));
                    at += LANES;
                }
            }
        }
        STATE.set(state);
    }

    /// Scores of a tile of heads with all keys.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn scores(state: &mut State, (seen, stride, row): (usize, usize, usize)) {
        let (q, weight) = (&state.q[..TILE * stride], &mut state.weight[..TILE * row]);
        for (k, key) in state.keys[..seen * stride].chunks_exact(stride).enumerate() {
            let mut acc = [_mm256_setzero_ps(); TILE];
            for at in (0..stride).step_by(LANES) {
                let key = lanes::load(key, at);
                unrolled!(i < TILE, {
                    acc[i] = _mm256_fmadd_ps(lanes::load(q, i * stride + at), key, acc[i]);
                });
            }
            let scores = lanes::sums(acc);
            unrolled!(i < TILE, {
                weight[i * row + k] = scores[i];
            });
        }
    }

    /// Turns the scores of a head into weights; gives one by their sum.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn softmax(weight: &mut [f32], sink: f32) -> f32 {
        let mut top = _mm256_set1_ps(sink);
        for at in (0..weight.len()).step_by(LANES) {
            top = _mm256_max_ps(top, lanes::load(weight, at));
        }
        let largest = _mm256_set1_ps(lanes::max(top));
        let mut total = _mm256_setzero_ps();
        for at in (0..weight.len()).step_by(LANES) {
            let p = lanes::exp(_mm256_sub_ps(lanes::load(weight, at), largest));
            total = _mm256_add_ps(total, p);
            lanes::store(weight, at, p);
        }
        let sink = lanes::exp(_mm256_sub_ps(_mm256_set1_ps(sink), largest));
        1.0 / (lanes::sum(total) + _mm256_cvtss_f32(sink))
    }

    /// Sums of weighted keys, `V` vectors from `at` on.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn sums<const V: usize>(
        state: &State,
        (seen, stride, row): (usize, usize, usize),
        (at, dim): (usize, usize),
        (by, out): (&[f32; TILE], &mut [f32]),
    ) {
        let weight = &state.weight[..TILE * row];
        let mut acc = [[_mm256_setzero_ps(); V]; TILE];
        for (k, key) in state.keys[..seen * stride].chunks_exact(stride).enumerate() {
            let mut x = [_mm256_setzero_ps(); V];
            unrolled!(v < V, {
                x[v] = lanes::load(key, at + v * LANES);
            });
            unrolled!(i < TILE, {
                let p = _mm256_set1_ps(weight[i * row + k]);
                unrolled!(v < V, {
                    acc[i][v] = _mm256_fmadd_ps(p, x[v], acc[i][v]);
                });
            });
        }
        for (i, out) in out.chunks_exact_mut(dim).enumerate() {
            for v in 0..V {
                let sum = _mm256_mul_ps(acc[i][v], _mm256_set1_ps(by[i]));
                let at = at + v * LANES;
                if at + LANES <= dim { lanes::store(out, at, sum) } else { lanes::store_part(out, at, sum) }
            }
        }
    }
}
