//! What the eyes of a model are to the rest of the system: they say what size an image must have, how many tokens it
//! takes, and make the embeddings of those tokens. The families are in files of their own, around one tower.

pub(super) mod deepseek_v41;
mod patches;
pub(super) mod qwen3_vl;
#[cfg(test)]
mod stored;
mod take;
mod tower;

use crate::backend::Backend;
use crate::config::TowerShape;
use crate::error::Error;
use crate::op::{RopeAxes, RopeTable};

/// The eyes of a model. Weights are shared and never change.
pub trait Vision: Send + Sync {
    /// What becomes of an image of `width` times `height` pixels. The caller resizes it to the plan's size before it is
    /// encoded: bicubically, with antialiasing where it becomes smaller.
    ///
    /// # Errors
    /// [`Error::Image`] if the model cannot take an image of this shape.
    fn plan(&self, width: u32, height: u32) -> Result<ImagePlan, Error>;

    /// Embeddings `[tokens, width]` of an image that has the size of its plan; `width` is [`Vision::width`]. The same image
    /// gives the same bits, whoever asks.
    ///
    /// # Errors
    /// [`Error::Image`] if `image` has another size.
    fn encode(
        &self,
        plan: &ImagePlan,
        image: Pixels<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<f32>, Error>;

    /// Values of a token of an image: those of the residual stream, or more where an image enters deeper layers too.
    fn width(&self) -> usize;

    /// Positions that heads turn by, for tokens `first..first + count` of a sequence with images at `spans` (first token
    /// of each, ascending, and its plan). Empty where tokens turn by their own positions.
    fn turns(&self, spans: &[(u32, ImagePlan)], first: u32, count: usize) -> Vec<[u32; 3]> {
        let _ = (spans, first, count);
        Vec::new()
    }
}

/// What becomes of an image.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct ImagePlan {
    /// Pixels of a row after it was resized.
    pub width: u32,
    /// Rows after it was resized.
    pub height: u32,
    /// Tokens it takes, with those that begin, part and end it.
    pub tokens: usize,
    /// Rows and columns of tokens.
    pub grid: (u32, u32),
}

/// An image: red, green, blue, a byte each, rows from the top.
#[derive(Copy, Clone, Debug)]
pub struct Pixels<'a> {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `[height, width, 3]`.
    pub rgb: &'a [u8],
}

/// How the tokens of a tower turn: one half of the pairs of a head by the row, the other half by the column, of which
/// there are at most `positions`.
fn rope(shape: &TowerShape, positions: usize) -> RopeAxes {
    let one = shape.frequencies();
    let axes = [vec![1; one.len()], vec![2; one.len()]].concat();
    RopeAxes::new(RopeTable::new(&[one.as_slice(), &one].concat(), 1.0, positions), axes)
}
