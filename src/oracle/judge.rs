//! Holds one answer against its vectors. Logits are reduced as they come; nothing of the vocabulary's size is kept.

use super::folder::{Case, RowFacts, Top};

/// How near is near enough.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Between logits.
    pub logits: f32,
    /// A best token that wins by less may be another one.
    pub margin: f32,
    /// The same for greedy tokens; after one that may differ, the rest is not compared.
    pub greedy_margin: f32,
}

impl Tolerance {
    /// Tiny models are computed in float32 on both sides, and their greedy margins are large: all ids must be equal. A
    /// real quantised model (`chats`) is compared in float32 on the dequantised weights.
    pub fn of(model: &str, real: bool) -> Self {
        match (real, model) {
            (true, _) => Self { logits: 0.01, margin: 0.02, greedy_margin: 0.02 },
            (false, "tiny-gemma3") => Self { logits: 3e-3, margin: 2e-3, greedy_margin: 0.0 },
            (false, _) => Self { logits: 1e-3, margin: 2e-3, greedy_margin: 0.0 },
        }
    }
}

/// The differences of one prompt.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The prompt.
    pub name: String,
    /// Its tokens.
    pub tokens: usize,
    /// Positions seen, and how many there should be.
    pub seen: (usize, usize),
    /// The largest difference between logits.
    pub logits: f32,
    /// The same of each position's best logit.
    pub max: f32,
    /// The same of each position's logsumexp.
    pub logsumexp: f32,
    /// Positions with another best token, beyond the margin.
    pub argmax: usize,
    /// Greedy tokens equal, before the first that is not.
    pub greedy: usize,
    /// Greedy tokens compared.
    pub greedy_of: usize,
    /// The first greedy token differs although it won by this much.
    pub greedy_margin: Option<f32>,
    /// The largest difference after the last greedy token.
    pub last: Option<f32>,
    tolerance: Tolerance,
}

impl Verdict {
    /// Whether everything is within the tolerances.
    pub fn passed(&self) -> bool {
        let near = |difference: f32| difference <= self.tolerance.logits;
        let greedy = self.greedy_margin.is_none_or(|margin| margin <= self.tolerance.greedy_margin);
        self.seen.0 == self.seen.1
            && [self.logits, self.max, self.logsumexp, self.last.unwrap_or(0.0)].into_iter().all(near)
            && self.argmax == 0
            && greedy
    }

    /// How near was near enough.
    pub fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// Keeps the worse of both.
    pub fn merge(&mut self, other: Verdict) {
        self.seen.0 = self.seen.0.min(other.seen.0);
        self.logits = worse(self.logits, other.logits);
        self.max = worse(self.max, other.max);
        self.logsumexp = worse(self.logsumexp, other.logsumexp);
        self.argmax = self.argmax.max(other.argmax);
        if other.greedy < self.greedy {
            (self.greedy, self.greedy_margin) = (other.greedy, other.greedy_margin);
        }
        self.last = self.last.zip(other.last).map(|(a, b)| worse(a, b)).or(self.last).or(other.last);
    }
}

/// The larger difference; one that is not a number is the largest of all.
fn worse(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

/// Takes an answer in as it comes.
pub struct Judge<'a> {
    case: &'a Case,
    verdict: Verdict,
    /// Positions not seen yet, ascending.
    missing: Vec<u32>,
    answer: Vec<u32>,
    /// The largest difference after the last greedy token; it counts only when all of them were equal.
    last: Option<f32>,
}

impl<'a> Judge<'a> {
    /// Nothing has come yet.
    pub fn new(case: &'a Case, tolerance: Tolerance) -> Self {
        let missing = case.observed();
        let verdict = Verdict {
            name: case.name.clone(),
            tokens: case.ids.len(),
            seen: (0, missing.len()),
            logits: 0.0,
            max: 0.0,
            logsumexp: 0.0,
            argmax: 0,
            greedy: 0,
            greedy_of: case.greedy.len(),
            greedy_margin: None,
            last: None,
            tolerance,
        };
        Self { case, verdict, missing, answer: Vec::new(), last: None }
    }

    /// More of the answer.
    pub fn tokens(&mut self, tokens: &[u32]) {
        self.answer.extend_from_slice(tokens);
    }

    /// Logits after the token at `position`; the same position may come again.
    pub fn logits(&mut self, position: u32, logits: &[f32]) {
        if let Ok(place) = self.missing.binary_search(&position) {
            self.missing.remove(place);
        }
        if let Some(full) = self.case.full.get(&position) {
            self.verdict.logits = worse(self.verdict.logits, difference(full, logits));
        }
        if let Some(top) = self.case.top.get(&position) {
            self.top(top, logits);
        }
        if let Some(row) = self.case.rows.get(position as usize) {
            self.row(row, logits);
        }
        if let Some(last) = self.case.last.as_ref().filter(|_| position == self.case.last_position()) {
            self.last = Some(worse(self.last.unwrap_or(0.0), difference(last, logits)));
        }
    }

    fn top(&mut self, top: &Top, logits: &[f32]) {
        for (id, value) in &top.best {
            let ours = logits.get(*id as usize).copied().unwrap_or(f32::NAN);
            self.verdict.logits = worse(self.verdict.logits, (ours - value).abs());
        }
        if let Some(expected) = top.logsumexp {
            self.verdict.logsumexp = worse(self.verdict.logsumexp, (logsumexp(logits) - expected).abs());
        }
    }

    fn row(&mut self, row: &RowFacts, logits: &[f32]) {
        let (best, max) = best(logits);
        let theirs = logits.get(row.argmax as usize).copied().unwrap_or(f32::NAN);
        let near = max - theirs <= self.verdict.tolerance.margin;
        let other = best != row.argmax && !near;
        self.verdict.argmax += usize::from(other);
        self.verdict.max = worse(self.verdict.max, (max - row.max).abs());
        self.verdict.logsumexp = worse(self.verdict.logsumexp, (logsumexp(logits) - row.logsumexp).abs());
    }

    /// All has come.
    pub fn verdict(mut self) -> Verdict {
        let pairs = self.case.greedy.iter().zip(&self.answer);
        self.verdict.greedy = pairs.take_while(|((expected, _), ours)| expected == *ours).count();
        self.verdict.greedy_margin = self.case.greedy.get(self.verdict.greedy).map(|(_, margin)| *margin);
        if self.verdict.greedy_margin.is_none() {
            self.verdict.last = self.last;
        }
        self.verdict.seen.0 = self.verdict.seen.1 - self.missing.len();
        self.verdict
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::NAN;
    }
    a.iter().zip(b).fold(0.0, |most, (a, b)| worse(most, (a - b).abs()))
}

/// The best token and its logit; ties go to the lowest id.
fn best(logits: &[f32]) -> (u32, f32) {
    let better = |best: (u32, f32), (id, value): (usize, &f32)| {
        if *value > best.1 { (id as u32, *value) } else { best }
    };
    logits.iter().enumerate().fold((0, f32::NEG_INFINITY), better)
}

fn logsumexp(logits: &[f32]) -> f32 {
    let max = f64::from(best(logits).1);
    let sum: f64 = logits.iter().map(|value| (f64::from(*value) - max).exp()).sum();
    (max + sum.ln()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        let mut case =
            Case { name: "c".into(), ids: vec![1, 2], greedy: vec![(2, 0.5), (0, 1e-4)], ..Case::default() };
        case.full.insert(1, vec![0.0, 1.0, 2.0]);
        case.rows = vec![RowFacts { argmax: 0, max: 1.0, logsumexp: 1.0 }; 0];
        case.last = Some(vec![1.0, 0.0, 0.0]);
        case
    }

    fn judged(answer: &[u32], moved: f32) -> Verdict {
        let case = case();
        let mut judge = Judge::new(&case, Tolerance::of("tiny-llama", false));
        judge.logits(1, &[0.0, 1.0, 2.0 + moved]);
        judge.logits(3, &[1.0, 0.0, 0.0]);
        judge.tokens(answer);
        judge.verdict()
    }

    #[test]
    fn equal_answers_pass() {
        let verdict = judged(&[2, 0, 1], 5e-4);
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!((verdict.greedy, verdict.last), (2, Some(0.0)));
    }

    #[test]
    fn differences_fail() {
        assert!(!judged(&[2, 0, 1], 5e-3).passed());
        assert!(!judged(&[2, 0, 1], f32::NAN).passed());
        assert!(!judged(&[1, 0, 1], 0.0).passed());
        assert!(!judged(&[2], 0.0).passed());
    }

    #[test]
    fn an_unseen_position_fails() {
        let case = case();
        let mut judge = Judge::new(&case, Tolerance::of("tiny-llama", false));
        judge.tokens(&[2, 0, 1]);
        assert!(!judge.verdict().passed());
    }
}
