//! Names of full blocks. The hash of a block is made of the hash of the block before it and its own tokens, so two
//! blocks of one name hold the same tokens at the same positions behind the same history, and their entries are the
//! same bits.
//!
//! The chain begins with a seed that stands for the model and the layout of its KV memory; entries of another model
//! never bear the same name. The hash is BLAKE3 cut to 128 bits: a client chooses its prompt, and must not be able to
//! choose one that bears the name of another's.
//!
//! The tokenizer makes the hashes of a prompt, once for the router and all groups, and they ride along in the request;
//! a group names only what it adds: the block where the prompt ends, and the blocks of the answer.

use std::fmt;

/// What a chain's seed begins with; counted up when the way of hashing changes.
const CONTEXT: &[u8] = b"millstream kv block 1";

/// Name of a full block: of its tokens and of all before them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 16]);

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl BlockHash {
    fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(short)
    }
}

/// How the blocks of one model and layout are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashChain {
    seed: BlockHash,
    block_size: u32,
}

impl HashChain {
    /// Blocks of `block_size` tokens of the model and layout that `identity` stands for.
    pub fn new(identity: &[u8], block_size: u32) -> Self {
        Self { seed: BlockHash::of([CONTEXT, &block_size.to_le_bytes(), identity]), block_size }
    }

    /// Names the full blocks of `tokens` that have no name in `hashes` yet.
    ///
    /// ```
    /// use millstream_actors::kv::HashChain;
    ///
    /// let chain = HashChain::new(b"a model", 4);
    /// let (mut once, mut twice) = (Vec::new(), Vec::new());
    /// chain.extend(&mut once, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    /// chain.extend(&mut twice, &[1, 2, 3, 4, 5]);
    /// chain.extend(&mut twice, &[1, 2, 3, 4, 5, 6, 7, 8]);
    /// assert_eq!((once.len(), once), (2, twice));
    /// ```
    pub fn extend(&self, hashes: &mut Vec<BlockHash>, tokens: &[u32]) {
        let mut parent = hashes.last().copied().unwrap_or(self.seed);
        for block in tokens.chunks_exact(self.block_size as usize).skip(hashes.len()) {
            let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            parent = BlockHash::of([parent.0.as_slice(), &bytes]);
            hashes.push(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(identity: &[u8], block_size: u32, tokens: &[u32]) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        HashChain::new(identity, block_size).extend(&mut hashes, tokens);
        hashes
    }

    #[test]
    fn a_name_stands_for_the_tokens_all_before_them_and_the_model() {
        let tokens = [1, 2, 3, 4, 1, 2, 3, 4];
        let named = hashes(b"a", 4, &tokens);
        assert_ne!(named[0], named[1], "the same tokens behind another history");
        assert_eq!(named[0], hashes(b"a", 4, &[1, 2, 3, 4, 9])[0]);
        assert_ne!(named[0], hashes(b"b", 4, &tokens)[0], "another model");
        assert_ne!(named[0], hashes(b"a", 4, &[1, 2, 3, 5])[0], "another token");
        assert_ne!(named[1], hashes(b"a", 8, &tokens)[0], "another layout");
        assert!(hashes(b"a", 4, &[1, 2, 3]).is_empty(), "a block that is not full has no name");
    }
}
