//! Two seats that talk and notice when a message of one life reaches another: every message says in which life it was
//! sent, and how many deaths of the other its sender had heard of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_runtime::{Actor, Budget, Ctx, Graph, GraphBuilder, HoldOut, ReplyOut};

/// What a sender knows of both lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    life: u64,
    losses: u64,
}

/// Between two notices, all messages of a lane must bear one mark.
struct Watch {
    name: &'static str,
    own: Mark,
    peer: Option<Mark>,
    /// Marks that were over when a notice came: none of them may come again.
    past: Vec<Mark>,
    violations: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    fn new(name: &'static str, lives: &AtomicU64, violations: &Arc<Mutex<Vec<String>>>) -> Watch {
        let own = Mark { life: lives.fetch_add(1, Ordering::SeqCst), losses: 0 };
        Watch { name, own, peer: None, past: Vec::new(), violations: Arc::clone(violations) }
    }

    fn see(&mut self, mark: Mark) {
        let new = *self.peer.get_or_insert(mark);
        if new != mark || self.past.contains(&mark) {
            let text = format!("{} {:?}: {mark:?} among {new:?} after {:?}", self.name, self.own, self.past);
            self.violations.lock().expect("not poisoned").push(text);
        }
    }

    fn lost(&mut self) {
        self.own.losses += 1;
        self.past.extend(self.peer.take());
    }
}

struct Asker {
    watch: Watch,
    ask: HoldOut<Mark>,
    open: u32,
    answers: Arc<AtomicU64>,
}

impl Actor for Asker {
    type Message = Mark;
    fn handle(&mut self, mark: Mark, _ctx: &mut Ctx<'_>) {
        self.watch.see(mark);
        self.open = self.open.saturating_sub(1);
        self.answers.fetch_add(1, Ordering::SeqCst);
    }
    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        while self.open < 8 {
            self.ask.send(self.watch.own);
            self.open += 1;
        }
        ctx.wake_at(ctx.now() + Duration::from_millis(5));
    }
    fn lost(&mut self, _peer: &str, _ctx: &mut Ctx<'_>) {
        self.watch.lost();
        self.open = 0;
    }
}

struct Answerer {
    watch: Watch,
    answer: ReplyOut<Mark>,
}

impl Actor for Answerer {
    type Message = Mark;
    fn handle(&mut self, mark: Mark, ctx: &mut Ctx<'_>) {
        self.watch.see(mark);
        ctx.spend(Duration::from_micros(20));
        self.answer.reply(self.watch.own);
    }
    fn lost(&mut self, _peer: &str, _ctx: &mut Ctx<'_>) {
        self.watch.lost();
    }
}

/// The graph, and what it has seen.
pub struct Pair {
    pub graph: Graph,
    pub answers: Arc<AtomicU64>,
    pub violations: Arc<Mutex<Vec<String>>>,
}

impl Pair {
    pub fn new(own: bool) -> Pair {
        let lives: Arc<AtomicU64> = Arc::default();
        let answers: Arc<AtomicU64> = Arc::default();
        let violations: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut g = GraphBuilder::new();
        let asker = g.seat::<Mark>("asker", "asker");
        let answerer = if own {
            g.compute_seat::<Mark>("answerer", "answerer", vec![])
        } else {
            g.seat::<Mark>("answerer", "answerer")
        };
        let ask = g.hold("ask", &asker, &answerer, 3, |mark: Mark| mark);
        let answer = g.reply("answer", &answerer, &asker, 8, |mark: Mark| mark);
        let (count, bad, numbers) = (Arc::clone(&answers), Arc::clone(&violations), Arc::clone(&lives));
        g.actor(asker, move || Asker {
            watch: Watch::new("asker", &numbers, &bad),
            ask: ask.clone(),
            open: 0,
            answers: Arc::clone(&count),
        });
        let (bad, numbers) = (Arc::clone(&violations), lives);
        g.actor(answerer, move || Answerer {
            watch: Watch::new("answerer", &numbers, &bad),
            answer: answer.clone(),
        });
        for unit in ["asker", "answerer"] {
            g.budget(unit, Budget { restarts: 1000, within: Duration::from_secs(60) });
        }
        Pair { graph: g.finish().expect("the graph is sound"), answers, violations }
    }
}
