//! How a model guesses further tokens at once, for a step to verify: what the rest of the system sees of it.

use super::Scratch;
use crate::backend::Backend;
use crate::error::Error;
use crate::kv::KvMemory;

/// The drafting layers of a model. Weights are shared and never change; a draft leaves no trace in `kv`.
pub trait Drafter: Send + Sync {
    /// Tokens that are guessed at once.
    fn block(&self) -> usize;

    /// Guesses the tokens behind each row's token. They are fixed one after the other: `choose` says, of the logits of a
    /// row's guess, which token it is.
    ///
    /// A row's values do not depend on the other rows, to the last bit.
    ///
    /// # Errors
    /// [`Error::Step`] or [`Error::KvLayout`] if a row does not fit the model or the memory.
    #[expect(clippy::too_many_arguments, reason = "those of a step, and who chooses")]
    fn draft(
        &self,
        rows: &[DraftRow],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
        choose: &mut Choose<'_>,
    ) -> Result<Drafts, Error>;
}

/// Which token a guess is: of the row, the number of the guess in it, and its logits.
pub type Choose<'a> = dyn FnMut(usize, usize, &[f32]) -> u32 + 'a;

/// One sequence that is guessed on.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct DraftRow {
    /// Its newest token, which no step has computed yet.
    pub token: u32,
    /// Position of that; steps have computed all before it.
    pub position: u32,
    /// Its state slot.
    pub slot: u32,
    /// The slot knows positions from here on.
    pub valid_from: u32,
}

/// Guesses: of each row as many as [`Drafter::block`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafts {
    /// What was chosen `[rows, block]`.
    pub tokens: Vec<u32>,
    /// How likely each is to be what the model says, `[rows, block]`, from 0 to 1.
    pub confidences: Vec<f32>,
    /// What guesses are made from `[rows, block, hidden]`.
    pub hidden: Vec<f32>,
    /// Logits that know nothing of the guesses before `[rows, block, vocab]`.
    pub base: Vec<f32>,
    /// Logits that tokens were chosen from `[rows, block, vocab]`.
    pub logits: Vec<f32>,
}
