//! Names of full blocks. The hash of a block is made of the hash of the block before it, its own tokens, and the
//! digests of the images that some of them stand for, so two blocks of one name hold the same at the same positions
//! behind the same history, and their entries are the same bits.
//!
//! The chain begins with a seed that stands for the model and the layout of its KV memory; entries of another model
//! never bear the same name. The hash is BLAKE3 cut to 128 bits: a client chooses its prompt, and must not be able to
//! choose one that bears the name of another's.
//!
//! The tokenizer makes the hashes of a prompt, once for the router and all groups, and they ride along in the request;
//! a group names only what it adds: the block where the prompt ends, and the blocks of the answer.

use std::fmt;

use crate::request::PromptImage;

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
    /// The name whose bytes were written down somewhere.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

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
        self.extend_seeing(hashes, tokens, &[]);
    }

    /// The same for a sequence that begins with a prompt with `images`: the tokens of all images are alike, so the name
    /// of a block says which part of which image they stand for.
    pub fn extend_seeing(&self, hashes: &mut Vec<BlockHash>, tokens: &[u32], images: &[PromptImage]) {
        let mut parent = hashes.last().copied().unwrap_or(self.seed);
        let size = self.block_size as usize;
        for (number, block) in tokens.chunks_exact(size).enumerate().skip(hashes.len()) {
            let mut bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            let (start, end) = (number * size, (number + 1) * size);
            for image in images {
                let (first, behind) = (image.first as usize, image.end());
                if first < end && start < behind {
                    // Where it begins, in the block or before it.
                    bytes.extend((first as i64 - start as i64).to_le_bytes());
                    bytes.extend(image.picture.digest().as_bytes());
                }
            }
            parent = BlockHash::of([parent.0.as_slice(), &bytes]);
            hashes.push(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_kernels::ImagePlan;

    use super::*;
    use crate::picture::{Detail, Picture, PictureBounds};

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

    /// An image of 6 tokens; `shade` tells it from others.
    fn image(first: u32, shade: u8) -> PromptImage {
        let mut gif = b"GIF89a\x01\0\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0".to_vec();
        gif.push(shade);
        let bounds = PictureBounds { bytes: 100, pixels: 100 };
        let picture = Picture::read("x", gif, Detail::High, bounds).expect("a header").into();
        let plan = ImagePlan { width: 1, height: 1, tokens: 6, grid: (2, 3) };
        PromptImage { first, plan, picture, embeddings: None }
    }

    #[test]
    fn a_name_stands_for_the_images_in_the_block() {
        let tokens = [1, 1, 9, 9, 9, 9, 9, 9, 1, 1, 1, 1];
        let named = |images: &[PromptImage]| {
            let mut hashes = Vec::new();
            HashChain::new(b"a", 4).extend_seeing(&mut hashes, &tokens, images);
            hashes
        };
        let (bare, one) = (named(&[]), named(&[image(2, 0)]));
        assert_eq!(one, named(&[image(2, 0)]));
        let differ = |other: Vec<BlockHash>| other.iter().zip(&one).all(|(a, b)| a != b);
        assert!(differ(bare.clone()) && differ(named(&[image(2, 1)])), "another image, or none");
        assert_eq!(named(&[image(6, 0)])[0], bare[0], "before an image nothing is different");
        assert_ne!(named(&[image(6, 0)])[1], named(&[image(5, 0)])[1], "another place");
        let mut later = Vec::new();
        for end in [5, 8, 12] {
            HashChain::new(b"a", 4).extend_seeing(&mut later, &tokens[..end], &[image(2, 0)]);
        }
        assert_eq!(later, one, "whatever the steps");
    }
}
