//! What is found is worth what is computed: a prompt whose beginning is found up to any border of a block is answered like
//! one of which nothing is found, in tokens, in their log-probabilities and in the logits, to the last bit. Wherever it is
//! found: in the group's own memory, in host memory, on disk, after the process died, in what another process wrote.

mod common;
#[path = "../../kernels/tests/fixtures/real.rs"]
mod real;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{World, plan_with};
use millstream_actors::assemble::{LastingStore, Resources};
use millstream_actors::rank::StepCost;
use millstream_actors::request::{Observe, Outcome, Prompt, RequestId, Sampling, Submit};
use millstream_actors::store::Stamp;
use millstream_runtime::SimOptions;
use millstream_runtime::blob::{Blob, Folder};
use tempfile::TempDir;

const BLOCK: usize = 16;
const ANSWER: u32 = 2;
/// So much that nothing is computed for being quicker than a disk.
const COST: StepCost = StepCost { step: Duration::from_millis(1), token: Duration::from_millis(5) };
/// Until a step's blocks are written and other processes have looked what is new.
const SETTLED: Duration = Duration::from_secs(3);

/// Where a beginning lies when it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Group,
    Host,
    Disk,
    AfterDeath,
    OfAnother,
}

/// A model and the longest beginning, in blocks, that is found of a prompt.
struct Case {
    resources: Resources,
    borders: usize,
    /// Tokens that are found and computed once more.
    replay: usize,
}

/// All that depends on the arithmetic, in bits.
#[derive(Debug, PartialEq)]
struct Bits {
    tokens: Vec<u32>,
    logprobs: Vec<Vec<(u32, u32)>>,
    logits: Vec<u32>,
}

/// The prompt that begins with so many blocks of one that all share, and ends like no other.
fn prompt(blocks: usize) -> Vec<u32> {
    let shared = (0..blocks * BLOCK).map(|n| (n * 37 + n / 7 + 101) % 230 + 20);
    let own = (0..9).map(|n| 300 + (blocks * 9 + n) % 600);
    shared.chain(own).map(|token| token as u32).collect()
}

fn submit(blocks: usize) -> Submit {
    let tokens = prompt(blocks);
    let observe = Observe::At(vec![tokens.len() as u32 - 1]);
    let ask = Submit::new(Prompt::Tokens(tokens), Sampling::GREEDY);
    let request = RequestId(blocks as u64);
    Submit { request, tokens_max: Some(ANSWER), ignore_end: true, logprobs: Some(2), observe, ..ask }
}

/// Asks and waits for the answer.
fn ask(world: &mut World, blocks: usize) -> Bits {
    let (submit, now) = (submit(blocks), world.sim.now());
    let request = submit.request;
    world.submit_at(now.saturating_since(millstream_runtime::Time::ZERO), submit);
    world.run_for(Duration::from_secs(600), &[request]);
    let answer = world.answers.get(&request).cloned().unwrap_or_default();
    assert!(matches!(answer.outcome, Some(Outcome::Finished(_))), "{blocks} blocks: {answer:?}");
    let chosen = |said: &millstream_actors::request::Logprobs| {
        let chosen = (u32::MAX, said.chosen.to_bits());
        [chosen].into_iter().chain(said.best.iter().map(|best| (best.0, best.1.to_bits()))).collect()
    };
    let place = (request, prompt(blocks).len() as u32 - 1);
    let logits = world.logits.get(&place).expect("they were asked for");
    Bits {
        tokens: answer.tokens,
        logprobs: answer.logprobs.iter().map(chosen).collect(),
        logits: logits.iter().map(|logit| logit.to_bits()).collect(),
    }
}

impl Case {
    /// A process: with a store that lasts where there is one.
    fn open(&self, cache: &str, reuse: bool, store: Option<&LastingStore>) -> World {
        let group = "memory = \"96MiB\"\nchunk_tokens = 128";
        let decode = format!("joined = true\nprefix_reuse = {reuse}\n{group}");
        let plan = plan_with(["[limits]\nrestarts = 1000", cache], group, &decode);
        let resources = Resources { store: store.cloned(), ..self.resources.clone() };
        World::costing(COST, &plan, &resources, SimOptions::default())
    }

    fn cold(&self) -> BTreeMap<usize, Bits> {
        let mut world = self.open("", false, None);
        (1..=self.borders).map(|blocks| (blocks, ask(&mut world, blocks))).collect()
    }

    /// Computes the longest beginning, then asks for it up to each border, shorter ones last.
    fn warm(&self, place: Place, folder: &Path) -> BTreeMap<usize, (Bits, usize)> {
        let tiers = match place {
            Place::Group => "",
            Place::Host => "tiers = [{ host = \"512MiB\" }]",
            _ => "tiers = [{ host = \"512MiB\" }, { disk = \"kv\" }]",
        };
        let blob: Arc<dyn Blob> = Arc::new(Folder::open(folder).expect("a folder"));
        let store =
            LastingStore { blob, model: [7; 32], writer: Arc::new(AtomicU64::new(1)), began: Stamp(1_000) };
        let store = tiers.contains("disk").then_some(store);
        let process = |writer: u64| {
            let store = store.clone().inspect(|store| store.writer.store(writer << 32, Ordering::Relaxed));
            self.open(tiers, true, store.as_ref())
        };
        let mut first = process(1);
        let mut other = (place == Place::OfAnother).then(|| process(2));
        other.iter_mut().for_each(|other| other.run_for(SETTLED, &[]));
        ask(&mut first, self.borders + 1);
        first.run_for(SETTLED, &[]);
        other.iter_mut().for_each(|other| other.run_for(SETTLED, &[]));
        let mut asked = BTreeMap::new();
        for blocks in (1..=self.borders).rev() {
            let world = other.as_mut().unwrap_or(&mut first);
            match place {
                Place::Group => {}
                Place::Host => assert!(world.sim.kill("decode")),
                Place::Disk | Place::OfAnother => {
                    assert!(world.sim.kill("decode") && world.sim.kill("cache"));
                    world.run_for(SETTLED, &[]);
                }
                Place::AfterDeath => {
                    *world = process(10 + blocks as u64);
                    world.run_for(SETTLED, &[]);
                }
            }
            let bits = ask(world, blocks);
            asked.insert(blocks, (bits, world.cached[&RequestId(blocks as u64)] as usize));
            world.run_for(SETTLED, &[]);
            world.assert_quiet(&format!("{place:?}"));
        }
        asked
    }

    fn holds(&self) {
        let cold = self.cold();
        for place in [Place::Group, Place::Host, Place::Disk, Place::AfterDeath, Place::OfAnother] {
            let folder = TempDir::new().expect("room for a folder");
            println!("{place:?}");
            for (blocks, (warm, cached)) in self.warm(place, folder.path()) {
                let expected = (blocks * BLOCK).saturating_sub(self.replay);
                assert_eq!(cached, expected, "{place:?}, {blocks} blocks: tokens that were not computed");
                assert!(warm == cold[&blocks], "{place:?}, {blocks} blocks: not the bits of a cold answer");
            }
        }
    }
}

/// Real weights, windows in blocks: nothing is replayed.
#[test]
fn gemma_answers_alike_at_every_border() {
    let Some(path) = real::real_model("gemma-3-270m-q4_k_m.gguf") else { return };
    let resources =
        Resources::load_with(&path, millstream_topology::Activations::Int8).expect("it is a model");
    Case { resources, borders: 16, replay: 0 }.holds();
}

/// Six layers with windows of 32: of twelve blocks that are found all is computed once more, of what is beyond nothing.
#[test]
fn the_model_in_the_program_answers_alike_at_every_border() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/builtin/model");
    let resources = Resources::load(&folder).expect("the model is in the tree");
    Case { resources, borders: 26, replay: 6 * 32 }.holds();
}
