//! Two actors and the lane between them: what an actor is, what a graph is, and how the shell talks to both ends.
//!
//! `cargo run --example 01_two_actors`

use millstream_runtime::{Actor, Ctx, GraphBuilder, HoldOut, LiveOptions, live};

/// Squares what arrives.
struct Square {
    out: HoldOut<u64>,
}

impl Actor for Square {
    type Message = u64;
    fn handle(&mut self, number: u64, _ctx: &mut Ctx<'_>) {
        self.out.send(number * number);
    }
}

/// Adds up what arrives, and reports once per turn rather than once per number.
struct Sum {
    total: u64,
    out: HoldOut<u64>,
}

impl Actor for Sum {
    type Message = u64;
    fn handle(&mut self, number: u64, _ctx: &mut Ctx<'_>) {
        self.total += number;
    }
    fn settle(&mut self, _ctx: &mut Ctx<'_>) {
        self.out.send(self.total);
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Seats first, then the lanes between them, then an actor for each seat.
    let mut g = GraphBuilder::new();
    let square = g.seat::<u64>("square", "maths");
    let sum = g.seat::<u64>("sum", "maths");
    let numbers = g.inlet("numbers", &square, 16, |n: u64| n);
    let squares = g.hold("squares", &square, &sum, 4, |n: u64| n);
    let (out, totals) = g.outlet("totals", &sum, 16);
    g.actor(square, move || Square { out: squares.clone() });
    g.actor(sum, move || Sum { total: 0, out: out.clone() });

    let running = live::start(g.finish()?, LiveOptions::default()).await?;
    for number in 1..=10 {
        numbers.offer(number).map_err(|back| anyhow::anyhow!("the inlet is full: {back}"))?;
    }
    while let Some(total) = totals.recv().await {
        println!("total so far: {total}");
        if total == 385 {
            break;
        }
    }
    running.stop().await;
    Ok(())
}
