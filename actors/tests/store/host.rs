//! What the tests stand on: chains whose bytes follow from their names, and a tier with somebody who carries out its
//! wishes.

use std::collections::BTreeMap;

use millstream_actors::kv::BlockHash;
use millstream_actors::store::{
    Class, ClassId, FetchId, FetchPlan, Ledger, NewBlock, News, Payload, Stamp, Stored, Tenant, Tier,
    TierOptions, WriterId,
};
use millstream_runtime::blob::Blob;

pub const DAY: u32 = 86_400;
pub const CHAT: ClassId = ClassId(0);
pub const AGENT: ClassId = ClassId(1);

/// A generator with known constants, so that a seed is the same test everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    pub fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

pub fn tenant(chain: u64) -> Tenant {
    Tenant([(chain % 2) as u8; 16])
}

/// The name of a block. Chains of one tenant share their first three blocks.
pub fn name(chain: u64, depth: u32) -> BlockHash {
    let chain = if depth < 3 { chain % 2 } else { chain };
    let mut random = Random(chain << 32 | u64::from(depth));
    let mut bytes = [0; 16];
    bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    BlockHash::from_bytes(bytes)
}

pub fn names(chain: u64, blocks: u32) -> Vec<BlockHash> {
    (0..blocks).map(|depth| name(chain, depth)).collect()
}

/// 40 to 199 bytes that follow from the name.
pub fn content(hash: &BlockHash) -> Vec<u8> {
    let seed =
        hash.as_bytes().iter().fold(7_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(*byte)));
    let mut random = Random(seed);
    (0..40 + random.below(160)).map(|_| random.below(256) as u8).collect()
}

pub fn block(chain: u64, depth: u32, class: ClassId) -> NewBlock {
    let hash = name(chain, depth);
    let parent = depth.checked_sub(1).map(|before| name(chain, before));
    let bytes = Payload::from(content(&hash));
    NewBlock { hash, parent, depth, tokens: 16, class, tenant: tenant(chain), bytes }
}

/// Small packs and reads, so that little makes many of them.
pub fn options(writer: u64) -> TierOptions {
    let class = |name: &str, ttl_s| Class { name: name.to_owned(), ttl_s, bytes: u64::MAX };
    TierOptions {
        pack_bytes: 1_000,
        read_bytes: 700,
        gap_bytes: 100,
        classes: vec![class("chat", DAY), class("agent", 3 * DAY)],
        ..TierOptions::new(WriterId(writer), [9; 16])
    }
}

/// A tier, a store, and what has come of its fetches.
pub struct Host<'a> {
    pub tier: Tier,
    pub blob: &'a dyn Blob,
    pub now: Stamp,
    next: u64,
    wanted: BTreeMap<FetchId, (Vec<BlockHash>, Vec<bool>)>,
}

impl<'a> Host<'a> {
    /// Started, with all that is there known.
    pub fn open(options: TierOptions, blob: &'a dyn Blob, now: Stamp) -> Self {
        let mut host = Self::new(options, blob, now);
        host.refresh();
        host
    }

    pub fn new(options: TierOptions, blob: &'a dyn Blob, now: Stamp) -> Self {
        Self { tier: Tier::new(options), blob, now, next: 0, wanted: BTreeMap::new() }
    }

    pub fn refresh(&mut self) {
        self.tier.refresh();
        self.settle();
    }

    pub fn flush(&mut self) {
        self.tier.flush();
        self.settle();
    }

    /// Carries out all wishes.
    pub fn settle(&mut self) {
        while let Some(wish) = self.tier.wish() {
            self.tier.tell(wish.carry_out(self.blob), self.now);
        }
        self.tier.audit();
    }

    pub fn store(&mut self, chain: u64, depths: std::ops::Range<u32>, class: ClassId) -> Vec<Stored> {
        depths.map(|depth| self.tier.store(block(chain, depth, class), self.now)).collect()
    }

    pub fn begin(&mut self, wanted: Vec<BlockHash>, tenant: Tenant, class: ClassId) -> (FetchId, FetchPlan) {
        let fetch = FetchId(self.next);
        self.next += 1;
        let plan = self.tier.fetch(fetch, &wanted, tenant, (class, self.now));
        if plan.blocks > 0 {
            self.wanted.insert(fetch, (wanted, vec![false; plan.blocks]));
        }
        (fetch, plan)
    }

    pub fn cancel(&mut self, fetch: FetchId) {
        self.tier.cancel(fetch);
        self.wanted.remove(&fetch);
    }

    /// Takes in the news: each block has the bytes of its name, and what has ended has no hole. Returns what has ended.
    pub fn hear(&mut self) -> Vec<(FetchId, usize)> {
        let mut ended = Vec::new();
        while let Some(news) = self.tier.news() {
            match news {
                News::Arrived { fetch, place, bytes } => {
                    let (wanted, arrived) =
                        self.wanted.get_mut(&fetch).expect("news of a fetch that goes on");
                    assert!(bytes[..] == content(&wanted[place])[..], "{:?} has other bytes", wanted[place]);
                    assert!(!std::mem::replace(&mut arrived[place], true), "{place} has come twice");
                }
                News::Ended { fetch, blocks } => {
                    let (_, arrived) = self.wanted.remove(&fetch).expect("news of a fetch that goes on");
                    assert!(arrived[..blocks].iter().all(|arrived| *arrived), "{blocks} of {arrived:?}");
                    ended.push((fetch, blocks));
                }
            }
        }
        ended
    }

    /// How many blocks of a chain can be had, read to their end and compared.
    pub fn fetch(&mut self, chain: u64, blocks: u32) -> usize {
        let (fetch, plan) = self.begin(names(chain, blocks), tenant(chain), CHAT);
        if plan.blocks == 0 {
            return 0;
        }
        self.settle();
        let ended = self.hear();
        assert_eq!(ended.len(), 1, "it has ended, and nothing else");
        assert_eq!(ended[0].0, fetch);
        ended[0].1
    }

    pub fn fetches(&self) -> Vec<FetchId> {
        self.wanted.keys().copied().collect()
    }

    /// Nothing is owed, held, or under way.
    pub fn expect_nothing_left(&self) {
        assert_eq!(self.tier.ledger(), Ledger::default());
        self.tier.audit();
    }
}
