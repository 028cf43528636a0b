//! The prefix store on a folder: `cargo bench --bench store [-- replay [EVERY] [CONFIG ...] < TRACE]`.
//!
//! How fast its index is read at the start, what a block takes in memory and what a list takes that tells nothing new, and
//! how fast a chain comes back beside a plain read of the same files. With `replay` it reads a trace of agents from its input
//! (JSON, a conversation a line; of EVERY so many one) and prints how much of their prompts the store's own code finds,
//! beside what any store could; and for the `config.json` of each model of DeepSeek-V4.1's kind, what is left to multiply.

#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, Read};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Instant;

use millstream::workload::agentic::Line;
use millstream::workload::reuse::{Prompt, Reuse, collect};
use millstream_actors::kv::BlockHash;
use millstream_actors::store::{
    Buffers, Class, ClassId, FetchId, NewBlock, News, Stamp, Tenant, Tier, TierOptions, WriterId,
};
use millstream_kernels::work::{RowShape, WorkFacts};
use millstream_runtime::blob::{Blob, Folder, Memory, Part};

const NOW: Stamp = Stamp(1_000_000);
const CLASS: ClassId = ClassId(0);
/// Of a model with 18 layers and one head of 256 keys and values of two bytes, for 16 tokens.
const BLOCK: usize = 294_912;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["replay", rest @ ..] => return replay(rest),
        ["write", folder, blocks] => return write(Path::new(folder), blocks.parse().expect("a number")),
        _ => {}
    }
    let folder = std::env::temp_dir().join(format!("millstream-store-{}", std::process::id()));
    index(&folder.join("index"), 1_000_000);
    chains(&folder.join("chains"));
    fs::remove_dir_all(&folder).expect("the folder just made");
}

fn name(chain: u64, block: u64) -> BlockHash {
    let mix = |seed: u64| (seed ^ (seed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let halves = [mix(chain << 32 | block), mix(mix(block << 32 | chain))];
    let mut bytes = [0; 16];
    halves.iter().zip(bytes.chunks_mut(8)).for_each(|(half, part)| part.copy_from_slice(&half.to_le_bytes()));
    BlockHash::from_bytes(bytes)
}

fn block(chain: u64, depth: u64, bytes: Vec<u8>) -> NewBlock {
    NewBlock {
        hash: name(chain, depth),
        parent: depth.checked_sub(1).map(|before| name(chain, before)),
        depth: depth as u32,
        tokens: 64,
        class: CLASS,
        tenant: Tenant::default(),
        bytes: bytes.into(),
    }
}

fn settle(tier: &mut Tier, blob: &dyn Blob, now: Stamp) {
    while let Some(wish) = tier.wish() {
        tier.tell(wish.carry_out(blob), now);
    }
}

fn open(options: TierOptions, blob: &dyn Blob) -> Tier {
    let mut tier = Tier::new(options);
    tier.refresh();
    settle(&mut tier, blob, NOW);
    tier
}

/// Memory of this process, in bytes.
fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

/// Puts what is in memory into a folder, without waiting for the disk.
fn copy(blob: &Memory, folder: &Path) {
    for object in blob.list("").expect("memory") {
        let mut bytes = vec![0; object.bytes as usize];
        blob.read(&object.name, &mut [Part { start: 0, into: &mut bytes }]).expect("it is listed");
        let path = folder.join(&object.name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        fs::write(path, bytes).expect("room for it");
    }
}

/// Packs of 113 blocks, as many as there are of 290 kB in 32 MiB; the blocks themselves are left small.
fn write(folder: &Path, blocks: u64) {
    let options = |writer| TierOptions { pack_bytes: 113 * 8, ..TierOptions::new(WriterId(writer), [1; 16]) };
    let memory = Memory::new();
    let mut tier = open(options(1), &memory);
    for place in 0..blocks {
        tier.store(block(place / 1_000, place % 1_000, vec![7; 8]), NOW);
        if place % 10_000 == 0 {
            settle(&mut tier, &memory, NOW);
        }
    }
    tier.flush();
    settle(&mut tier, &memory, NOW);
    drop(tier);
    copy(&memory, folder);
}

/// Written by another process, so that this one's memory is what the index takes.
fn index(folder: &Path, blocks: u64) {
    let own = std::env::current_exe().expect("this program");
    let words = ["write".as_ref(), folder.as_os_str(), blocks.to_string().as_ref()].map(OsStr::to_owned);
    assert!(Command::new(own).args(words).status().expect("it starts").success());
    let options = |writer| TierOptions::new(WriterId(writer), [1; 16]);
    let blob = Folder::open(folder).expect("a folder");
    let (before, start) = (resident(), Instant::now());
    let mut tier = open(options(2), &blob);
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(tier.blocks() as u64, blocks, "all are found");
    let packs = blocks.div_ceil(113);
    println!(
        "index of {blocks} blocks in {packs} packs: {seconds:.2} s, {:.0} blocks/s, {:.0} bytes of memory each",
        blocks as f64 / seconds,
        (resident() - before) / blocks as f64
    );
    let start = Instant::now();
    let listed = blob.list("").expect("a folder").len();
    let list = start.elapsed();
    let start = Instant::now();
    tier.refresh();
    settle(&mut tier, &blob, NOW);
    println!(
        "a list of {listed} objects: {list:.1?}, {:.1?} with what the tier makes of it",
        start.elapsed()
    );
}

/// A chain of 1,024 blocks of 295 kB, fetched and read plainly by turns: from the disk, as after a day, and from the
/// system's cache, as right after it was written.
fn chains(folder: &Path) {
    let blob = Folder::open(folder).expect("a folder");
    let options = |writer| TierOptions { wishes: 256, ..TierOptions::new(WriterId(writer), [1; 16]) };
    let mut tier = open(options(1), &blob);

    for depth in 0..1_024 {
        tier.store(block(1, depth, vec![depth as u8; BLOCK]), NOW);
        settle(&mut tier, &blob, NOW);
    }
    tier.flush();
    settle(&mut tier, &blob, NOW);
    let wanted: Vec<BlockHash> = (0..1_024).map(|depth| name(1, depth)).collect();
    let mut memory = vec![1; wanted.len() * BLOCK];
    let buffers = Buffers::new(BLOCK, (wanted.len() * BLOCK) as u64);
    buffers.reserve(0).expect("it is there");
    for round in 0..8 {
        let cold = round < 4;
        let forget = || {
            if cold {
                forget(folder, &blob)
            }
        };
        forget();
        let start = Instant::now();
        let bytes = plain(folder);
        let plain = bytes as f64 / start.elapsed().as_secs_f64();
        forget();
        let start = Instant::now();
        let plan = tier.fetch(FetchId(round), &wanted, Tenant::default(), (CLASS, NOW));
        let arrived = restore(&mut tier, (&blob, &buffers), &mut memory);
        let fetched = plan.bytes as f64 / start.elapsed().as_secs_f64();
        assert_eq!(arrived, wanted.len(), "all have arrived");
        println!(
            "chain of {} MB in {} reads from the {}: {:.2} GB/s, checked and copied to its place; plain read of the same files {:.2} GB/s: {:.0} %",
            plan.bytes / 1_000_000,
            plan.reads,
            if cold { "disk" } else { "system's cache" },
            fetched / 1e9,
            plain / 1e9,
            100.0 * fetched / plain
        );
    }
}

/// Has the system drop what it keeps of the files, as `dd` of GNU coreutils asks it to.
fn forget(folder: &Path, blob: &Folder) {
    for object in blob.list("").expect("a folder") {
        let from = format!("if={}", folder.join(&object.name).display());
        let dropped = Command::new("dd").args([&from, "iflag=nocache", "count=0", "status=none"]).status();
        assert!(dropped.expect("dd").success(), "{from}");
    }
}

/// Two threads read, as disks of a cache do, and this one is told and copies. Returns how many blocks came.
fn restore(tier: &mut Tier, (blob, buffers): (&Folder, &Buffers), memory: &mut [u8]) -> usize {
    let wishes: Vec<_> = std::iter::from_fn(|| tier.wish()).collect();
    let (count, wishes) = (wishes.len(), Mutex::new(wishes.into_iter()));
    let (tell, told) = mpsc::channel();
    let mut arrived = 0;
    std::thread::scope(|scope| {
        for tell in [tell.clone(), tell] {
            let next = || wishes.lock().expect("nobody panics").next();
            scope.spawn(move || {
                while let Some(wish) = next() {
                    tell.send(wish.carry_out_with(blob, buffers)).expect("it is waited for");
                }
            });
        }
        for told in told.iter().take(count) {
            tier.tell(told, NOW);
            while let Some(news) = tier.news() {
                let News::Arrived { place, bytes, .. } = news else { continue };
                memory[place * BLOCK..(place + 1) * BLOCK].copy_from_slice(&bytes);
                arrived += 1;
            }
        }
    });
    arrived
}

/// Reads all files of a folder from their beginning to their end, into one buffer. Returns their bytes.
fn plain(folder: &Path) -> u64 {
    let blob = Folder::open(folder).expect("a folder");
    let mut buffer = vec![0; 8 << 20];
    let mut bytes = 0;
    for object in blob.list("").expect("a folder") {
        let mut file = fs::File::open(folder.join(&object.name)).expect("it is listed");
        loop {
            let read = file.read(&mut buffer).expect("it can be read");
            bytes += read as u64;
            if read == 0 {
                break;
            }
        }
    }
    bytes
}

/// Of `every` so many conversations one, which are one a line.
fn prompts(every: usize) -> Vec<Prompt> {
    let mut prompts = Vec::new();
    for (talk, line) in std::io::stdin().lock().lines().enumerate().step_by(every) {
        let line = line.expect("the trace can be read");
        collect(Line::read(&line).expect("a conversation of agents").requests, talk as u64, &mut prompts);
    }
    prompts.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    prompts
}

/// Tokens in a block of the trace.
const TOKENS: u64 = 64;

fn replay(words: &[&str]) {
    let number = words.first().and_then(|word| word.parse().ok());
    let (every, configs) = (number.unwrap_or(1), &words[usize::from(number.is_some())..]);
    let work = |path: &&str| WorkFacts::of_config(Path::new(path)).expect("settings of a model");
    let works: Vec<WorkFacts> = configs.iter().map(work).collect();
    let prompts = prompts(every);
    let all: u64 = prompts.iter().map(Prompt::block_count).sum();
    println!("{} prompts, {all} blocks", prompts.len());
    for (label, ttl_s) in [("1 h", 3_600), ("1 d", 86_400), ("3 d", 3 * 86_400)] {
        let start = Instant::now();
        let ideal = Reuse::of(&prompts, &[f64::from(ttl_s)]).found[0];
        let (found, tier) = through_the_store(&prompts, ttl_s);
        let share = |blocks: u64| 100.0 * blocks as f64 / all as f64;
        println!(
            "kept for {label}: found {:.2} % of blocks, ideal {:.2} %; {:?}; {:.0} s",
            share(found.iter().sum()),
            share(ideal),
            tier.counts(),
            start.elapsed().as_secs_f64()
        );
        configs.iter().zip(&works).for_each(|(config, work)| multiply(config, work, (&prompts, &found)));
    }
}

/// What a model has to multiply for all prompts of which that much was found, by how much it computes once more.
fn multiply(name: &str, work: &WorkFacts, (prompts, found): (&[Prompt], &[u64])) {
    let (layers, window) = (work.layers() as u64, u64::from(work.state_window().unwrap_or(0)));
    let sum = |replay: Option<u64>| -> (f64, f64) {
        let computed = |(prompt, found): (&Prompt, &u64)| {
            let (tokens, found) = (prompt.block_count() * TOKENS, replay.map_or(0, |_| found * TOKENS));
            let replay = replay.unwrap_or(0);
            // The last token is always computed.
            let start = found.saturating_sub(replay).min(tokens - 1) as u32;
            let shape = RowShape {
                valid_from: start,
                written: found as u32,
                ..RowShape::plain(start, tokens as u32 - start, 0)
            };
            ((tokens - found.saturating_sub(replay)) as f64, work.row(&shape).multiply_adds())
        };
        prompts.iter().zip(found).map(computed).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let (nothing, exact, bounded) = (sum(None), sum(Some(layers * window)), sum(Some(window)));
    println!(
        "  {name}, {} layers, window {}: multiply-adds {:.3e} with nothing found, {:.2} % of that with exact replay, {:.2} % with bounded: \
         cut by {:.1} %; tokens {:.2} % and {:.2} %",
        layers,
        window,
        nothing.1,
        100.0 * exact.1 / nothing.1,
        100.0 * bounded.1 / nothing.1,
        100.0 * (1.0 - bounded.1 / exact.1),
        100.0 * exact.0 / nothing.0,
        100.0 * bounded.0 / nothing.0
    );
}

/// Which blocks a tier finds, which lets go of what has expired every ten minutes: for each prompt, blocks.
fn through_the_store(prompts: &[Prompt], ttl_s: u32) -> (Vec<u64>, Tier) {
    let blob = Memory::new();
    let class = Class { name: "agent".to_owned(), ttl_s, bytes: u64::MAX };
    let options =
        TierOptions { pack_bytes: 4_096, classes: vec![class], ..TierOptions::new(WriterId(1), [1; 16]) };
    let mut tier = open(options, &blob);
    let (mut found, mut swept) = (Vec::with_capacity(prompts.len()), 0);
    for prompt in prompts {
        let now = Stamp(NOW.0 + prompt.at_s as u32);
        let names: Vec<BlockHash> = prompt.blocks().map(|number| name(prompt.scope, number)).collect();
        let here = tier.plan(&names, Tenant::default()).blocks;
        found.push(here as u64);
        tier.touch(&names[..here], Tenant::default(), (CLASS, now));
        for (depth, number) in prompt.blocks().enumerate().skip(here) {
            let parent = depth.checked_sub(1).map(|before| names[before]);
            tier.store(NewBlock { hash: names[depth], parent, ..block(prompt.scope, number, vec![7]) }, now);
        }
        settle(&mut tier, &blob, now);
        if now.0 / 600 != swept {
            swept = now.0 / 600;
            tier.flush();
            settle(&mut tier, &blob, now);
            tier.expire(now);
            settle(&mut tier, &blob, now);
        }
    }
    (found, tier)
}
