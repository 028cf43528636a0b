//! What a client may wish of an answer, through the whole graph: how it may end, what is said of its tokens, and that
//! requests of one family are computed together.

mod common;

use std::time::Duration;

use common::{Answer, World, alone, plan, prompts, resources, submit};
use millstream_actors::request::{Finish, Outcome, Prompt, Refusal, Reply, RequestId, Sampling, Submit};
use millstream_actors::sample::choice_seed;
use millstream_runtime::Faults;

fn greedy(tokens: u32) -> Submit {
    Submit { sampling: Sampling::GREEDY, tokens_min: 0, ..submit(1, &prompts()[4], tokens) }
}

fn answer(submit: &Submit) -> Answer {
    alone(&resources("tiny-llama"), std::slice::from_ref(submit))
        .remove(&submit.request)
        .expect("it was asked")
}

/// The outcome of a request that is refused.
fn refusal(submit: Submit) -> Refusal {
    match answer(&submit).outcome {
        Some(Outcome::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stop_token_ends_the_answer_once_it_is_long_enough() {
    let free = answer(&greedy(40));
    // A token that comes early, and again or not.
    let stop = free.tokens[5];
    let at = free.tokens.iter().position(|&id| id == stop).expect("it was just read");
    let stopped = answer(&Submit { stop_tokens: vec![stop], ..greedy(40) });
    assert_eq!(stopped.outcome, Some(Outcome::Finished(Finish::Stop)));
    assert_eq!(stopped.tokens, free.tokens[..=at]);
    assert_eq!(stopped.text.trim_end_matches('\u{FFFD}'), &free.text[..free.logprobs[at].start]);
    assert_eq!(stopped.logprobs[at].start, stopped.text.len());
    let later = answer(&Submit { stop_tokens: vec![stop], tokens_min: 20, ..greedy(40) });
    assert_eq!(later.tokens[..at], free.tokens[..at]);
    assert!(later.tokens.len() >= 20 && !later.tokens[..20].contains(&stop), "{later:?}");
    assert_ne!(later.logprobs[at].best[0].0, later.tokens[at], "the ban is not the model's own opinion");
    assert_eq!(later.logprobs[at].best[0].0, stop);
}

#[test]
fn a_stop_string_counts_once_the_answer_is_long_enough() {
    let free = answer(&greedy(40));
    let stop: String = free.text.chars().skip(3).take(1).collect();
    let stopped = answer(&Submit { stops: vec![stop.clone()], ..greedy(40) });
    assert_eq!(stopped.text, free.text.split(&stop).next().unwrap_or_default());
    let later = answer(&Submit { stops: vec![stop], tokens_min: 30, ..greedy(40) });
    assert!(later.tokens.len() > 30, "{} tokens", later.tokens.len());
    assert!(free.text.starts_with(&later.text));
}

#[test]
fn tokens_begin_where_their_text_does() {
    let resources = resources("tiny-llama");
    let free = answer(&greedy(60));
    for (said, &id) in free.logprobs.iter().zip(&free.tokens) {
        let bytes = resources.tokenizer.bytes(id);
        // What came before may have left a character unfinished.
        let text = free.text[said.start..].trim_start_matches('\u{FFFD}');
        if std::str::from_utf8(bytes).is_ok() {
            assert!(text.as_bytes().starts_with(bytes), "token {id} at {}", said.start);
        }
    }
}

#[test]
fn settings_that_do_not_fit_the_model_are_refused_by_name() {
    let field = |submit: Submit| match refusal(submit) {
        Refusal::Field { field, .. } => field,
        other => panic!("{other:?}"),
    };
    let sampling = Sampling { bias: vec![(1 << 20, 1.0)], ..Sampling::GREEDY };
    assert_eq!(field(Submit { sampling, ..greedy(4) }), "logit_bias");
    assert_eq!(field(Submit { stop_tokens: vec![1 << 20], ..greedy(4) }), "stop_token_ids");
    assert_eq!(field(Submit { tokens_min: 5, ..greedy(4) }), "min_tokens");
}

#[test]
fn a_family_is_computed_by_one_group_and_each_answers_as_if_alone() {
    let resources = resources("tiny-llama");
    let prompt = std::sync::Arc::new(Prompt::Tokens(prompts()[5].clone()));
    let member = |choice: u32| {
        let sampling = Sampling { temperature: 1.0, seed: choice_seed(9, choice), ..Sampling::GREEDY };
        let id = RequestId(10 + u64::from(choice));
        let ask = Submit::new(std::sync::Arc::clone(&prompt), sampling);
        let family = Some(RequestId(10));
        Submit { request: id, family, tokens_max: Some(16), ignore_end: true, logprobs: Some(2), ..ask }
    };
    let members: Vec<Submit> = (0..8).map(member).collect();
    let expected = alone(&resources, &members);
    let several = plan("groups = 2", "groups = 3\njoined = false");
    let mut world = World::new(&several, &resources, 4, Faults::none());
    for submit in &members {
        world.submit_at(Duration::ZERO, submit.clone());
    }
    world.run();
    assert_eq!(world.answers, expected);
    let busy = |name: &str| {
        let groups = world.assembly.gauges.iter().filter(|group| group.name.starts_with(name));
        groups.filter(|group| group.steps.get() > 0).count()
    };
    assert_eq!((busy("decode"), busy("prefill")), (1, 1));
    world.assert_quiet("family");
    let texts: std::collections::BTreeSet<&str> = expected.values().map(|a| a.text.as_str()).collect();
    assert_eq!(texts.len(), 8, "each has a seed of its own");
    assert!(matches!(expected[&RequestId(10)].outcome, Some(Outcome::Finished(Finish::Length))));
}

#[test]
fn without_the_wish_nothing_is_said_of_tokens() {
    let resources = resources("tiny-llama");
    let mut world = World::new(&plan("", "joined = false"), &resources, 4, Faults::none());
    world.submit_at(Duration::ZERO, Submit { logprobs: None, ..greedy(6) });
    world.sim.run_until_idle(millstream_runtime::Time::ZERO + common::LONG);
    while let Some(reply) = world.assembly.doors.replies.try_recv() {
        if let Reply::Text { logprobs, .. } = reply {
            assert!(logprobs.is_empty());
        }
    }
}
