//! The steps of a scheduler: planned, run by the memory in their order, and done. With two in flight the memory may have run
//! the one behind before the first is done.

use millstream_actors::message::{Chosen, Exported, Reader, SequenceId, Step, StepDone, StepRow};
use millstream_actors::request::Finish;
use millstream_actors::snapshot::Snapshot;

use super::{Memory, World, alone};

/// A step that the memory has.
pub struct Flown {
    step: Step,
    /// Once it was run.
    done: Option<StepDone>,
}

impl Memory {
    fn forward(&mut self, rows: &[StepRow], spoilt: bool) -> StepDone {
        let tokens = rows.iter().map(|row| self.row(row).map(|id| Chosen { id, logprobs: None }));
        let mut done = StepDone { tokens: tokens.collect(), ..StepDone::default() };
        if let Some(place) = done.tokens.iter().position(Option::is_some).filter(|_| spoilt) {
            done.tokens[place] = None;
            done.unsound.push(rows[place].sequence);
        }
        done
    }
}

impl World {
    /// The step that was planned last, if it is in flight.
    pub fn flight(&self) -> Option<&Step> {
        self.flights.back().map(|flown| &flown.step)
    }

    pub fn plan(&mut self) {
        self.now += 1;
        self.expire();
        let Some(step) = self.scheduler.plan() else { return };
        let prompts = step.rows.iter().map(|row| row.tokens.len()).filter(|&n| n > 1);
        assert!(prompts.sum::<usize>() <= self.bounds.chunk_tokens, "the budget of a step");
        assert!(step.rows.len() <= self.bounds.sequences_max);
        self.check_time(&step);
        self.flights.push_back(Flown { step, done: None });
        assert!(self.flights.len() <= 1 + usize::from(self.bounds.ahead), "steps in flight");
    }

    /// The memory runs the next step.
    pub fn run(&mut self) {
        let Some(flown) = self.flights.iter_mut().find(|flown| flown.done.is_none()) else { return };
        let (step, memory) = (&mut flown.step, &mut self.memory);
        for import in &step.imports {
            memory.import(import.place, &import.data);
        }
        let spoilt = std::mem::take(&mut self.spoilt);
        let computed = &mut self.computed;
        let ran = self.follow.run(std::mem::take(&mut step.rows), |rows| {
            *computed += rows.iter().map(|row| row.tokens.len()).sum::<usize>();
            memory.forward(rows, spoilt)
        });
        let exported = step.exports.iter().map(|export| memory.export(export)).collect();
        flown.done = Some(StepDone { number: step.number, exported, ..ran });
    }

    /// The next step that runs breaks one of its sequences.
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }

    pub fn done(&mut self) {
        if self.flights.front().is_some_and(|flown| flown.done.is_none()) {
            self.run();
        }
        let Some(mut done) = self.flights.pop_front().and_then(|flown| flown.done) else { return };
        let mut tokens = self.scheduler.apply(&mut done).tokens;
        for sequence in std::mem::take(&mut done.unsound) {
            tokens.retain(|token| token.request.sequence() != sequence);
            if self.scheduler.knows(sequence) {
                self.forget(sequence);
            }
        }
        for Exported { reader, data } in done.exported {
            let Reader::Snapshot(name) = reader else { continue };
            self.shelf.put(Snapshot { name, data });
        }
        tokens.into_iter().for_each(|token| self.token(&token));
    }

    fn token(&mut self, token: &millstream_actors::message::Token) {
        let id: SequenceId = token.request.sequence();
        self.found.insert(id.request, token.found);
        let answer = self.answers.entry(id).or_default();
        assert_eq!(token.position as usize, answer.len(), "tokens come in order, none twice");
        answer.push(token.id);
        let Some(finish) = token.finish else { return };
        let answer = answer.clone();
        let request = self.requests.remove(&id).expect("it has not ended before");
        if self.exact() {
            assert_eq!(answer, alone(&request, &self.bounds).0, "the answer it gives alone");
        }
        assert_eq!(finish == Finish::Stop, self.bounds.end_tokens.contains(&token.id));
    }
}
