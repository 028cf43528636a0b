//! Every backend through the conformance suite, and the same bits from any number of threads.

use millstream_kernels::check::{Failure, Sample, conform};
use millstream_kernels::{
    Activation, Attention, AttentionRow, Backend, CpuBackend, DType, KvFormat, KvLayout, KvMemory, Lists,
    Matrix, Pairing, ReferenceBackend, Rings, RopeTable, Select, Windowed,
};

/// Fails with all cases that do not conform.
fn assert_conforms(backend: &mut dyn Backend) {
    let failures = conform(backend);
    let lines: Vec<String> = failures.iter().map(Failure::to_string).collect();
    assert!(lines.is_empty(), "{}: {} cases\n{}", backend.name(), lines.len(), lines.join("\n"));
}

#[test]
fn the_reference_conforms_to_itself() {
    assert_conforms(&mut ReferenceBackend);
}

#[test]
fn one_thread_conforms() {
    assert_conforms(&mut CpuBackend::new(1, &[]));
}

#[test]
fn three_threads_conform() {
    assert_conforms(&mut CpuBackend::new(3, &[]));
}

#[test]
fn every_way_to_compute_conforms() {
    CpuBackend::all(2).iter_mut().for_each(|backend| assert_conforms(backend));
}

/// The reference, but for products of more than three rows, which are a little too large.
struct Faulty(ReferenceBackend);

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut [f32]) {
        self.0.embed(table, tokens, out);
    }

    fn matmul_many(&mut self, x: &[f32], rows: usize, parts: &mut [(&Matrix, &mut [f32])]) {
        self.0.matmul_many(x, rows, parts);
        if rows > 3 {
            parts.iter_mut().for_each(|(_, out)| out.iter_mut().for_each(|out| *out *= 1.000_03));
        }
    }

    fn rms_norm(&mut self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        self.0.rms_norm(x, weight, eps, out);
    }

    fn rms_norm_in_place(&mut self, x: &mut [f32], weight: &[f32], eps: f32) {
        self.0.rms_norm_in_place(x, weight, eps);
    }

    fn rope(&mut self, x: &mut [f32], heads: usize, positions: &[u32], table: &RopeTable, pairing: Pairing) {
        self.0.rope(x, heads, positions, table, pairing);
    }

    fn gated(&mut self, gate: &mut [f32], up: &[f32], activation: Activation) {
        self.0.gated(gate, up, activation);
    }

    fn add(&mut self, x: &mut [f32], y: &[f32]) {
        self.0.add(x, y);
    }

    fn scale(&mut self, x: &mut [f32], factor: f32) {
        self.0.scale(x, factor);
    }

    fn attention(&mut self, args: &Attention<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
        // Sees one token too few.
        let rows: Vec<AttentionRow<'_>> =
            args.rows.iter().map(|row| AttentionRow { start: row.start.saturating_sub(1), ..*row }).collect();
        self.0.attention(&Attention { rows: &rows, ..*args }, q, kv, out);
    }

    fn select(
        &mut self,
        args: &Select<'_>,
        q: (&[f32], &[f32]),
        kv: &KvMemory,
        chosen: &mut Lists,
        kept: &mut Lists,
    ) {
        // Sees one token too few.
        let rows: Vec<AttentionRow<'_>> =
            args.rows.iter().map(|row| AttentionRow { start: row.start.saturating_sub(1), ..*row }).collect();
        self.0.select(&Select { rows: &rows, ..*args }, q, kv, chosen, kept);
    }

    fn windowed(&mut self, args: &Windowed<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
        self.0.windowed(&Windowed { window: args.window - 1, ..*args }, q, kv, out);
    }
}

#[test]
fn faults_are_found() {
    let failures = conform(&mut Faulty(ReferenceBackend));
    let found = |what: &str| failures.iter().any(|failure| failure.case.starts_with(what));
    assert!(found("matmul 64 x") && found("matmul 4 rows at once") && found("widening of"));
    assert!(found("attention 9 heads") && found("attention in chunks"));
    assert!(found("mix 37 x") && found("mix 9 x 4 x 7 alone") && found("select 7") && found("windowed 4"));
    assert!(!found("collapse") && !found("spread") && !found("turn") && !found("recall"));
    assert!(!found("matmul 3 x") && !found("matmul 3 rows") && !found("rope") && !found("gated"));
}

/// Results of one of each operation that threads share.
fn results(backend: &mut CpuBackend) -> Vec<Vec<f32>> {
    let mut sample = Sample::new(7);
    let mut all = Vec::new();
    for dtype in DType::ALL {
        let weight = sample.matrix(dtype, 515, 512);
        for rows in [1, 3, 17] {
            let mut out = vec![0.0; rows * 515];
            backend.matmul(&sample.values(rows * 512), rows, &weight, &mut out);
            all.push(out);
        }
    }
    let layout = KvLayout {
        layers: 1,
        kv_heads: 3,
        key_dim: 64,
        value_dim: 64,
        block_size: 16,
        format: KvFormat::F32,
        state: 0,
        paired: 0,
        rings: Rings::NONE,
    };
    let (kv, tables) = sample.kv(layout, 2, 300);
    let rows = [
        AttentionRow { start: 299, tokens: 1, from: 0, blocks: &tables[0] },
        AttentionRow { start: 50, tokens: 111, from: 20, blocks: &tables[1] },
    ];
    let args = Attention { layer: 0, heads: 9, scale: 0.125, window: Some(100), sinks: None, rows: &rows };
    let mut out = vec![0.0; 112 * 9 * 64];
    backend.attention(&args, &sample.values(out.len()), &kv, &mut out);
    all.push(out.clone());
    backend.rms_norm_in_place(&mut out, &sample.values(64), 1e-6);
    all.push(out.clone());
    backend.gated(&mut out, &sample.values(112 * 9 * 64), Activation::Silu);
    all.push(out);
    all
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let one = results(&mut CpuBackend::new(1, &[]));
    for threads in [2, 3] {
        let many = results(&mut CpuBackend::new(threads, &[]));
        for (i, (a, b)) in one.iter().zip(&many).enumerate() {
            assert!(
                a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
                "{threads} threads: result {i}"
            );
        }
    }
}
