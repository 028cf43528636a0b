//! What a choice must be, whatever makes it fast: the laws of the draws, the bounds, and the order in which wishes work.

use super::*;

/// Draws among all tokens, each as likely as the model says.
const PLAIN: Sampling = {
    let mut plain = Sampling::GREEDY;
    (plain.temperature, plain.seed) = (1.0, 3);
    plain
};

fn sample(sampling: Sampling, position: u32) -> Sample {
    let sampling = Arc::new(sampling);
    Sample { sampling, position, tally: Arc::default(), banned: Vec::new(), logprobs: None }
}

fn drawn(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    Sampler::default().choose(logits, &sample(sampling.clone(), position)).unwrap().id
}

/// How often each token is drawn, held against the weights: the chi-square statistic.
fn chi_square(logits: &[f32], sampling: &Sampling, weights: &[f64]) -> f64 {
    let draws = 12_000;
    let mut sampler = Sampler::default();
    let mut seen = vec![0u32; logits.len()];
    let mut choice = sample(sampling.clone(), 0);
    for position in 0..draws {
        choice.position = position;
        seen[sampler.choose(logits, &choice).unwrap().id as usize] += 1;
    }
    let total: f64 = weights.iter().sum();
    let parts = seen.iter().zip(weights).map(|(&seen, weight)| {
        let expected = weight / total * f64::from(draws);
        match expected {
            0.0 => f64::from(seen) * 1e9,
            _ => (f64::from(seen) - expected).powi(2) / expected,
        }
    });
    parts.sum()
}

fn weights(logits: &[f32], temperature: f64) -> Vec<f64> {
    logits.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect()
}

/// With 3 degrees of freedom 16.3 is passed once in a thousand, with 2 13.8; the seeds are fixed.
#[test]
fn frequencies_follow_the_softmax() {
    let logits = [0.0f32, 1.0, 2.0, -1.0];
    let sampling = Sampling { temperature: 0.7, seed: 11, ..PLAIN };
    let chi = chi_square(&logits, &sampling, &weights(&logits, 0.7));
    assert!(chi < 16.3, "all: {chi}");
    let cut = Sampling { top_k: 3, ..sampling.clone() };
    let mut kept = weights(&logits, 0.7);
    kept[3] = 0.0;
    assert!(chi_square(&logits, &cut, &kept) < 13.8);
    let cut = Sampling { min_p: 0.05, ..sampling.clone() };
    assert!(chi_square(&logits, &cut, &kept) < 13.8, "exp(-2 / 0.7) is 0.057, exp(-3 / 0.7) is 0.014");
    let biased = Sampling { bias: vec![(3, 2.0), (9, 1.0)], ..sampling };
    let chi = chi_square(&logits, &biased, &weights(&[0.0, 1.0, 2.0, 1.0], 0.7));
    assert!(chi < 16.3, "biased: {chi}");
}

/// Tokens in many blocks: 40 that count, with weights 1 to 4, far apart in a vocabulary of impossible ones.
#[test]
fn a_large_vocabulary_has_the_same_law() {
    let mut logits = vec![-60.0f32; 4_000];
    let mut weights = vec![0.0; 4_000];
    for n in 0..40 {
        logits[n * 97 + 5] = f32::from((n % 4 + 1) as u8).ln();
        weights[n * 97 + 5] = (n % 4 + 1) as f64;
    }
    for sampling in [
        PLAIN,
        Sampling { top_p: 0.9999, ..PLAIN },
        Sampling { top_k: 40, ..PLAIN },
        Sampling { min_p: 0.2, ..PLAIN },
    ] {
        let chi = chi_square(&logits, &sampling, &weights);
        assert!(
            chi < 72.1,
            "{sampling:?}: {chi}; with 39 degrees of freedom 72.1 is passed once in a thousand"
        );
    }
}

#[test]
fn bounds_cut_the_tail() {
    let logits = [0.0f32, 3.0, 2.9, 2.8];
    for position in 0..500 {
        let k = Sampling { top_k: 2, ..PLAIN };
        assert!([1, 2].contains(&drawn(&logits, &k, position)));
        for p in [0.0, 0.3] {
            assert_eq!(drawn(&logits, &Sampling { top_p: p, ..PLAIN }, position), 1);
        }
        assert_eq!(drawn(&logits, &Sampling { min_p: 1.0, ..PLAIN }, position), 1);
        let both = Sampling { top_k: 3, top_p: 0.6, ..PLAIN };
        assert!([1, 2].contains(&drawn(&logits, &both, position)), "top_p is of what top_k left");
    }
}

#[test]
fn a_nucleus_larger_than_the_first_few_is_whole() {
    let logits = vec![0.0f32; 20_000];
    let half = Sampling { top_p: 0.5, ..PLAIN };
    let ids: Vec<u32> = (0..2000).map(|position| drawn(&logits, &half, position)).collect();
    let (least, most) = (ids.iter().min().unwrap(), ids.iter().max().unwrap());
    assert!(*least < 100 && (9_900..10_000).contains(most), "{least} to {most}");
}

#[test]
fn what_is_no_number_is_refused_and_impossible_tokens_are_never_drawn() {
    let choose = |logits: &[f32], sampling: &Sampling, position| {
        Sampler::default().choose(logits, &sample(sampling.clone(), position)).map(|chosen| chosen.id)
    };
    assert_eq!(choose(&[f32::NAN, 1.0], &Sampling::GREEDY, 0), None);
    assert_eq!(choose(&[1.0, f32::INFINITY], &PLAIN, 0), None);
    assert_eq!(choose(&[f32::NEG_INFINITY; 3], &PLAIN, 0), None);
    let wide = Sampling { temperature: 2.0, top_p: 0.99, min_p: 1e-9, ..PLAIN };
    for sampling in [PLAIN, wide] {
        assert!((0..300).all(|p| choose(&[f32::NEG_INFINITY, 0.0, 0.0], &sampling, p) != Some(0)));
    }
}

#[test]
fn wishes_work_in_their_order() {
    let logits = [4.0f32, 3.0, 2.0];
    let choose = |choice: &Sample| Sampler::default().choose(&logits, choice).unwrap();
    let greedy = sample(Sampling::GREEDY, 0);
    assert_eq!(choose(&greedy).id, 0);
    assert_eq!(choose(&Sample { banned: vec![0], ..greedy.clone() }).id, 1);
    assert_eq!(
        choose(&Sample { banned: vec![0, 1, 2, 7], ..greedy.clone() }).id,
        0,
        "not everything is banned"
    );
    let biased = Arc::new(Sampling { bias: vec![(0, 100.0)], ..Sampling::GREEDY });
    let biased = Sample { sampling: biased, banned: vec![0], ..greedy.clone() };
    assert_eq!(choose(&biased).id, 1, "no bias lifts a ban");
    let sampling = Sampling { repetition: 3.0, bias: vec![(0, 1.0)], ..Sampling::GREEDY };
    let tally = Arc::new(Tally::new(&sampling, &[0], &[]));
    let punished = Sample { sampling: Arc::new(sampling), tally, logprobs: Some(1), ..greedy };
    let chosen = choose(&punished);
    assert_eq!(chosen.id, 1, "(4 + 1) / 3 is less than 3");
    let said = chosen.logprobs.unwrap();
    let total = (0.0f64.exp() + (-1.0f64).exp() + (-2.0f64).exp()).ln();
    assert!((f64::from(said.chosen) - (-1.0 - total)).abs() < 1e-6, "log-probabilities are the model's own");
    assert_eq!(said.best.len(), 1);
    assert!(said.best[0].0 == 0 && (f64::from(said.best[0].1) + total).abs() < 1e-6);
}
