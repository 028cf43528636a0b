//! The estimator against machines whose costs are known.

use millstream_kernels::work::{RowShape, WorkFacts};
use proptest::prelude::*;

use super::*;

/// A machine with costs of its own.
struct Machine {
    costs: Coefficients,
    work: WorkFacts,
    seed: u64,
}

impl Machine {
    fn new(costs: Coefficients, seed: u64) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle/tiny-gemma3");
        Self { costs, work: WorkFacts::of_config(folder.as_ref()).expect("settings in the tree"), seed }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % below
    }

    /// A step of answers, and often a chunk of a prompt with them.
    fn step(&mut self) -> Work {
        let rows = self.random(9);
        let mut singles = Work::default();
        for _ in 0..rows {
            let row = RowShape::plain(self.random(20_000) as u32, 1, 1);
            singles += self.work.row(&row);
        }
        if rows > 0 && self.random(3) == 0 {
            return singles;
        }
        let (start, tokens) = (self.random(20_000) as u32, 2 + self.random(300) as u32);
        let chunk = RowShape::plain(start, tokens, 0);
        singles + self.work.row(&chunk)
    }

    /// What it takes, with a noise of 3 % either way.
    fn time(&mut self, work: &Work) -> f64 {
        let noise = 0.97 + 0.06 * self.random(1_000) as f64 / 1_000.0;
        self.costs.seconds(work) * noise
    }

    fn teach(&mut self, estimator: &mut Estimator, steps: usize, outliers: bool) {
        for step in 0..steps {
            let work = self.step();
            let late = if outliers && step % 10 == 7 { 10.0 } else { 1.0 };
            estimator.observe(&work, Duration::from_secs_f64(self.time(&work) * late));
        }
    }

    /// The relative error below which nine of ten predictions are.
    fn error(&mut self, estimator: &Estimator) -> f64 {
        let coefficients = estimator.coefficients();
        let steps: Vec<Work> = (0..200).map(|_| self.step()).collect();
        let error = |work| (coefficients.seconds(work) / self.costs.seconds(work) - 1.0).abs();
        let mut errors: Vec<f64> = steps.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        errors[180]
    }
}

fn costs() -> impl Strategy<Value = Coefficients> {
    let of = |most: f64| prop_oneof![1 => Just(0.0), 4 => most / 50.0..most];
    (1e-4_f64..2e-3, of(1e-4), of(2e-5), of(40.0), of(20.0), of(4.0), of(9.0)).prop_map(
        |(step, row, token, gemm, pairs, head, kv)| Coefficients {
            step,
            row,
            token,
            gemm,
            gemm_few: gemm,
            pairs,
            head,
            kv,
            ..Coefficients::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn costs_are_found_in_spite_of_noise_and_of_steps_that_stood_still(costs in costs(), seed in 1_u64..1_000_000) {
        let (mut machine, mut estimator) = (Machine::new(costs, seed), Estimator::new(Coefficients::default()));
        machine.teach(&mut estimator, 400, true);
        let error = machine.error(&estimator);
        prop_assert!(error < 0.06, "{error}: {:?} of {costs:?}", estimator.coefficients());
        prop_assert!(estimator.coefficients().is_sound());
        prop_assert!(estimator.error().is_some_and(|error| error < 0.06));
    }

    #[test]
    fn a_machine_that_becomes_slower_is_followed(costs in costs(), seed in 1_u64..1_000_000, faster in any::<bool>()) {
        let (mut machine, mut estimator) = (Machine::new(costs, seed), Estimator::new(Coefficients::default()));
        machine.teach(&mut estimator, 400, false);
        machine.costs = costs.scaled(if faster { 0.5 } else { 2.0 });
        machine.teach(&mut estimator, 24, false);
        let soon = machine.error(&estimator);
        prop_assert!(soon < 0.25, "{soon} after 24 steps");
        machine.teach(&mut estimator, 2_000, false);
        let later = machine.error(&estimator);
        prop_assert!(later < 0.08, "{later} later: {:?} of {:?}", estimator.coefficients(), machine.costs);
    }

    /// Whatever it is told, coefficients are costs, and it does not grow.
    #[test]
    fn nonsense_does_no_harm(seed in 1_u64..1_000_000) {
        let (mut machine, mut estimator) = (Machine::new(Coefficients::default(), seed), Estimator::new(Coefficients::default()));
        for _ in 0..3_000 {
            let mut work = machine.step();
            work.kv *= (1_u64 << machine.random(30)) as f64;
            let nanos = machine.random(1 << 40) >> machine.random(40);
            estimator.observe(&work, Duration::from_nanos(nanos));
        }
        prop_assert!(estimator.coefficients().is_sound(), "{:?}", estimator.coefficients());
        prop_assert!(estimator.kept() <= 48 * 6);
    }
}

#[test]
fn what_is_written_down_is_read_again() {
    let costs = Coefficients { gemm: 0.125, ..Coefficients::default() };
    let text = serde_json::to_string(&costs).expect("numbers");
    assert_eq!(serde_json::from_str::<Coefficients>(&text).expect("as it was written"), costs);
    let known = Known::new("key".to_owned(), None);
    known.set(Coefficients { gemm: -1.0, ..costs });
    known.set(Coefficients { gemm: f64::NAN, ..costs });
    assert_eq!(known.get(), None, "no fit can have brought that");
    known.set(costs);
    assert_eq!(known.get(), Some(costs));
}
