//! The clients of a simulation: each asks when its workload says, or so long after its last answer, and notes what it gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::request::{Outcome, Prompt, Reply, RequestId, Sampling, Submit, Usage};
use millstream_runtime::{Inlet, Outlet, Time};

use super::Histogram;
use super::meter::Meter;
use crate::meters::outcome_name;
use crate::workload::{Talk, TraceError};

/// What a client has asked and waits for.
struct Open {
    talk: Talk,
    /// Which of its rounds.
    round: usize,
    came: Time,
    /// When the first token came.
    first: Option<Time>,
}

/// What the clients have got.
#[derive(Default)]
pub(super) struct Heard {
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Until the first token.
    pub first: Histogram,
    /// From the first token to the last, for each token between.
    pub each: Histogram,
    /// Until the last token.
    pub whole: Histogram,
    /// Of the requests that were answered.
    pub prompt: u64,
    pub cached: u64,
    pub replayed: u64,
    pub answer: u64,
    pub ended: Time,
    /// Last words after the first, which must not be.
    pub again: u64,
}

/// See the module.
pub(super) struct Crowd<T> {
    talks: T,
    speed: f64,
    /// Requests that may still come.
    left: u64,
    block_size: u32,
    /// The next talk to begin.
    next: Option<Talk>,
    /// Talks that go on, by when and in which order that was known.
    due: BTreeMap<(Time, u64), (Talk, usize)>,
    open: BTreeMap<RequestId, Open>,
    /// Requests so far.
    pub came: u64,
    pub heard: Heard,
    meter: Arc<Meter>,
}

impl<T: Iterator<Item = Result<Talk, TraceError>>> Crowd<T> {
    /// Clients of these talks, which come `speed` times as fast, and ask `requests` times in all at most.
    pub fn new(talks: T, (speed, requests): (f64, u64), (block_size, meter): (u32, Arc<Meter>)) -> Self {
        Self {
            talks,
            speed,
            left: requests,
            block_size,
            next: None,
            due: BTreeMap::new(),
            open: BTreeMap::new(),
            came: 0,
            heard: Heard::default(),
            meter,
        }
    }

    /// When the next client asks, as far as that is known.
    pub fn next(&mut self) -> Result<Option<Time>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        while self.next.is_none() {
            let Some(talk) = self.talks.next().transpose()? else { break };
            self.next = Some(talk).filter(|talk| !talk.rounds.is_empty());
        }
        let begins = self.next.as_ref().map(|talk| Time::ZERO + scaled(talk.at, self.speed));
        let goes_on = self.due.first_key_value().map(|(&(at, _), _)| at);
        Ok(begins.into_iter().chain(goes_on).min())
    }

    /// Whether nobody waits.
    pub fn is_answered(&self) -> bool {
        self.open.is_empty()
    }

    /// How many still wait.
    pub fn waiting(&self) -> usize {
        self.open.len()
    }

    /// Whoever is due asks.
    pub fn come(&mut self, door: &Inlet<Submit>, now: Time) {
        while self.left > 0 {
            let (talk, round) = match self.due.first_key_value() {
                Some((&(at, _), _)) if at <= now => {
                    let Some((_, due)) = self.due.pop_first() else { return };
                    due
                }
                _ => {
                    let begins = |talk: &mut Talk| Time::ZERO + scaled(talk.at, self.speed) <= now;
                    let Some(talk) = self.next.take_if(begins) else { return };
                    (talk, 0)
                }
            };
            self.ask((talk, round), door, now);
            if self.next.is_none() && self.due.is_empty() {
                return; // the next talk is not read yet
            }
        }
    }

    fn ask(&mut self, (talk, round): (Talk, usize), door: &Inlet<Submit>, now: Time) {
        let asked = &talk.rounds[round];
        (self.came, self.left) = (self.came + 1, self.left - 1);
        let request = RequestId(self.came);
        let blocks = asked.blocks.names((asked.input / self.block_size) as usize, self.came);
        let prompt = Prompt::Hollow { tokens: asked.input, blocks };
        let submit = Submit {
            request,
            tokens_max: Some(asked.output),
            ignore_end: true,
            ..Submit::new(prompt, Sampling::GREEDY)
        };
        self.meter.came(now);
        if door.offer(submit).is_err() {
            *self.heard.outcomes.entry("refused_door").or_default() += 1;
            return;
        }
        self.open.insert(request, Open { talk, round, came: now, first: None });
    }

    /// Takes what has come out by now.
    pub fn hear(&mut self, replies: &Outlet<Reply>, now: Time) {
        while let Some(reply) = replies.try_recv() {
            match reply {
                Reply::Text { request, .. } => {
                    let Some(open) = self.open.get_mut(&request).filter(|open| open.first.is_none()) else {
                        continue;
                    };
                    open.first = Some(now);
                    let took = now.saturating_since(open.came);
                    self.heard.first.add(took, 1);
                    self.meter.first(now, took);
                }
                Reply::Logits { .. } => {}
                Reply::End { request, outcome, usage } => self.end(request, (&outcome, usage), now),
            }
        }
    }

    fn end(&mut self, request: RequestId, (outcome, usage): (&Outcome, Usage), now: Time) {
        let Some(open) = self.open.remove(&request) else {
            self.heard.again += 1;
            return;
        };
        let heard = &mut self.heard;
        *heard.outcomes.entry(outcome_name(outcome)).or_default() += 1;
        heard.ended = now;
        self.meter.ended(request, now, usage);
        let Open { talk, round, came, first } = open;
        if let (Outcome::Finished(_), Some(first)) = (outcome, first) {
            heard.whole.add(now.saturating_since(came), 1);
            if usage.completion_tokens > 1 {
                heard.each.add(now.saturating_since(first) / (usage.completion_tokens - 1), 1);
            }
            heard.prompt += u64::from(usage.prompt_tokens);
            heard.cached += u64::from(usage.cached_tokens);
            heard.replayed += u64::from(usage.replayed_tokens);
            heard.answer += u64::from(usage.completion_tokens);
        }
        if let Some(next) = talk.rounds.get(round + 1) {
            let at = now + scaled(next.after, self.speed);
            self.due.insert((at, request.0), (talk, round + 1));
        }
    }
}

fn scaled(span: Duration, speed: f64) -> Duration {
    if speed == 1.0 {
        span
    } else {
        Duration::try_from_secs_f64(span.as_secs_f64() / speed).unwrap_or(Duration::MAX)
    }
}
