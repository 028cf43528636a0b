//! How fast the operations are, beside what the machine can do: `cargo bench --bench kernels [-- THREADS]`.
//!
//! Limits are measured first, with the same threads: reading memory, and multiplying and adding in registers, floats and
//! 8-bit integers. Each
//! line then gives our speed and its share of the limit that applies: reading for one row of activations, where weights
//! (or keys and values) are read once and hardly used; arithmetic for many rows. Weights are taken in turn from a set
//! larger than the caches. On a machine that others use too, compare the shares, not the speeds.

use millstream::limits::{Limits, Probe, seconds};
use millstream_kernels::check::Sample;
use millstream_kernels::{
    Activation, Attention, AttentionRow, Backend, CpuBackend, DType, KvFormat, KvLayout, Lists, Matrix,
    Pairing, Rings, RopeTable, Select, Stage,
};

/// Bytes that no cache holds.
const LARGE: usize = 64 << 20;

fn main() {
    let threads = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(1);
    let mut backend = CpuBackend::new(threads, &[]);
    let limits = Probe::new().measure(&mut backend);
    println!("{}, {threads} threads", backend.name());
    let Limits { read, arithmetic, integer } = limits;
    let [read, arithmetic, integer] = [read, arithmetic, integer].map(|limit| limit / 1e9);
    println!("limits: read {read:.1} GB/s, f32 {arithmetic:.1} GFLOP/s, int8 {integer:.1} GOP/s\n");
    for (rows, cols) in [(1536, 576), (576, 1536), (2048, 2048)] {
        let formats = [
            DType::Q4_1,
            DType::Q8_0,
            DType::Q4K,
            DType::Q6K,
            DType::F8E4M3,
            DType::F16,
            DType::BF16,
            DType::F32,
        ];
        for dtype in formats.into_iter().filter(|dtype| cols % dtype.block_len() == 0) {
            for packed in [false, true] {
                matmul(&mut backend, &limits, (dtype, rows, cols, packed), &[1, 2, 4, 16, 256]);
            }
        }
    }
    matmul(&mut backend, &limits, (DType::Q8_0, 262_144, 640, true), &[1, 4]);
    attention(&mut backend, &limits);
    select(&mut backend, &limits);
    pointwise(&mut backend, &limits);
}

/// Products of one weight shape, for several numbers of rows.
fn matmul(
    backend: &mut CpuBackend,
    limits: &Limits,
    (dtype, outputs, cols, packed): (DType, usize, usize, bool),
    rows: &[usize],
) {
    let mut sample = Sample::new(3);
    let first = sample.matrix(dtype, outputs, cols);
    let count = (LARGE / first.size()).max(1);
    let copy = |_| {
        let copy = Matrix::from_bytes(dtype, outputs, cols, first.bytes().to_vec()).expect("a copy");
        let factors = vec![1.5; outputs.div_ceil(128) * cols.div_ceil(128)];
        let copy = match dtype {
            DType::F8E4M3 => copy.scaled(factors, (128, 128)).expect("one for each rectangle"),
            _ => copy,
        };
        if packed { copy.pack().expect("memory for one matrix") } else { copy }
    };
    let weights: Vec<Matrix> = (0..count).map(copy).collect();
    for &rows in rows {
        let x = sample.values(rows * cols);
        let mut out = vec![0.0; rows * outputs];
        let mut turn = weights.iter().cycle();
        let time = seconds(&mut || backend.matmul(&x, rows, turn.next().expect("endless"), &mut out));
        let integers = packed && dtype.is_quantised();
        let kind = match (packed, integers) {
            (false, _) => "f32",
            (true, true) => "int8",
            (true, false) => "packed",
        };
        let case = format!("matmul {dtype:?} {outputs} x {cols}, {kind}, rows {rows}");
        let operations = 2.0 * (rows * outputs * cols) as f64;
        let limits =
            Limits { arithmetic: if integers { limits.integer } else { limits.arithmetic }, ..*limits };
        report(&case, &limits, time, (first.size() as f64, operations));
    }
}

/// One token and a chunk of a prompt, at the end of 1024 positions.
fn attention(backend: &mut CpuBackend, limits: &Limits) {
    let shapes = [(9, 3, 64), (32, 8, 64), (4, 1, 256), (16, 8, 128)];
    let formats = [KvFormat::F32, KvFormat::F16, KvFormat::Q8];
    for (format, (heads, kv_heads, head_dim)) in formats.into_iter().flat_map(|f| shapes.map(|s| (f, s))) {
        let (key_dim, value_dim) = (head_dim, head_dim);
        let layout = KvLayout {
            layers: 24,
            kv_heads,
            key_dim,
            value_dim,
            block_size: 16,
            format,
            state: 0,
            paired: 0,
            rings: Rings::NONE,
        };
        let mut sample = Sample::new(4);
        let (kv, tables) = sample.kv(layout, 1, 1024);
        for tokens in [1, 256] {
            let rows = [AttentionRow { start: 1024 - tokens as u32, tokens, from: 0, blocks: &tables[0] }];
            let q = sample.values(tokens * heads * head_dim);
            let mut out = vec![0.0; q.len()];
            let mut layers = (0..layout.layers).cycle();
            let time = seconds(&mut || {
                let layer = layers.next().expect("endless");
                let args = Attention { layer, heads, scale: 0.125, window: None, sinks: None, rows: &rows };
                backend.attention(&args, &q, &kv, &mut out);
            });
            let case =
                format!("attention {format:?} {heads}/{kv_heads} x {head_dim} at 1024, tokens {tokens}");
            let seen = (tokens * (2048 - tokens + 1) / 2 * heads * head_dim) as f64;
            let bytes = layout.bytes_per_block() / layout.layers * (1024 / layout.block_size);
            report(&case, limits, time, (bytes as f64, 4.0 * seen));
        }
    }
}

/// The choice of entries, and of runs, as the built-in model makes it. Its operations are those of all scores: where most
/// of them are left out, that is more than the machine could do.
fn select(backend: &mut CpuBackend, limits: &Limits) {
    let (heads, dim) = (4, 32);
    let layout = KvLayout {
        layers: 1,
        kv_heads: 1,
        key_dim: dim,
        value_dim: dim,
        block_size: 16,
        format: KvFormat::F32,
        state: 0,
        paired: 0,
        rings: Rings::NONE,
    };
    for positions in [8_192, 65_536] {
        let mut sample = Sample::new(6);
        let (kv, tables) = sample.kv(layout, 1, positions);
        for tokens in [1, 256] {
            let start = (positions - tokens) as u32;
            let rows = [AttentionRow { start, tokens, from: 0, blocks: &tables[0] }];
            let stage = Some(Stage { size: 8, kept: 64, chooses: true });
            let args = Select { heads, layer: 0, most: 128, stage, rows: &rows };
            let (q, weights) = (sample.values(tokens * heads * dim), sample.values(tokens * heads));
            let (mut chosen, mut runs) = (Lists::default(), Lists::default());
            let time = seconds(&mut || backend.select(&args, (&q, &weights), &kv, &mut chosen, &mut runs));
            let case = format!("select 128 by {heads} x {dim} at {positions}, tokens {tokens}");
            let seen = (tokens * (2 * positions - tokens + 1) / 2 * heads * dim) as f64;
            report(&case, limits, time, ((positions * dim * 4) as f64, 2.0 * seen));
        }
    }
}

/// Operations that should not matter.
fn pointwise(backend: &mut CpuBackend, limits: &Limits) {
    let mut sample = Sample::new(5);
    for rows in [1, 256] {
        let (x, weight) = (sample.values(rows * 576), sample.values(576));
        let mut out = x.clone();
        let time = seconds(&mut || backend.rms_norm(&x, &weight, 1e-5, &mut out));
        report(&format!("rms_norm {rows} x 576"), limits, time, ((rows * 576 * 4) as f64, 0.0));
        let table = RopeTable::new(&sample.values(32), 1.0, 2048);
        let positions: Vec<u32> = (0..rows as u32).collect();
        for pairing in [Pairing::Half, Pairing::Adjacent] {
            let time = seconds(&mut || backend.rope(&mut out, 9, &positions, &table, pairing));
            report(
                &format!("rope {pairing:?} {rows} x 9 x 64"),
                limits,
                time,
                ((rows * 576 * 4) as f64, 0.0),
            );
        }
        let (up, mut gate) = (sample.values(rows * 1536), sample.values(rows * 1536));
        let time = seconds(&mut || backend.gated(&mut gate, &up, Activation::Silu));
        report(&format!("gated {rows} x 1536"), limits, time, ((rows * 1536 * 8) as f64, 0.0));
    }
}

/// One line: bytes per second or operations per second, whichever comes nearer to its limit.
fn report(case: &str, limits: &Limits, time: f64, (bytes, operations): (f64, f64)) {
    let (read, arithmetic) = (bytes / time / limits.read, operations / time / limits.arithmetic);
    let (speed, unit, share) = if read > arithmetic {
        (bytes / time / 1e9, "GB/s read", read)
    } else {
        (operations / time / 1e9, "Gop/s", arithmetic)
    };
    println!("{case:48} {:10.1} us {speed:8.1} {unit:9} {:5.0} %", time * 1e6, share * 100.0);
}
