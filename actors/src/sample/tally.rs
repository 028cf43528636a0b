//! What penalties count: which tokens stand in prompt and answer, and how often in the answer. A function of the tokens
//! alone, so that a sequence that is recomputed, taken over or sent down the road again has the same one.

use crate::request::Sampling;

/// Tokens that stand in a sequence. Empty where no penalty asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Whether anything is counted.
    counts: bool,
    /// Token and how often it stands in the answer, by token; 0 for those of the prompt alone.
    seen: Vec<(u32, u32)>,
}

impl Tally {
    /// Counts what `sampling` asks for.
    pub fn new(sampling: &Sampling, prompt: &[u32], answer: &[u32]) -> Self {
        if !sampling.penalises() {
            return Self::default();
        }
        let mut seen: Vec<(u32, u32)> = Vec::new();
        if sampling.repetition != 1.0 {
            seen.extend(prompt.iter().map(|&id| (id, 0)));
            seen.sort_unstable();
            seen.dedup();
        }
        let mut tally = Self { counts: true, seen };
        answer.iter().for_each(|&id| tally.add(id));
        tally
    }

    /// One more token of the answer.
    pub fn add(&mut self, id: u32) {
        if !self.counts {
            return;
        }
        match self.seen.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => self.seen[at].1 += 1,
            Err(at) => self.seen.insert(at, (id, 1)),
        }
    }

    /// Applies the penalties to the logits.
    pub(super) fn apply(&self, sampling: &Sampling, logits: &mut [f32]) {
        for &(id, times) in &self.seen {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            let repetition = sampling.repetition;
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            if times > 0 {
                *logit -= sampling.frequency * times as f32 + sampling.presence;
            }
        }
    }

    /// Whether no logit changes.
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_are_those_of_their_definitions() {
        let sampling = Sampling { repetition: 2.0, presence: 0.5, frequency: 0.25, ..Sampling::GREEDY };
        let tally = Tally::new(&sampling, &[3, 1, 3], &[2, 1, 2]);
        let mut logits = [1.0, 1.0, -1.0, -1.0, -1.0];
        tally.apply(&sampling, &mut logits);
        // 0 and 4 are new; 1 stands in both, 2 twice in the answer, 3 in the prompt alone.
        assert_eq!(logits, [1.0, 0.5 - 0.75, -2.0 - 1.0, -2.0, -1.0]);
        let presence = Sampling { presence: 1.0, ..Sampling::GREEDY };
        let mut logits = [0.0; 4];
        Tally::new(&presence, &[3], &[2, 2]).apply(&presence, &mut logits);
        assert_eq!(logits, [0.0, 0.0, -1.0, 0.0], "the prompt does not count");
    }

    #[test]
    fn a_tally_is_the_same_however_it_grew() {
        let sampling = Sampling { repetition: 1.1, ..Sampling::GREEDY };
        let answer = [9, 4, 9, 0, 7, 4, 9];
        let mut grown = Tally::new(&sampling, &[4, 5], &[]);
        for (at, &id) in answer.iter().enumerate() {
            assert_eq!(grown, Tally::new(&sampling, &[4, 5], &answer[..at]));
            grown.add(id);
        }
        let mut none = Tally::new(&Sampling::GREEDY, &[4, 5], &answer);
        none.add(1);
        assert!(none.is_empty());
    }
}
