//! The choice of entries. An item is a few tokens of a row and entries that they see: keys are brought together once for
//! all of these tokens, and each token keeps the best it has met, so that no score leaves the nearest cache. Where there
//! are fewer such tokens than threads want, entries are dealt out too, and what was found in each part is joined. A token
//! that is bound to runs scores only those.

use std::cell::Cell;
use std::ops::Range;

use super::Level;
use super::output::Output;
use super::threads::Pool;
use crate::kv::KvMemory;
use crate::select::{self, Best, Select, Stage};
use crate::windowed::Lists;

/// Tokens of an item, all of one row.
const TOKENS: usize = 64;
/// Entries that are worth a part of their own.
const PART: usize = 4_096;

thread_local! {
    /// What an item computes with; grows to the largest once.
    static ROOM: Cell<Room> = Cell::default();
    /// What was found in parts.
    static HELD: Cell<Vec<Found>> = const { Cell::new(Vec::new()) };
}

/// Memory of an item.
#[derive(Default)]
struct Room {
    /// Of each token.
    found: Vec<Found>,
    /// Of a token that is bound to runs.
    best: Best,
    scores: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    keys: vectors::Keys,
}

/// What all parts of a call see.
#[derive(Copy, Clone)]
struct Call<'a> {
    level: Level,
    args: &'a Select<'a>,
    q: &'a [f32],
    weights: &'a [f32],
    kv: &'a KvMemory,
    /// Row, and entries that are complete, of each token.
    seen: &'a [(usize, usize)],
}

/// Runs a call whose arguments have been checked.
pub(super) fn run(
    (pool, level): (&mut Pool, Level),
    args: &Select<'_>,
    (q, weights): (&[f32], &[f32]),
    kv: &KvMemory,
    (chosen, kept): (&mut Lists, &mut Lists),
) {
    let seen = args.seen(kv);
    let call = Call { level, args, q, weights, kv, seen: &seen };
    chosen.start(seen.len(), args.most);
    if let Some(stage) = args.bound() {
        return bound(pool, call, stage, (chosen, kept));
    }
    if let Some(stage) = args.stages() {
        kept.start(seen.len(), stage.kept);
    }
    let (groups, lists) = (call.groups(), Targets::new(chosen, kept));
    let parts = call.parts(groups.len(), pool.threads());
    if parts.len() > 1 {
        return in_parts(pool, call, (&groups, &parts), &lists);
    }
    pool.run(groups.len(), &|item| {
        let group = groups[item].clone();
        let mut room = ROOM.take();
        let mut found = std::mem::take(&mut room.found);
        found.resize_with(TOKENS, Found::default);
        scan(call, group.clone(), 0..usize::MAX, (&mut found[..group.len()], &mut room));
        for (token, found) in group.zip(&mut found) {
            // SAFETY: no token is in two groups.
            #[expect(unsafe_code, reason = "threads write lists of one output")]
            unsafe {
                lists.write(call, token, found);
            }
        }
        ROOM.set(Room { found, ..room });
    });
}

/// The same, with the entries in parts.
fn in_parts(
    pool: &mut Pool,
    call: Call<'_>,
    (groups, parts): (&[Range<usize>], &[Range<usize>]),
    lists: &Targets<'_>,
) {
    let (mut held, count) = (HELD.take(), call.seen.len());
    held.resize_with((count * parts.len()).max(held.len()), Found::default);
    let all = Output::new(&mut held);
    pool.run(groups.len() * parts.len(), &|item| {
        let (group, part) = (groups[item / parts.len()].clone(), item % parts.len());
        let mut room = ROOM.take();
        // SAFETY: no other item has this part of these tokens.
        #[expect(unsafe_code, reason = "threads write parts of one output")]
        let found = unsafe { all.part(part * count + group.start, group.len()) };
        scan(call, group, parts[part].clone(), (found, &mut room));
        ROOM.set(room);
    });
    pool.run(count, &|token| {
        // SAFETY: each token is one item.
        #[expect(unsafe_code, reason = "threads read parts of one output")]
        let mut found = (0..parts.len()).map(|part| unsafe { &mut all.part(part * count + token, 1)[0] });
        let first = found.next().expect("there is a part");
        found.for_each(|other| first.join(other));
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "threads write lists of one output")]
        unsafe {
            lists.write(call, token, first);
        };
    });
    HELD.set(held);
}

impl Call<'_> {
    /// True if the token's choice needs no scores: all that it sees is chosen.
    fn is_all(&self, token: usize) -> bool {
        let entries = self.seen[token].1;
        let runs = self.args.stages().is_none_or(|stage| entries.div_ceil(stage.size) <= stage.kept);
        entries <= self.args.most && runs
    }

    /// Query and weights of a token.
    fn query(&self, token: usize) -> (&[f32], &[f32]) {
        let (heads, dim) = (self.args.heads, self.kv.layout().key_dim);
        (&self.q[token * heads * dim..][..heads * dim], &self.weights[token * heads..][..heads])
    }

    /// The block table of a token.
    fn blocks(&self, token: usize) -> &[u32] {
        self.args.rows[self.seen[token].0].blocks
    }

    /// Tokens that share a row, some at a time.
    fn groups(&self) -> Vec<Range<usize>> {
        let mut first = 0;
        let rows = self.seen.chunk_by(|a, b| a.0 == b.0).flat_map(|row| row.chunks(TOKENS));
        let group = |group: &[(usize, usize)]| {
            first += group.len();
            first - group.len()..first
        };
        rows.map(group).collect()
    }

    /// Entries in so many parts that all threads have some. No run of a stage is in two.
    fn parts(&self, groups: usize, threads: usize) -> Vec<Range<usize>> {
        let most = self.seen.iter().map(|(_, entries)| *entries).max().unwrap_or(0);
        let wanted = if threads > 1 { (2 * threads).div_ceil(groups.max(1)) } else { 1 };
        let parts = wanted.min(most / PART).max(1);
        let whole = self.args.stages().map_or(1, |stage| stage.size) * self.kv.layout().block_size;
        let size = most.div_ceil(parts).next_multiple_of(whole).max(whole);
        (0..most.max(1)).step_by(size).map(|first| first..first + size).collect()
    }
}

/// The best that a token has met.
#[derive(Default)]
struct Found {
    entries: Best,
    /// Of a stage: runs, entries of each, the last one that the token sees, and the one that is being met with its best
    /// score.
    runs: Best,
    size: Option<u32>,
    last: u32,
    met: (u32, f32),
}

impl Found {
    /// Nothing so far.
    fn start(&mut self, call: Call<'_>, token: usize) {
        let stage = call.args.stages();
        self.entries.start(call.args.most);
        self.runs.start(stage.map_or(0, |stage| stage.kept));
        self.size = stage.map(|stage| stage.size as u32);
        self.last = stage.map_or(0, |stage| call.seen[token].1.div_ceil(stage.size).saturating_sub(1) as u32);
        self.met = (0, f32::NEG_INFINITY);
    }

    /// Scores up to here are of no use.
    #[cfg(target_arch = "x86_64")]
    fn floor(&self) -> f32 {
        let entries = self.entries.floor();
        if self.size.is_some() { entries.min(self.runs.floor()) } else { entries }
    }

    /// Offers a score; places must ascend.
    #[inline]
    fn offer(&mut self, place: u32, score: f32) {
        self.entries.offer(place, score);
        if let Some(size) = self.size.filter(|_| score > self.runs.floor()) {
            let run = place / size;
            if run != self.met.0 {
                self.close();
                self.met = (run, f32::NEG_INFINITY);
            }
            self.met.1 = self.met.1.max(score);
        }
    }

    /// The run that is being met ends. The last one needs no score.
    fn close(&mut self) {
        if self.met.0 != self.last {
            self.runs.offer(self.met.0, self.met.1);
        }
    }

    /// Takes what was found in entries behind.
    fn join(&mut self, other: &mut Found) {
        self.entries.join(&mut other.entries);
        self.runs.join(&mut other.runs);
    }
}

/// Lists that threads fill.
struct Targets<'a> {
    chosen: Target<'a>,
    kept: Target<'a>,
}

/// One set of them: numbers, how many, and room for each token.
struct Target<'a>(Output<'a, u32>, Output<'a, u32>, usize);

impl<'a> Targets<'a> {
    fn new(chosen: &'a mut Lists, kept: &'a mut Lists) -> Targets<'a> {
        let of = |lists: &'a mut Lists| {
            let most = lists.most();
            let (numbers, counts) = lists.parts();
            Target(Output::new(numbers), Output::new(counts), most)
        };
        Targets { chosen: of(chosen), kept: of(kept) }
    }

    /// Writes the lists of a token.
    ///
    /// # Safety
    /// No other thread writes those of this token.
    #[expect(unsafe_code, reason = "threads write lists of one output")]
    unsafe fn write(&self, call: Call<'_>, token: usize, found: &mut Found) {
        let (entries, all) = (call.seen[token].1, call.is_all(token));
        // SAFETY: the caller's promise.
        let (into, count) = unsafe { self.chosen.of(token) };
        *count = if all { first(into, entries) } else { found.entries.finish(into) };
        if let Some(stage) = call.args.stages() {
            // SAFETY: the caller's promise.
            let (into, count) = unsafe { self.kept.of(token) };
            found.runs.offer(found.last, f32::INFINITY);
            *count = if all { first(into, entries.div_ceil(stage.size)) } else { found.runs.finish(into) };
        }
    }
}

impl Target<'_> {
    /// The list of a token, and how long it is.
    ///
    /// # Safety
    /// No other thread uses them.
    #[expect(unsafe_code, clippy::mut_from_ref, reason = "threads write lists of one output")]
    unsafe fn of(&self, token: usize) -> (&mut [u32], &mut u32) {
        let Target(numbers, counts, most) = self;
        // SAFETY: the caller's promise.
        unsafe { (numbers.part(token * most, *most), &mut counts.part(token, 1)[0]) }
    }
}

/// The first numbers; gives how many.
fn first(into: &mut [u32], count: usize) -> u32 {
    into.iter_mut().zip(0..count as u32).for_each(|(into, number)| *into = number);
    count as u32
}

/// Has each token of a group find its best in some entries.
fn scan(
    call: Call<'_>,
    group: Range<usize>,
    entries: Range<usize>,
    (found, room): (&mut [Found], &mut Room),
) {
    group.clone().zip(&mut *found).for_each(|(token, found)| found.start(call, token));
    if group.clone().all(|token| call.is_all(token)) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if call.level != Level::Plain {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { vectors::scan(call, group, entries, (found, &mut room.keys)) };
    }
    for (token, found) in group.zip(found).filter(|(token, _)| !call.is_all(*token)) {
        let places: Vec<usize> = (entries.start..entries.end.min(call.seen[token].1)).collect();
        select::score(call.args, call.query(token), (call.kv, call.blocks(token)), &places, &mut room.scores);
        places.iter().zip(&room.scores).for_each(|(&place, &score)| found.offer(place as u32, score));
        found.close();
    }
}

/// Tokens that are bound to runs.
fn bound(pool: &mut Pool, call: Call<'_>, stage: Stage, (chosen, kept): (&mut Lists, &mut Lists)) {
    let most = chosen.most();
    let (chosen, counts) = chosen.parts();
    let (chosen, counts) = (Output::new(chosen), Output::new(counts));
    let kept = &*kept;
    pool.run(call.seen.len(), &|token| {
        // SAFETY: each token is one item.
        #[expect(unsafe_code, reason = "threads write lists of one output")]
        let (into, how_many) = unsafe { (chosen.part(token * most, most), counts.part(token, 1)) };
        let places: Vec<usize> = select::entries_of(kept.of(token), stage.size, call.seen[token].1).collect();
        if places.len() <= most {
            into.iter_mut().zip(&places).for_each(|(into, &place)| *into = place as u32);
            how_many[0] = places.len() as u32;
            return;
        }
        let mut room = ROOM.take();
        some(call, token, &places, &mut room);
        room.best.start(most);
        let offers = places.iter().zip(&room.scores);
        offers.for_each(|(&place, &score)| room.best.offer(place as u32, score));
        how_many[0] = room.best.finish(into);
        ROOM.set(room);
    });
}

/// Scores of a token with some entries.
fn some(call: Call<'_>, token: usize, places: &[usize], room: &mut Room) {
    let (query, blocks) = (call.query(token), call.blocks(token));
    #[cfg(target_arch = "x86_64")]
    if call.level != Level::Plain {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { vectors::some(call, (query, blocks), places, (&mut room.keys, &mut room.scores)) };
    }
    select::score(call.args, query, (call.kv, blocks), places, &mut room.scores);
}

#[cfg(target_arch = "x86_64")]
mod light;
#[cfg(target_arch = "x86_64")]
mod vectors;
