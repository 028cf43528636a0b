//! Every wish a client can have about how the next token is chosen, and what it can be told about the choice.
//! [`crate::sample`] says in which order the wishes work.

/// How the next token is chosen from the logits. Bounds are those of the HTTP interface, which checks them.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the best token (ties: the lowest id); above, logits are divided by it. 0 to 2.
    pub temperature: f32,
    /// Keeps this many best tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of best tokens whose probability reaches this; 1 keeps all. 0 to 1.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the best; 0 keeps all. 0 to 1.
    pub min_p: f32,
    /// Divides the positive logits, and multiplies the negative ones, of tokens that stand in the prompt or the answer
    /// (Keskar et al., CTRL, 2019); 1 leaves them. 0.01 to 100.
    pub repetition: f32,
    /// Taken off the logits of tokens that stand in the answer; 0 leaves them. -2 to 2.
    pub presence: f32,
    /// Taken off the logits of tokens of the answer once for each time they stand there; 0 leaves them. -2 to 2.
    pub frequency: f32,
    /// Added to the logits of these tokens, each named once. -100 to 100.
    pub bias: Vec<(u32, f32)>,
    /// Same seed, same request: same answer, whoever shares the batch.
    pub seed: u64,
}

impl Sampling {
    /// The best token each time.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        bias: Vec::new(),
        seed: 0,
    };

    /// Whether it matters which tokens stand in the answer so far.
    pub fn penalises(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }
}

/// How likely the model held a token of the answer, and which tokens it held likeliest: natural logarithms of the
/// softmax of the raw logits, before penalties, temperature and everything else a client wishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The likeliest tokens with theirs, best first, as many as were asked for.
    pub best: Vec<(u32, f32)>,
    /// Where the token begins in the answer's text, in bytes; one that goes on with an unfinished character begins where
    /// that does. Written by the detokenizer.
    pub start: usize,
}
