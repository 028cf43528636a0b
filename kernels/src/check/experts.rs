//! Operations that are composed of others where a backend has no better: products of single heads, mixtures of experts.

use super::{ACTIVATIONS, Check, rms};
use crate::backend::Backend;
use crate::dtype::DType;
use crate::experts::{Expert, ExpertBias, ExpertBuffers, Experts, Routing};
use crate::op::Activation;

/// Tokens of a mixture.
const TOKENS: usize = 11;
/// Width of a token.
const HIDDEN: usize = 64;
/// Width of an expert.
const INTERMEDIATE: usize = 96;

/// Experts of a token, with weights.
type Chosen = [(u32, f32); 2];

impl Check<'_> {
    /// Products of each head with a weight of its own, at once and a row at a time.
    pub(super) fn heads(&mut self) {
        for (heads, cols, outputs) in [(1, 32, 8), (5, 64, 24), (3, 96, 7)] {
            for dtype in [DType::F32, DType::BF16, DType::F8E4M3, DType::Q8_0] {
                let weights: Vec<_> = (0..heads).map(|_| self.sample.matrix(dtype, outputs, cols)).collect();
                let x = self.sample.values(9 * heads * cols);
                let (mut got, mut want) =
                    (vec![f32::NAN; 9 * heads * outputs], vec![0.0; 9 * heads * outputs]);
                self.backend.matmul_heads(&x, 9, &weights, &mut got);
                self.reference.matmul_heads(&x, 9, &weights, &mut want);
                let terms = (cols as f32).sqrt();
                let size = rms(&x) * rms(&weights[0].to_f32()) * terms;
                let case = format!("matmul_heads {heads} x {:?}", weights[0]);
                self.close(&case, &got, &want, (size, 4e-7 * terms));
                for (x, out) in x.chunks_exact(heads * cols).zip(want.chunks_exact_mut(heads * outputs)) {
                    self.backend.matmul_heads(x, 1, &weights, out);
                }
                self.same(format!("{case} by rows"), &got, &want);
            }
        }
    }

    /// Mixtures against the reference, then each token against itself in another company.
    pub(super) fn experts(&mut self) {
        for activation in ACTIVATIONS {
            for (dtype, biased) in [(DType::BF16, false), (DType::MXFP4, true), (DType::Q4_0, false)] {
                let experts: Vec<Expert> = (0..7).map(|_| self.expert(dtype, biased)).collect();
                self.mixture(&experts, activation, format!("experts {dtype:?}, {activation:?}"));
            }
        }
    }

    /// An expert of random weights.
    fn expert(&mut self, dtype: DType, biased: bool) -> Expert {
        let gate = self.sample.matrix(dtype, INTERMEDIATE, HIDDEN);
        let up = self.sample.matrix(dtype, INTERMEDIATE, HIDDEN);
        let down = self.sample.matrix(dtype, HIDDEN, INTERMEDIATE);
        let bias = biased.then(|| ExpertBias {
            gate: self.sample.values(INTERMEDIATE),
            up: self.sample.values(INTERMEDIATE),
            down: self.sample.values(HIDDEN),
        });
        Expert { gate, up, down, bias }
    }

    /// One mixture, whose first expert no token has and whose last one all have.
    fn mixture(&mut self, experts: &[Expert], activation: Activation, case: String) {
        let x: Vec<f32> = self.sample.values(TOKENS * HIDDEN).iter().map(|x| x / 4.0).collect();
        let last = experts.len() as u32 - 1;
        let chosen: Vec<Chosen> = (0..TOKENS)
            .map(|_| [(last, self.sample.value()), (1 + self.sample.below(experts.len() - 2) as u32, 0.5)])
            .collect();
        let got = self.mixed(experts, activation, (&x, &chosen), true);
        let want = self.mixed(experts, activation, (&x, &chosen), false);
        self.close(&case, &got, &want, (rms(&want).max(1.0), 4e-5));
        let mut alone = Vec::new();
        for token in (0..TOKENS).rev() {
            let at = token * HIDDEN;
            let tokens = [&x[at..at + HIDDEN], &x[..HIDDEN]].concat();
            let both = self.mixed(experts, activation, (&tokens, &[chosen[token], chosen[0]]), true);
            alone.splice(0..0, both[..HIDDEN].iter().copied());
        }
        self.same(format!("{case} in other company"), &alone, &got);
    }

    /// The mixture of `x` under these choices, by the backend under test or by the reference.
    fn mixed(
        &mut self,
        experts: &[Expert],
        activation: Activation,
        (x, chosen): (&[f32], &[Chosen]),
        tested: bool,
    ) -> Vec<f32> {
        let mut routing = Routing::new();
        chosen.iter().for_each(|chosen| routing.push(*chosen));
        routing.arrange();
        let args = Experts { experts, activation, routing: &routing };
        let mut out = vec![f32::NAN; x.len()];
        let backend: &mut dyn Backend = if tested { self.backend } else { &mut self.reference };
        backend.experts(&args, x, &mut ExpertBuffers::default(), &mut out);
        out
    }
}
