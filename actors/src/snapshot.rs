//! Snapshots: what a sequence had computed at one position, so that another that begins with the same tokens goes on right
//! behind it. A snapshot is the entries of the tokens behind the last full block and, where the model keeps a state, that
//! state. Full blocks are found by their own names.
//!
//! Prompts and answers end within a block as a rule. What is behind their last full block has no name of its own: it is
//! found under the name of that block, by its tokens.

use std::sync::Arc;
use std::time::Duration;

use crate::kv::BlockHash;
use crate::picture::PictureDigest;
use crate::request::PromptImage;
use crate::store::Payload;

/// Tokens behind a full block, fewer than a block has, and the images that some of them stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    tokens: Vec<u32>,
    images: Vec<Seen>,
}

/// An image that some tokens of a tail stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// Where it begins and ends, counted from the first token of the tail.
    first: i64,
    end: i64,
    digest: PictureDigest,
}

impl Tail {
    /// `tokens`, the first of which is at position `from` of a sequence with these images.
    pub fn new(tokens: &[u32], from: usize, images: &[PromptImage]) -> Self {
        let place = |position: usize| position as i64 - from as i64;
        let seen = |image: &PromptImage| Seen {
            first: place(image.first as usize),
            end: place(image.end()),
            digest: image.picture.digest(),
        };
        let within = |seen: &Seen| seen.first < tokens.len() as i64 && seen.end > 0;
        Self { tokens: tokens.to_vec(), images: images.iter().map(seen).filter(within).collect() }
    }

    /// Its tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// How many tokens, from the first, both have in common, with what they stand for.
    pub fn common(&self, other: &Self) -> usize {
        let tokens = self.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
        let alone = |tail: &Self, others: &Self| {
            let alone = tail.images.iter().filter(|seen| !others.images.contains(seen));
            alone.map(|seen| seen.first.max(0) as usize).min().unwrap_or(usize::MAX)
        };
        tokens.min(alone(self, other)).min(alone(other, self))
    }
}

/// What is to be known of the state in a snapshot before anyone goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateName {
    /// Windows know positions from here on.
    pub valid_from: u32,
    /// Where the layers began that see only the newest tokens of a prompt; 0 where they saw all.
    pub decoder_from: u32,
}

/// How a snapshot is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName {
    /// Name of the last full block; without one, what all chains begin with.
    pub parent: BlockHash,
    /// Full blocks before the tail.
    pub blocks: usize,
    /// What is behind them.
    pub tail: Tail,
    /// Set where the model keeps a state.
    pub state: Option<StateName>,
}

impl SnapshotName {
    /// Whether whoever could go on with `other` may as well go on with this: it is the same, or entries without a state,
    /// which are of use in part.
    pub fn covers(&self, other: &Self) -> bool {
        let entries = self.state.is_none() && other.state.is_none();
        let within = self.parent == other.parent && self.tail.common(&other.tail) == other.tail.len();
        self == other || entries && within
    }
}

/// A snapshot on its way to the cache.
pub struct Snapshot {
    /// Its name.
    pub name: SnapshotName,
    /// The block of the tail, unless that is empty; then the state, where the model keeps one.
    pub data: Vec<Payload>,
}

/// What a model with a state allows whoever goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// So many of the newest positions may be computed once more, or others in their place.
    pub positions: usize,
    /// Behind so many positions from `valid_from` on a state is what it would be had nothing been found.
    pub exact: usize,
}

/// A sequence that has not begun, as it asks for a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Beginning {
    /// What all chains begin with.
    pub root: BlockHash,
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks that its group has of it.
    pub here: usize,
    /// Its tokens, as far as they need not be computed.
    pub tokens: Vec<u32>,
    /// Its images.
    pub images: Arc<[PromptImage]>,
    /// Set where the model keeps a state.
    pub rewind: Option<Rewind>,
    /// Where its layers begin that see only the newest tokens of the prompt; 0 where they see all.
    pub decoder_from: u32,
}

impl Beginning {
    /// The position at which it may go on with a snapshot whose parent is in its own chain, if it gains by that.
    ///
    /// A state goes on where it was taken, or as little before as can be taken back. Layers that see the end of a prompt
    /// only must have begun at the same place, or have yet to begin.
    pub fn start(&self, name: &SnapshotName) -> Option<usize> {
        let from = name.blocks * self.block_size;
        let rest = self.tokens.get(from..)?;
        let own = Tail::new(&rest[..rest.len().min(name.tail.len())], from, &self.images);
        let start = from + own.common(&name.tail);
        let Some(rewind) = self.rewind else {
            return (name.state.is_none() && start > from).then_some(start);
        };
        let state = name.state?;
        let back = from + name.tail.len() - start;
        let exact = if state.valid_from == 0 { 0 } else { state.valid_from as usize + rewind.exact };
        let decoders = start <= self.decoder_from as usize || state.decoder_from == self.decoder_from;
        (back <= rewind.positions && start >= exact && start > 0 && decoders).then_some(start)
    }
}

/// A snapshot that a sequence may go on with, while the cache has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Which.
    pub name: Arc<SnapshotName>,
    /// Where the sequence goes on.
    pub start: usize,
    /// What bringing it is predicted to take.
    pub time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::HashChain;

    const ROOT: fn() -> BlockHash = || HashChain::new(b"a model", 4).seed();

    fn name(tokens: &[u32], state: Option<StateName>) -> SnapshotName {
        SnapshotName { parent: ROOT(), blocks: 1, tail: Tail::new(tokens, 4, &[]), state }
    }

    fn beginning(tokens: &[u32], rewind: Option<Rewind>, decoder_from: u32) -> Beginning {
        let (root, images, tokens) = (ROOT(), Arc::from([]), tokens.to_vec());
        Beginning { root, block_size: 4, here: 1, tokens, images, rewind, decoder_from }
    }

    #[test]
    fn entries_are_of_use_as_far_as_tokens_agree() {
        let start = |tokens: &[u32]| beginning(tokens, None, 0).start(&name(&[5, 6, 7], None));
        assert_eq!(start(&[1, 2, 3, 4, 5, 6, 7, 8]), Some(7));
        assert_eq!(start(&[1, 2, 3, 4, 5, 6]), Some(6));
        assert_eq!(start(&[1, 2, 3, 4, 5, 9, 7, 8]), Some(5));
        assert_eq!(start(&[1, 2, 3, 4, 9]), None);
        assert_eq!(start(&[1, 2, 3, 4]), None);
        assert_eq!(start(&[1, 2]), None);
    }

    fn image(first: u32, shade: u8) -> PromptImage {
        PromptImage::sample(first, 3, shade)
    }

    /// All images have the same tokens: what they stand for tells them apart.
    #[test]
    fn images_are_told_apart() {
        let tail = |images: &[PromptImage]| Tail::new(&[1, 2, 9, 9, 9, 3, 4], 8, images);
        let one = tail(&[image(10, 0)]);
        assert_eq!(one.common(&tail(&[image(10, 0)])), 7);
        assert_eq!((one.common(&tail(&[image(10, 1)])), one.common(&tail(&[]))), (2, 2), "up to the image");
        assert_eq!(tail(&[]).common(&one), 2, "either way");
        assert_eq!(one.common(&tail(&[image(9, 0)])), 1, "another place");
        assert_eq!(one.common(&tail(&[image(7, 0), image(10, 0)])), 0, "one that began before");
        assert_eq!(one.common(&tail(&[image(4, 1), image(10, 0), image(15, 1)])), 7, "others are elsewhere");
        let cut = Tail::new(&[1, 2, 9, 9], 8, &[image(10, 0)]);
        assert_eq!(
            (one.common(&cut), cut.common(&tail(&[image(10, 1)]))),
            (4, 2),
            "a tail may end within one"
        );
    }

    #[test]
    fn a_state_is_taken_back_a_little_and_never_where_it_is_not_exact() {
        let rewind = Some(Rewind { positions: 1, exact: 3 });
        let start = |tokens: &[u32], valid_from| {
            let state = StateName { valid_from, decoder_from: 0 };
            beginning(tokens, rewind, 0).start(&name(&[5, 6, 7], Some(state)))
        };
        assert_eq!(start(&[1, 2, 3, 4, 5, 6, 7, 8], 0), Some(7));
        assert_eq!(start(&[1, 2, 3, 4, 5, 6], 0), Some(6));
        assert_eq!(start(&[1, 2, 3, 4, 5, 9, 7], 0), None, "two positions back");
        assert_eq!((start(&[1, 2, 3, 4, 5, 6], 3), start(&[1, 2, 3, 4, 5, 6], 4)), (Some(6), None));
        assert_eq!(beginning(&[1, 2, 3, 4, 5, 6, 7], rewind, 0).start(&name(&[5, 6, 7], None)), None);
    }

    #[test]
    fn layers_that_see_the_end_of_a_prompt_begin_where_they_would() {
        let rewind = Some(Rewind { positions: 1, exact: 3 });
        let start = |taken: u32, wanted: u32| {
            let state = StateName { valid_from: 0, decoder_from: taken };
            beginning(&[1, 2, 3, 4, 5, 6, 7, 8, 9], rewind, wanted).start(&name(&[5, 6, 7], Some(state)))
        };
        assert_eq!((start(0, 0), start(5, 5)), (Some(7), Some(7)), "begun at the same place");
        assert_eq!((start(5, 7), start(0, 8)), (Some(7), Some(7)), "yet to begin");
        assert_eq!((start(5, 6), start(5, 0), start(0, 6)), (None, None, None));
    }
}
