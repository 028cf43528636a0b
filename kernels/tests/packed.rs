//! Products with packed weights: every kernel gives the bits of the plain loops, and these are what 8-bit activations
//! should give, or activations as they are where weights are floats.

use millstream_kernels::check::Sample;
use millstream_kernels::{Backend, CpuBackend, DType, Matrix, ReferenceBackend};

/// Every format that can be packed, as stored and packed.
fn samples(sample: &mut Sample, outputs: usize) -> Vec<(Matrix, Matrix)> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        let cols: &[usize] = match dtype.block_len() {
            1 => &[1, 24, 301],
            32 => &[32, 96, 576],
            _ => &[256, 768],
        };
        for &cols in cols {
            let stored = sample.matrix(dtype, outputs, cols);
            let packed = stored.pack().expect("little memory");
            if packed.is_packed() {
                all.push((stored, packed));
            } else {
                // Floats only where vectors read them.
                assert!(CpuBackend::all(1).len() == 1 && !dtype.is_quantised(), "{dtype:?}");
            }
        }
    }
    all
}

/// Products of `x` with `weight`.
fn product(backend: &mut dyn Backend, x: &[f32], weight: &Matrix) -> Vec<f32> {
    let rows = x.len() / weight.cols;
    let mut out = vec![f32::NAN; rows * weight.rows];
    backend.matmul(x, rows, weight, &mut out);
    out
}

#[test]
fn all_kernels_give_the_same_bits() {
    let mut sample = Sample::new(21);
    let mut backends = vec![CpuBackend::new(1, &[]), CpuBackend::new(3, &[])];
    backends.extend(CpuBackend::all(2));
    for outputs in [1, 16, 55, 103] {
        for (_, packed) in samples(&mut sample, outputs) {
            for rows in (1..=9).chain([17, 31]) {
                let x = sample.values(rows * packed.cols);
                let want = product(&mut ReferenceBackend, &x, &packed);
                for backend in &mut backends {
                    let got = product(backend, &x, &packed);
                    let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                    let first = got.iter().zip(&want).position(differ);
                    assert_eq!(first, None, "{}, {rows} rows, {packed:?}", backend.name());
                }
            }
        }
    }
}

#[test]
fn integers_come_near_what_floats_give() {
    let mut sample = Sample::new(22);
    let quantised = |(stored, _): &(Matrix, Matrix)| stored.dtype.is_quantised();
    for (stored, packed) in samples(&mut sample, 40).into_iter().filter(quantised) {
        let x = sample.values(4 * stored.cols);
        let want = product(&mut ReferenceBackend, &x, &stored);
        let got = product(&mut ReferenceBackend, &x, &packed);
        // An activation below 1 is wrong by 1 / 254 at most, and by a root of three less on average.
        let rms = |v: &[f32]| (v.iter().map(|v| v * v).sum::<f32>() / v.len() as f32).sqrt();
        let error: Vec<f32> = got.iter().zip(&want).map(|(a, b)| a - b).collect();
        let allowed = rms(&stored.to_f32()) * (stored.cols as f32).sqrt() / 254.0 / 3_f32.sqrt();
        let error = rms(&error);
        assert!(error < 2.5 * allowed && error > 0.3 * allowed, "{packed:?}: {error} of {allowed}");
    }
}

#[test]
fn floats_give_what_they_give_unpacked() {
    let mut sample = Sample::new(26);
    let floats = |(stored, _): &(Matrix, Matrix)| !stored.dtype.is_quantised();
    for (stored, packed) in samples(&mut sample, 40).into_iter().filter(floats) {
        let x = sample.values(4 * stored.cols);
        let want = product(&mut ReferenceBackend, &x, &stored);
        let got = product(&mut ReferenceBackend, &x, &packed);
        let rms = |v: &[f32]| (v.iter().map(|v| v * v).sum::<f32>() / v.len() as f32).sqrt();
        let allowed = 4e-7 * stored.cols as f32 * rms(&x) * rms(&stored.to_f32());
        let error = got.iter().zip(&want).fold(0.0_f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(error <= allowed, "{packed:?}: {error:e} of {allowed:e}");
    }
}

#[test]
fn rows_of_a_packed_table_are_those_stored() {
    let mut sample = Sample::new(23);
    for (stored, packed) in samples(&mut sample, 50) {
        let tokens = [49, 0, 7, 7, 16];
        let (mut got, mut want) = (vec![0.0; 5 * stored.cols], vec![1.0; 5 * stored.cols]);
        CpuBackend::new(1, &[]).embed(&packed, &tokens, &mut got);
        ReferenceBackend.embed(&stored, &tokens, &mut want);
        assert_eq!(got, want, "{packed:?}");
    }
}

#[test]
fn what_is_no_number_does_not_vanish() {
    let mut sample = Sample::new(24);
    for (_, packed) in samples(&mut sample, 17) {
        let mut x = sample.values(2 * packed.cols);
        x[packed.cols / 2] = f32::NAN;
        let out = product(&mut CpuBackend::new(1, &[]), &x, &packed);
        assert!(out[..17].iter().all(|v| v.is_nan()) && out[17..].iter().all(|v| v.is_finite()));
    }
}

#[test]
fn nothing_times_anything_is_nothing() {
    let mut sample = Sample::new(25);
    for (_, packed) in samples(&mut sample, 5) {
        assert!(product(&mut CpuBackend::new(2, &[]), &[], &packed).is_empty());
    }
}
