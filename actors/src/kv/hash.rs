//! Names of full blocks. The hash of a block is made of the hash of the block before it, its own tokens, and the
//! digests of the images that some of them stand for, so two blocks of one name hold the same at the same positions
//! behind the same history, and their entries are the same bits.
//!
//! The chain begins with a seed that stands for the model and the layout of its KV memory; entries of another model
//! never bear the same name. Behind the seed comes the salt of whoever may find the blocks. The hash is BLAKE3 cut to
//! 128 bits: a client chooses its prompt, and must not be able to choose one that bears the name of another's.
//!
//! The tokenizer makes the hashes of a prompt, once for the router and all groups, and they ride along in the request;
//! a group names only what it adds: the block where the prompt ends, and the blocks of the answer.

use std::fmt;

use crate::request::PromptImage;

/// What a chain's seed begins with; counted up when the way of hashing changes.
const CONTEXT: &[u8] = b"millstream kv block 1";
/// The same for salts.
const SALT: &[u8] = b"millstream kv salt 1";

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

/// What must be the same for the entries of two blocks with the same tokens to be the same. Whose they are is a
/// [`Salt`]'s business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The model as its facts tell it from others in a process.
    pub model: &'a str,
    /// Digest of its files, whatever their revision is called, where blocks outlive the process.
    pub files: Option<&'a [u8; 32]>,
    /// Digest of its vocabulary, where blocks outlive the process.
    pub tokenizer: Option<&'a [u8; 32]>,
    /// Digest of what was added to the model's weights; nothing adds to them yet.
    pub adapter: Option<&'a [u8; 32]>,
    /// Layout of KV memory, number format included.
    pub layout: &'a str,
    /// What else the numbers depend on: how activations are rounded, how much is replayed.
    pub arithmetic: &'a str,
}

impl Identity<'_> {
    fn record(&self) -> Vec<u8> {
        let digest = |digest: Option<&[u8; 32]>| digest.map(|digest| digest.to_vec());
        record([
            ("model", Some(self.model.as_bytes().to_vec())),
            ("files", digest(self.files)),
            ("tokenizer", digest(self.tokenizer)),
            ("adapter", digest(self.adapter)),
            ("layout", Some(self.layout.as_bytes().to_vec())),
            ("arithmetic", Some(self.arithmetic.as_bytes().to_vec())),
        ])
    }
}

/// One record: each part that is there behind its name and its length, so that no two lists of parts have one record.
fn record(parts: impl IntoIterator<Item = (&'static str, Option<Vec<u8>>)>) -> Vec<u8> {
    let mut record = Vec::new();
    for (name, part) in parts.into_iter().filter_map(|(name, part)| Some((name, part?))) {
        for bytes in [name.as_bytes(), &part] {
            record.extend((bytes.len() as u64).to_le_bytes());
            record.extend(bytes);
        }
    }
    record
}

/// Makes the names of blocks private: who names them with another salt finds none of them, in whatever memory they lie.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Salt([u8; 16]);

impl Salt {
    /// Of all who belong to no tenant and bring no salt.
    pub const NONE: Self = Self([0; 16]);

    /// Of the clients of a tenant, and of those of them who send this salt.
    pub fn of(tenant: Option<&str>, salt: Option<&str>) -> Self {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let parts = [("tenant", tenant.map(bytes)), ("salt", salt.map(bytes))];
        if parts.iter().all(|(_, part)| part.is_none()) {
            return Self::NONE;
        }
        Self(BlockHash::of([SALT, &record(parts)]).0)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl HashChain {
    /// Blocks of `block_size` tokens of this identity.
    pub fn of(identity: &Identity<'_>, block_size: u32) -> Self {
        Self::new(&identity.record(), block_size)
    }

    /// The same chain for those alone who have this salt.
    pub fn salted(&self, salt: Salt) -> Self {
        if salt == Salt::NONE {
            return self.clone();
        }
        let parts = [("seed", Some(self.seed.0.to_vec())), ("salt", Some(salt.0.to_vec()))];
        Self::new(&record(parts), self.block_size)
    }

    /// What all chains of this identity begin with.
    pub fn seed(&self) -> BlockHash {
        self.seed
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

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
    use proptest::array::uniform4;
    use proptest::prelude::*;

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

    /// One of few values for each part, so that equal ones are drawn as often as others.
    type Parts = (u8, Option<u8>, Option<u8>, Option<u8>, u8, u8, u32, (Option<u8>, Option<u8>));

    fn parts() -> impl Strategy<Value = Parts> {
        let maybe = || proptest::option::of(0..2_u8);
        (0..2_u8, maybe(), maybe(), maybe(), 0..2_u8, 0..2_u8, 1..3_u32, (maybe(), maybe()))
    }

    fn name_of(parts: &Parts, tokens: &[u32]) -> BlockHash {
        let (model, files, tokenizer, adapter, layout, arithmetic, block_size, (tenant, salt)) = *parts;
        let texts = ["", "a"];
        let digest = |part: Option<u8>| part.map(|byte| [byte; 32]);
        let (files, tokenizer, adapter) = (digest(files), digest(tokenizer), digest(adapter));
        let text = |part: u8| texts[usize::from(part)];
        let identity = Identity {
            model: text(model),
            files: files.as_ref(),
            tokenizer: tokenizer.as_ref(),
            adapter: adapter.as_ref(),
            layout: text(layout),
            arithmetic: text(arithmetic),
        };
        let chain = HashChain::of(&identity, block_size);
        let mut hashes = Vec::new();
        chain.salted(Salt::of(tenant.map(text), salt.map(text))).extend(&mut hashes, tokens);
        *hashes.last().expect("tokens for a block")
    }

    proptest! {
        #[test]
        fn any_part_that_differs_gives_another_name(
            (a, b) in (parts(), parts()),
            tokens in uniform4(0..3_u32),
            more in uniform4(0..3_u32),
        ) {
            prop_assert_eq!(a == b, name_of(&a, &tokens) == name_of(&b, &tokens));
            prop_assert_eq!(tokens == more, name_of(&a, &tokens) == name_of(&a, &more));
        }
    }

    fn image(first: u32, shade: u8) -> PromptImage {
        PromptImage::sample(first, 6, shade)
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
