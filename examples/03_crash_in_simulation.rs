//! A seat dies, and its neighbour makes good what was lost; the same seed tells the same story.
//!
//! `cargo run --example 03_crash_in_simulation -- 7`

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, Faults, GraphBuilder, HoldOut, ReplyOut, Sim, SimOptions, Time};

/// Has every job done once, whatever happens to the one who does them.
struct Owner {
    open: BTreeSet<u32>,
    asked: bool,
    jobs: HoldOut<u32>,
}

impl Actor for Owner {
    type Message = u32; // a job that is done
    fn handle(&mut self, done: u32, ctx: &mut Ctx<'_>) {
        println!("{:>9} ns  job {done} is done", ctx.now().as_nanos());
        self.open.remove(&done);
    }
    fn settle(&mut self, _ctx: &mut Ctx<'_>) {
        if !std::mem::replace(&mut self.asked, true) {
            self.open.iter().for_each(|job| self.jobs.send(*job));
        }
    }
    fn lost(&mut self, peer: &str, ctx: &mut Ctx<'_>) {
        println!("{:>9} ns  {peer} died, {} jobs are open", ctx.now().as_nanos(), self.open.len());
        self.asked = false; // settle follows
    }
}

struct Doer(ReplyOut<u32>);

impl Actor for Doer {
    type Message = u32;
    fn handle(&mut self, job: u32, ctx: &mut Ctx<'_>) {
        ctx.spend(Duration::from_micros(100));
        self.0.reply(job);
    }
}

fn main() -> anyhow::Result<()> {
    let seed = std::env::args().nth(1).map_or(Ok(7), |seed| seed.parse())?;
    let mut g = GraphBuilder::new();
    let (owner, doer) = (g.seat::<u32>("owner", "owner"), g.seat::<u32>("doer", "doer"));
    let jobs = g.hold("jobs", &owner, &doer, 2, |job: u32| job);
    let done = g.reply("done", &doer, &owner, 64, |job: u32| job);
    g.actor(owner, move || Owner { open: (0..8).collect(), asked: false, jobs: jobs.clone() });
    g.actor(doer, move || Doer(done.clone()));
    let faults = Faults { crash: 0.3, crashes_max: 3, spare: vec!["owner".to_owned()], ..Faults::none() };
    let mut sim = Sim::new(g.finish()?, SimOptions { seed, faults, ..SimOptions::default() });
    sim.run_until_idle(Time::ZERO + Duration::from_secs(1));
    println!("seed {seed}: {} restarts, log {:016x}", sim.seats()[1].restarts, sim.digest());
    Ok(())
}
