//! Two tiers on one store that fails now and then, with answers in any order, deaths, cancels and time that passes.
//! Whatever is found is what was stored; in the end nothing is owed, and everything can be stored and found.

use millstream_actors::store::{Budget, Class, ClassId, Stamp, TierOptions, Told, Wish};
use millstream_runtime::blob::{Blob, BlobErrorKind, Fault, Faulty, Memory};

use super::host::{DAY, Host, Random, block, names, options, tenant};

/// Tiers that run at the same time.
const TIERS: usize = 2;

struct World<'a> {
    random: Random,
    blob: &'a Faulty<Memory>,
    hosts: Vec<Host<'a>>,
    /// Wishes that somebody of each tier has begun with, and answers on their way.
    begun: Vec<(Vec<Wish>, Vec<Told>)>,
    now: Stamp,
    writers: u64,
}

fn drawn(random: &mut Random, writer: u64) -> TierOptions {
    let mut room = |most: u64| if random.chance(3) { u64::MAX } else { 2_000 + random.below(most) };
    let classes =
        ["chat", "agent", "own"].map(|name| Class { name: name.to_owned(), ttl_s: DAY, bytes: room(40_000) });
    let budget = Budget { total: room(60_000), tenant: room(40_000), pinned: 3_000, ..options(1).budget };
    TierOptions {
        budget,
        classes: classes.to_vec(),
        queue_bytes: 1_000 + random.below(20_000),
        pack_bytes: 300 + random.below(4_000),
        read_bytes: 100 + random.below(2_000),
        gap_bytes: random.below(300),
        wishes: 1 + random.below(5) as usize,
        fetches: 1 + random.below(8) as usize,
        touches: 1 + random.below(40) as usize,
        ..options(writer)
    }
}

impl<'a> World<'a> {
    fn new(seed: u64, blob: &'a Faulty<Memory>) -> Self {
        let begun = (0..TIERS).map(|_| (Vec::new(), Vec::new())).collect();
        let mut world =
            Self { random: Random(seed), blob, hosts: Vec::new(), begun, now: Stamp(1_000_000), writers: 0 };
        (0..TIERS).for_each(|_| {
            let host = world.start();
            world.hosts.push(host);
        });
        world
    }

    fn start(&mut self) -> Host<'a> {
        self.writers += 1;
        let options = drawn(&mut self.random, self.writers);
        let mut host = Host::new(options, self.blob, self.now);
        host.tier.refresh();
        host
    }

    fn fault(&mut self) {
        let kinds =
            [BlobErrorKind::Missing, BlobErrorKind::Full, BlobErrorKind::Denied, BlobErrorKind::Broken];
        let fault = match self.random.below(7) {
            0 | 1 => Fault::Fail(kinds[self.random.below(4) as usize]),
            2 => Fault::Unheard,
            3 => Fault::Lie(self.random.below(300) as i64 - 150),
            4 => Fault::Cut(self.random.below(3_000)),
            5 => Fault::Crash { done: self.random.chance(2) },
            _ => Fault::Flip(self.random.below(20_000)),
        };
        self.blob.at(self.blob.calls(), fault);
    }

    /// The process of a tier dies and is started again; what it had begun with was done, or was not.
    fn die(&mut self, tier: usize) {
        for wish in std::mem::take(&mut self.begun[tier].0) {
            if self.random.chance(2) {
                wish.carry_out(self.blob);
            }
        }
        self.begun[tier].1.clear();
        self.hosts[tier] = self.start();
    }

    /// Begins with wishes, carries some out, and brings some answers, in any order.
    fn io(&mut self, tier: usize) {
        let (wishes, told) = &mut self.begun[tier];
        wishes.extend(std::iter::from_fn(|| self.hosts[tier].tier.wish()));
        for _ in 0..self.random.below(6) {
            if !wishes.is_empty() {
                let wish = wishes.swap_remove(self.random.below(wishes.len() as u64) as usize);
                told.push(wish.carry_out(self.blob));
            }
            if !told.is_empty() && !self.random.chance(3) {
                let answer = told.swap_remove(self.random.below(told.len() as u64) as usize);
                self.hosts[tier].tier.tell(answer, self.now);
            }
        }
        if self.blob.crashed().is_some() {
            self.blob.revive();
            // The disk was the process's own: it is the one that died.
            self.die(tier);
        }
    }

    fn act(&mut self) {
        let tier = self.random.below(TIERS as u64) as usize;
        let (chain, length) = (self.random.below(9), 1 + self.random.below(20) as u32);
        let class = ClassId(self.random.below(4) as u8);
        match self.random.below(20) {
            0..=4 => {
                for depth in length.saturating_sub(6)..length {
                    self.hosts[tier].tier.store(block(chain, depth, class), self.now);
                }
            }
            5..=8 => {
                self.hosts[tier].begin(names(chain, length), tenant(chain), class);
            }
            9 => {
                if let Some(&fetch) = self.hosts[tier].fetches().first() {
                    self.hosts[tier].cancel(fetch);
                }
            }
            10 => self.hosts[tier].tier.flush(),
            11 => self.hosts[tier].tier.refresh(),
            12 => self.hosts[tier].tier.collect(self.now),
            13 if self.random.chance(4) => self.hosts[tier].tier.expire(self.now),
            14 => {
                let pinned = self.random.chance(2);
                self.hosts[tier].tier.pin(&names(chain, length), tenant(chain), pinned);
            }
            15 => self.now = self.now.after(self.random.below(u64::from(DAY) / 4) as u32),
            16 if self.random.chance(2) => self.fault(),
            17 if self.random.chance(6) => self.die(tier),
            18 if self.random.chance(6) => {
                // Those who carry out wishes die, the tier does not.
                self.begun[tier] = (Vec::new(), Vec::new());
                self.hosts[tier].tier.lost(self.now);
            }
            _ => self.io(tier),
        }
        for host in &mut self.hosts {
            host.now = self.now;
            host.hear();
        }
    }

    /// The world is quiet again: nothing is owed, and what is stored now is found.
    fn end(mut self) {
        self.blob.revive();
        for tier in 0..TIERS {
            let (wishes, told) = std::mem::take(&mut self.begun[tier]);
            let host = &mut self.hosts[tier];
            told.into_iter().for_each(|told| host.tier.tell(told, self.now));
            wishes.into_iter().for_each(|wish| host.tier.tell(wish.carry_out(self.blob), self.now));
            host.fetches().into_iter().for_each(|fetch| host.cancel(fetch));
            host.refresh();
            host.flush();
            assert_eq!(host.hear(), []);
            host.expect_nothing_left();
        }
        let mut host = Host::open(options(77), self.blob, self.now);
        for chain in 0..9 {
            host.store(chain, 0..20, ClassId(0));
            host.flush();
            assert_eq!(host.fetch(chain, 20), 20);
        }
        host.expect_nothing_left();
    }
}

/// Returns what has happened to one of the tiers.
fn run(seed: u64) -> [u64; 6] {
    println!("seed {seed}");
    let blob = Faulty::new(Memory::new());
    let mut world = World::new(seed, &blob);
    for _ in 0..400 {
        world.act();
        if world.random.chance(20) {
            world.hosts.iter().for_each(|host| host.tier.audit());
        }
    }
    let counts = world.hosts[0].tier.counts();
    world.end();
    let [damaged, refused, full] = [counts.damaged_blocks, counts.refused, counts.dropped_full];
    [damaged, refused, full, counts.vanished_packs, counts.deleted_packs, counts.renewed_packs]
}

#[test]
fn nothing_wrong_is_found_and_nothing_is_left() {
    let seeds = std::env::var("MILLSTREAM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    let all: Vec<[u64; 6]> = (0..seeds).map(run).collect();
    let happened = [0, 1, 2, 3, 4, 5].map(|kind| all.iter().filter(|counts| counts[kind] > 0).count());
    println!("seeds in which blocks were damaged, packs refused, and so on: {happened:?} of {seeds}");
    assert!(happened.iter().all(|seeds| *seeds > 0), "every kind of trouble comes: {happened:?}");
}

#[test]
fn a_seed_is_a_run() {
    let run = |seed| {
        let blob = Faulty::new(Memory::new());
        let mut world = World::new(seed, &blob);
        (0..300).for_each(|_| world.act());
        (blob.calls(), blob.inner().list("").expect("memory"))
    };
    assert_eq!(run(5), run(5));
}
