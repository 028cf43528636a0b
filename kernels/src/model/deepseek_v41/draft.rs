//! The drafter: a few layers see a row's newest token and places for the ones behind it all at once, together with what
//! the model's last layers left of the positions before. Then guesses are fixed one after the other, each corrected by
//! the one before it.

use super::super::draft::{Choose, DraftRow, Drafter, Drafts};
use super::super::scratch::{Scratch, sized};
use super::DeepSeekV41;
use super::parts::DraftPart;
use super::pass::Streams;
use crate::backend::Backend;
use crate::error::Error;
use crate::kv::KvMemory;
use crate::residual;

impl Drafter for DeepSeekV41 {
    fn block(&self) -> usize {
        self.drafts.as_ref().map_or(0, |drafts| drafts.block)
    }

    fn draft(
        &self,
        rows: &[DraftRow],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
        choose: &mut Choose<'_>,
    ) -> Result<Drafts, Error> {
        let Some(part) = &self.drafts else { return Ok(Drafts::default()) };
        let mut pass = Streams::begin_draft(self, rows, kv, scratch, backend)?;
        pass.embed_drafts();
        for (index, block) in part.blocks.iter().enumerate() {
            pass.layer(self.layers.len() + index, block);
        }
        let mut drafts = pass.guesses(part);
        pass.settle(part, rows, &mut drafts, choose);
        pass.end();
        Ok(drafts)
    }
}

impl Streams<'_> {
    /// What the last layer leaves of each guess, and logits of that.
    fn guesses(&mut self, part: &DraftPart) -> Drafts {
        let (count, hidden, streams) = (self.count(), self.pass.hidden, self.model.config.streams);
        let Scratch { x, y, streams: own, .. } = &mut *self.pass.scratch;
        let mut drafts = Drafts { hidden: vec![0.0; count * hidden], ..Drafts::default() };
        let read = own.mixes.read.chunks_exact(streams);
        let rows = x.chunks_exact(streams * hidden).zip(read).zip(drafts.hidden.chunks_exact_mut(hidden));
        rows.for_each(|((x, read), out)| residual::collapse_row(x, read, out));
        let y = sized(y, count * hidden);
        self.pass.backend.rms_norm(&drafts.hidden, &part.norm.weight, part.norm.eps, y);
        let output = self.model.ends.output.as_ref().unwrap_or(&self.model.ends.embedding);
        drafts.base = vec![0.0; count * output.rows];
        self.pass.backend.matmul(y, count, output, &mut drafts.base);
        drafts
    }

    /// Fixes the guesses, the first of all rows, then the second, and so on.
    fn settle(&mut self, part: &DraftPart, rows: &[DraftRow], drafts: &mut Drafts, choose: &mut Choose<'_>) {
        let (before, after) = &part.markov;
        let (hidden, rank, vocab) = (self.pass.hidden, before.cols, after.rows);
        let count = rows.len() * part.block;
        (drafts.tokens, drafts.confidences) = (vec![0; count], vec![0.0; count]);
        drafts.logits = drafts.base.clone();
        let mut last: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let (mut known, mut correction) = (vec![0.0; rows.len() * rank], vec![0.0; rows.len() * vocab]);
        for place in 0..part.block {
            self.pass.backend.embed(before, &last, &mut known);
            self.pass.backend.matmul(&known, rows.len(), after, &mut correction);
            for (row, known) in known.chunks_exact(rank).enumerate() {
                let at = row * part.block + place;
                let logits = &mut drafts.logits[at * vocab..][..vocab];
                logits.iter_mut().zip(&correction[row * vocab..]).for_each(|(logit, by)| *logit += by);
                last[row] = choose(row, place, logits);
                drafts.tokens[at] = last[row];
                let features = drafts.hidden[at * hidden..][..hidden].iter().chain(known);
                let sum: f32 = features.zip(&part.confidence).map(|(x, w)| x * w).sum();
                drafts.confidences[at] = 1.0 / (1.0 + (-sum).exp());
            }
        }
    }
}
