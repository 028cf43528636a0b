//! What happens when a lane is full, policy by policy. In the simulator, so that it happens the same way every time.
//!
//! `cargo run --example 02_full_lane`

use std::time::Duration;

use millstream_runtime::{Actor, Ctx, GraphBuilder, HoldOut, LatestOut, OfferOut, Sim, SimOptions, Time};

/// Sends ten numbers on each of three lanes in one turn.
struct Talker {
    hold: HoldOut<u32>,
    offer: OfferOut<u32>,
    latest: LatestOut<u32>,
}

impl Actor for Talker {
    type Message = ();
    fn handle(&mut self, (): (), _ctx: &mut Ctx<'_>) {
        for number in 0..10 {
            self.hold.send(number); // never fails; this seat takes no turn until it has all moved on
            if let Err(number) = self.offer.offer(number) {
                println!("offer: {number} came back");
            }
            self.latest.put(number); // overwrites what was not read
        }
    }
}

/// Takes a millisecond per number.
struct Listener;

impl Actor for Listener {
    type Message = (&'static str, u32);
    fn handle(&mut self, (lane, number): Self::Message, ctx: &mut Ctx<'_>) {
        println!("{:>8.3} ms  {lane}: {number}", ctx.now().as_nanos() as f64 / 1e6);
        ctx.spend(Duration::from_millis(1));
    }
}

fn main() -> anyhow::Result<()> {
    let mut g = GraphBuilder::new();
    let talker = g.seat::<()>("talker", "front");
    let listener = g.seat::<(&str, u32)>("listener", "back");
    let start = g.inlet("start", &talker, 1, |()| ());
    let hold = g.hold("hold", &talker, &listener, 2, |number: u32| ("hold", number));
    let offer = g.offer("offer", &talker, &listener, 2, |number: u32| ("offer", number));
    let latest = g.latest("latest", &talker, &listener, 2, |number: u32| ("latest", number));
    g.actor(talker, move || Talker { hold: hold.clone(), offer: offer.clone(), latest: latest.clone() });
    g.actor(listener, || Listener);

    let mut sim = Sim::new(g.finish()?, SimOptions::default());
    start.offer(()).map_err(|()| anyhow::anyhow!("the inlet is full"))?;
    sim.run_until_idle(Time::ZERO + Duration::from_secs(1));
    for lane in sim.lanes() {
        println!("{}: {} sent, {} returned, {} gone", lane.name, lane.sent, lane.refused, lane.overwritten);
    }
    Ok(())
}
