//! What must hold of any plan: more hits cost no less, a tighter goal needs no fewer devices, keeping longer holds no less.

use proptest::prelude::*;

use super::group::Hardware;
use super::keep::{Keep, named};
use super::search::{Question, SHARES};
use super::spec::{Counted, Spec};
use super::{Demand, Hits, Model, check};
use crate::capacity::figures::Device;

/// A model of eight billion weights, half of them experts if there are some, on H100s.
fn spec(mixture: bool) -> Spec {
    let text = "[workload]\nrequests_a_day = 1e6\nprompt = 4000\nanswer = 200\nhit_share = 0.5\n[model]\n[device]\n\
                name = \"h100\"\nmemory = \"80GiB\"\nhour = 2\n[goal]\nfirst_token_ms = 500\nbetween_tokens_ms = 30\n\
                [tiers.shared]\nbytes_per_second = 5e9\ngib_month = 0.02\n[search]\nprefill = [1, 4, 16]\n\
                decode = [1, 4, 16]\njoined = [1, 4, 16]\nchunks = [1024, 8192]\nretention = [\"1h\", \"1d\", \"7d\"]\n";
    let mut spec = Spec::read(text).expect("it is sound").0;
    let model = spec.model.as_mut().expect("it is there");
    model.figures = Some(Counted {
        layers: 32,
        hidden: 4_096.0,
        multiply_adds: 7e9,
        pair: 2.0 * 32.0 * 4_096.0,
        head: 5e8,
        weights: 7e9,
        experts: if mixture { 40e9 } else { 0.0 },
        chosen: if mixture { 1.0 / 16.0 } else { 0.0 },
        experts_per_token: if mixture { 4.0 } else { 0.0 },
        kv_bytes: 131_072.0,
        state_bytes: 0.0,
    });
    assert_eq!(check(&spec), Vec::<String>::new());
    spec
}

struct Parts {
    spec: Spec,
    model: Model,
    device: Device,
    demand: Demand,
}

impl Parts {
    fn new(mixture: bool, (requests, prompt, answer): (f64, f64, f64)) -> Self {
        let mut spec = spec(mixture);
        spec.workload.requests_a_day = Some(requests);
        spec.workload.prompt = Some(prompt);
        spec.workload.answer = Some(answer);
        let written = spec.model.as_ref().expect("it is there");
        let model = Model::of_figures(written.figures.as_ref().expect("they are there"), written);
        let demand = Demand::new(&spec.workload, None).expect("it is whole");
        Self { spec, model, device: Device::of("h100").expect("the table has it"), demand }
    }

    /// Money and devices of the cheapest choice, if blocks are kept for so long.
    fn cheapest(&self, kept_s: f64) -> Option<(f64, f64)> {
        let of = Hardware { model: &self.model, device: &self.device, spec: &self.spec.device };
        let goal = self.spec.goal.as_ref().expect("it is there");
        let question = Question { of, demand: &self.demand, goal, search: &self.spec.search };
        let tier = named(&self.spec.tiers)[0];
        let found = question.search(&[Keep::new(tier, kept_s, &self.demand)]);
        found.choices.first().map(|best| (best.hour, best.devices))
    }
}

fn demands() -> impl Strategy<Value = (bool, (f64, f64, f64))> {
    let lengths = (1e3..1e8, 10.0..100_000.0, 1.0..4_000.0);
    (any::<bool>(), lengths)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn more_hits_cost_no_more(of in demands(), kept in 60.0..1e6) {
        let mut parts = Parts::new(of.0, of.1);
        let mut before = f64::INFINITY;
        for share in SHARES {
            parts.demand.hits = Hits::Always(share);
            let hour = parts.cheapest(kept).map_or(f64::INFINITY, |best| best.0);
            prop_assert!(hour <= before * (1.0 + 1e-12), "{share}: {hour} after {before}");
            before = hour;
        }
    }

    #[test]
    fn a_tighter_goal_needs_no_fewer_devices(of in demands(), first in 1.0..4.0, between in 1.0..4.0) {
        let mut parts = Parts::new(of.0, of.1);
        parts.spec.tiers.shared.as_mut().expect("it is there").gib_month = 0.0;
        let loose = parts.cheapest(3_600.0);
        let goal = parts.spec.goal.as_mut().expect("it is there");
        goal.first_token_ms /= first;
        goal.between_tokens_ms /= between;
        let tight = parts.cheapest(3_600.0);
        match (loose, tight) {
            (Some(loose), Some(tight)) => prop_assert!(tight.1 >= loose.1, "{tight:?} after {loose:?}"),
            (None, Some(tight)) => prop_assert!(false, "only the tighter goal is reached: {tight:?}"),
            (_, None) => {}
        }
    }

    #[test]
    fn keeping_longer_holds_no_less(
        of in demands(),
        shares in proptest::collection::vec(0.0..1.0, 1..6),
        times in (10.0..1e6, 1.0..100.0),
    ) {
        let mut parts = Parts::new(of.0, of.1);
        let point = |(place, share): (usize, &f64)| super::spec::Hit {
            kept: super::spec::Span(10_f64.powi(place as i32 + 1)),
            share: *share,
            there_s: None,
        };
        parts.spec.workload.hit_share = None;
        parts.spec.workload.hits = shares.iter().enumerate().map(point).collect();
        let demand = Demand::new(&parts.spec.workload, None).expect("it is whole");
        let tier = named(&parts.spec.tiers)[0];
        let held = |kept: f64| Keep::new(tier, kept, &demand).held(&demand, &parts.model, 0.0).bytes;
        let (short, long) = (held(times.0), held(times.0 * times.1));
        prop_assert!(long >= short * (1.0 - 1e-12), "{long} after {short}");
    }
}

#[test]
fn the_same_question_has_the_same_answer() {
    let parts = Parts::new(true, (1e7, 8_000.0, 300.0));
    let [one, other] = [(), ()].map(|()| parts.cheapest(86_400.0).expect("it is possible"));
    assert_eq!(one, other);
}

/// By hand: one group of one device, a prompt of 1,024 tokens, nothing found.
#[test]
fn a_step_takes_what_is_counted_by_hand() {
    let mut parts = Parts::new(false, (1.0, 1_024.0, 1.0));
    parts.spec.search.chunks = vec![1_024];
    let of = Hardware { model: &parts.model, device: &parts.device, spec: &parts.spec.device };
    let prompt = parts.model.prompt(1_024.0, 0.0);
    let group = super::group::Group { of, devices: 1 };
    let seconds = group.seconds(&prompt.work, 1_024.0);
    let products = 1_016.0 / 1_024.0 * 7e9 * 1_024.0 + 1_024.0 * 1_025.0 / 2.0 * 2.0 * 32.0 * 4_096.0 + 5e8;
    let bytes = 2.0 * 7.5e9 + 1_024.0 * 131_072.0;
    let by_hand = 500e-6 + 2.0 * products / (989e12 * 0.5) + bytes / (3.35e12 * 0.8);
    assert!((seconds / by_hand - 1.0).abs() < 1e-9, "{seconds} and {by_hand}");
}
