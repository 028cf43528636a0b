//! Every backend through the conformance suite, and the same bits from any number of threads.

use millstream_kernels::check::{Failure, Sample, conform};
use millstream_kernels::{
    Activation, Attention, AttentionRow, Backend, CpuBackend, DType, KvLayout, ReferenceBackend,
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
fn plain_loops_conform() {
    assert_conforms(&mut CpuBackend::plain(2));
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
    let layout = KvLayout { layers: 1, kv_heads: 3, head_dim: 64, block_size: 16 };
    let (kv, tables) = sample.kv(layout, 2, 300);
    let rows = [
        AttentionRow { start: 299, tokens: 1, blocks: &tables[0] },
        AttentionRow { start: 50, tokens: 111, blocks: &tables[1] },
    ];
    let args = Attention { layer: 0, heads: 9, scale: 0.125, window: Some(100), rows: &rows };
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
