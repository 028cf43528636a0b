//! One step of this family on its way through the layers. The streams are `x`, `[tokens, streams, hidden]`; `y` is what a
//! part of a layer reads and leaves. Not every layer runs on every token of a row (`narrow`).

use super::super::pass::Pass;
use super::super::scratch::{Scratch, sized};
use super::super::{DraftRow, Local, Row};
use super::parts::{Block, DraftPart, Lookup, Mix};
use super::refuse::problem;
use super::scratch::StreamScratch;
use super::{DeepSeekV41, compress};
use crate::backend::Backend;
use crate::error::Error;
use crate::kv::{KvFormat, KvMemory, fp4};
use crate::op::turns_of;
use crate::residual::{Mixing, Recall};
use crate::windowed::WindowRow;

/// A step in progress.
pub(super) struct Streams<'a> {
    pub pass: Pass<'a>,
    pub model: &'a DeepSeekV41,
    /// The rows as attention in windows takes them.
    pub windows: Vec<WindowRow<'a>>,
    /// Tokens of a row see each other all: a draft.
    pub together: bool,
}

impl<'a> Streams<'a> {
    /// Checks a step against the model and the memory, and lays its rows out.
    ///
    /// # Errors
    /// [`Error::Step`], [`Error::KvLayout`].
    pub fn begin(
        model: &'a DeepSeekV41,
        step: &[Row<'a>],
        kv: &'a mut KvMemory,
        scratch: &'a mut Scratch,
        backend: &'a mut dyn Backend,
    ) -> Result<Streams<'a>, Error> {
        for (index, row) in step.iter().enumerate() {
            if let Some(problem) = problem(model, row) {
                return Err(Error::Step { row: index, problem });
            }
        }
        let mut pass = Pass::begin(&model.facts, step, kv, scratch, backend)?;
        pass.hidden = model.config.shape.hidden;
        let window = |(row, local): (&Row<'a>, &Local<'a>)| WindowRow {
            start: row.start,
            tokens: row.tokens.len(),
            from: local.valid_from,
            slot: local.slot,
            blocks: row.blocks,
        };
        let windows = step.iter().zip(&pass.locals).map(window).collect();
        Ok(Streams { pass, model, windows, together: false })
    }

    /// A draft of some rows: each is its token and places for what comes behind it.
    ///
    /// # Errors
    /// [`Error::Step`], [`Error::KvLayout`].
    pub fn begin_draft(
        model: &'a DeepSeekV41,
        rows: &[DraftRow],
        kv: &'a mut KvMemory,
        scratch: &'a mut Scratch,
        backend: &'a mut dyn Backend,
    ) -> Result<Streams<'a>, Error> {
        let Some(drafts) = &model.drafts else { return Streams::begin(model, &[], kv, scratch, backend) };
        for (index, row) in rows.iter().enumerate() {
            let problem = if row.slot as usize >= kv.slots() {
                format!("names state slot {}, the memory has {}", row.slot, kv.slots())
            } else if row.token as usize >= model.facts.vocab {
                format!("holds token {}, the vocabulary has {}", row.token, model.facts.vocab)
            } else if row.valid_from > row.position {
                format!("is at {}, its state is valid from {} on", row.position, row.valid_from)
            } else {
                continue;
            };
            return Err(Error::Step { row: index, problem });
        }
        let mut pass = Pass::begin(&model.facts, &[], kv, scratch, backend)?;
        pass.hidden = model.config.shape.hidden;
        let Scratch { tokens, positions, .. } = &mut *pass.scratch;
        for row in rows {
            tokens.push(row.token);
            tokens.extend(std::iter::repeat_n(drafts.noise, drafts.block - 1));
            positions.extend((row.position..).take(drafts.block));
        }
        let window = |row: &DraftRow| WindowRow {
            start: row.position,
            tokens: drafts.block,
            from: row.valid_from,
            slot: row.slot,
            blocks: &[],
        };
        let windows = rows.iter().map(window).collect();
        Ok(Streams { pass, model, windows, together: true })
    }

    /// Tokens that the step is about now.
    pub fn count(&self) -> usize {
        self.pass.scratch.tokens.len()
    }

    /// The streams = the embeddings of the tokens, and all that follows from tokens and positions alone.
    pub fn embed(&mut self, step: &[Row<'_>]) {
        let hidden = self.pass.hidden;
        let Scratch { tokens, y, mixture, streams: own, .. } = &mut *self.pass.scratch;
        let y = sized(y, tokens.len() * hidden);
        self.pass.backend.embed(&self.model.ends.embedding, tokens, y);
        let mut first = 0;
        for row in step {
            for span in row.spans {
                let at = (first + span.first as usize) * hidden;
                y[at..][..span.embeddings.len()].copy_from_slice(span.embeddings);
            }
            first += row.tokens.len();
        }
        let image = self.model.config.image_token;
        mixture.marked.extend(tokens.iter().map(|&token| Some(token) == image));
        own.ngrams.clear();
        if let Some(engram) = &self.model.engram {
            let mut some = Vec::new();
            for row in step {
                engram.ngrams(row.local.before, row.tokens, image, &mut some);
                own.ngrams.extend_from_slice(&some);
            }
        }
        if let Some(drafts) = &self.model.drafts {
            sized(&mut own.features, tokens.len() * drafts.entry.cols);
        }
        self.fan_out();
    }

    /// The streams = the embeddings of the tokens of a draft.
    pub fn embed_drafts(&mut self) {
        let Scratch { tokens, y, .. } = &mut *self.pass.scratch;
        let y = sized(y, tokens.len() * self.pass.hidden);
        self.pass.backend.embed(&self.model.ends.embedding, tokens, y);
        self.fan_out();
    }

    /// Each stream = `y`; the first one is read. The angles of all positions.
    fn fan_out(&mut self) {
        let (streams, hidden) = (self.model.config.streams, self.pass.hidden);
        let Scratch { tokens, positions, x, y, streams: own, .. } = &mut *self.pass.scratch;
        let x = sized(x, tokens.len() * streams * hidden);
        for (y, x) in y.chunks_exact(hidden).zip(x.chunks_exact_mut(streams * hidden)) {
            x.chunks_exact_mut(hidden).for_each(|x| x.copy_from_slice(y));
        }
        own.mixes.size(tokens.len(), streams);
        own.mixes.read.fill(0.0);
        own.mixes.read.iter_mut().step_by(streams).for_each(|read| *read = 1.0);
        for (turns, frequencies) in own.turns.iter_mut().zip(&self.model.frequencies) {
            turns_of(positions.iter().copied(), frequencies, turns);
        }
    }

    /// Takes the streams through a layer.
    pub fn layer(&mut self, index: usize, layer: &Block) {
        if !self.together {
            self.leave_replay(index);
        }
        if self.count() == 0 {
            return;
        }
        if index == 0 {
            self.fetch_ahead();
        }
        if let Some(lookup) = &layer.lookup {
            self.look_up(lookup);
        }
        if let Some(feature) = layer.feature {
            self.keep_feature(feature);
        }
        self.read(&layer.attention_norm.weight);
        if let Some(source) = &layer.attention.source {
            compress::entries(self, source);
        }
        if self.model.first_decoder == Some(index) && !self.together {
            self.leave_decoder();
            if self.count() == 0 {
                return;
            }
        }
        self.mix(&layer.attention_mix);
        self.attend(index, &layer.attention);
        self.write();
        self.read(&layer.feed_forward_norm.weight);
        self.mix(&layer.feed_forward_mix);
        self.pass.mixture(&layer.mixture);
        self.write();
        #[cfg(test)]
        super::tests::Trace::note_layer(self.pass.scratch, self.model.config.streams, self.pass.hidden);
    }

    /// `y` = the norm of what the streams are read as.
    fn read(&mut self, norm: &[f32]) {
        let (count, hidden) = (self.count(), self.pass.hidden);
        let Scratch { x, y, streams: own, .. } = &mut *self.pass.scratch;
        let x = &x[..count * self.model.config.streams * hidden];
        let y = sized(y, count * hidden);
        self.pass.backend.collapse(x, &own.mixes.read, norm, self.model.config.shape.eps, y);
    }

    /// New mixes, of the streams as they are.
    fn mix(&mut self, mix: &Mix) {
        let config = &self.model.config;
        let count = self.count();
        let Scratch { x, streams: own, .. } = &mut *self.pass.scratch;
        let args = Mixing {
            streams: config.streams,
            weight: &mix.weight,
            scale: mix.scale,
            base: &mix.base,
            eps: config.shape.eps,
            small: config.mix.0,
            rounds: config.mix.1,
        };
        self.pass.backend.mix(&args, &x[..count * mix.weight.cols], &mut own.mixes);
    }

    /// The result `y` of a part of a layer goes to the streams.
    fn write(&mut self) {
        let (count, hidden) = (self.count(), self.pass.hidden);
        let Scratch { x, y, streams: own, .. } = &mut *self.pass.scratch;
        let x = &mut x[..count * self.model.config.streams * hidden];
        self.pass.backend.spread(x, &y[..count * hidden], &own.mixes);
        #[cfg(test)]
        if let Some(trace) = &mut own.trace {
            trace.streams.push(x.to_vec());
        }
    }

    /// Has the rows read that lookups will want, where their tables are too large to be in memory.
    fn fetch_ahead(&mut self) {
        let Some(engram) = &self.model.engram else { return };
        let own = &mut self.pass.scratch.streams;
        for lookup in self.model.layers.iter().filter_map(|layer| layer.lookup.as_ref()) {
            if lookup.rows.is_far() {
                engram.rows(lookup.layer, &own.ngrams, &mut own.rows);
                lookup.rows.fetch(&own.rows);
            }
        }
    }

    /// Adds what the newest tokens name.
    fn look_up(&mut self, lookup: &Lookup) {
        let Some(engram) = &self.model.engram else { return };
        let (count, config) = (self.count(), &self.model.config);
        let Scratch { x, mixture, streams: own, .. } = &mut *self.pass.scratch;
        let StreamScratch { ngrams, rows, found, recalled, .. } = own;
        engram.rows(lookup.layer, ngrams, rows);
        let found = sized(found, count * lookup.key_value.cols);
        lookup.rows.gather(rows, found);
        let recalled = sized(recalled, count * lookup.key_value.rows);
        self.pass.backend.matmul(found, count, &lookup.key_value, recalled);
        let args = Recall {
            norms: (&lookup.norms.0, &lookup.norms.1),
            streams: config.streams,
            eps: config.shape.eps,
            skip: &mixture.marked,
        };
        self.pass.backend.recall(&args, &mut x[..count * lookup.norms.0.len()], recalled);
        #[cfg(test)]
        if let Some(trace) = &mut own.trace {
            trace.engram_rows.push(own.rows.clone());
        }
    }

    /// Notes the mean of the streams for the drafter.
    fn keep_feature(&mut self, feature: usize) {
        let Some(drafts) = &self.model.drafts else { return };
        let (streams, hidden, count) = (self.model.config.streams, self.pass.hidden, self.count());
        let Scratch { x, streams: own, .. } = &mut *self.pass.scratch;
        // An earlier step may have had more tokens.
        let x = x[..count * streams * hidden].chunks_exact(streams * hidden);
        let features = own.features.chunks_exact_mut(drafts.entry.cols);
        let by = 1.0 / streams as f32;
        for (x, features) in x.zip(features) {
            let into = &mut features[feature * hidden..][..hidden];
            into.fill(0.0);
            for x in x.chunks_exact(hidden) {
                into.iter_mut().zip(x).for_each(|(into, x)| *into += x);
            }
            into.iter_mut().for_each(|into| *into *= by);
        }
    }

    /// Keys of the drafter, of all tokens that are left.
    pub fn draft_keys(&mut self, drafts: &DraftPart) {
        let (count, hidden) = (self.count(), self.pass.hidden);
        if count == 0 {
            return;
        }
        let Scratch { y, k, streams: own, .. } = &mut *self.pass.scratch;
        let features = &own.features[..count * drafts.entry.cols];
        let y = sized(y, count * hidden);
        self.pass.backend.matmul(features, count, &drafts.entry, y);
        self.pass.backend.rms_norm_in_place(y, &drafts.entry_norm.weight, drafts.entry_norm.eps);
        let dim = self.model.state.dim;
        for (index, block) in drafts.blocks.iter().enumerate() {
            let part = &block.attention;
            let k = sized(k, count * dim);
            self.pass.backend.matmul(y, count, &part.key, k);
            self.pass.backend.rms_norm_in_place(k, &part.key_norm.weight, part.key_norm.eps);
            self.pass.backend.turn(k, (count, 1), &own.turns[0], false);
            if self.pass.kv.layout().format == KvFormat::Fp4 {
                k.chunks_exact_mut(dim).for_each(fp4::round_window);
            }
            let ring = self.model.state.ring(self.model.layers.len() + index);
            super::attend::keep_newest(self.pass.kv, &self.windows, ring, k, dim);
        }
    }

    /// Logits of the wanted tokens; the step is done.
    pub fn finish(self) {
        let (streams, hidden) = (self.model.config.streams, self.pass.hidden);
        let Scratch { wanted, x, y, logits, streams: own, .. } = &mut *self.pass.scratch;
        let count = wanted.len();
        let StreamScratch { mixes, last, last_read, .. } = own;
        let last = sized(last, count * streams * hidden);
        let last_read = sized(last_read, count * streams);
        for (i, &token) in wanted.iter().enumerate() {
            let width = streams * hidden;
            last[i * width..][..width].copy_from_slice(&x[token * width..][..width]);
            last_read[i * streams..][..streams].copy_from_slice(&mixes.read[token * streams..][..streams]);
        }
        let norm = &self.model.ends.norm;
        if count > 0 {
            let y = sized(y, count * hidden);
            self.pass.backend.collapse(last, last_read, &norm.weight, norm.eps, y);
            let output = self.model.ends.output.as_ref().unwrap_or(&self.model.ends.embedding);
            self.pass.backend.matmul(y, count, output, sized(logits, count * output.rows));
        }
        self.end();
    }

    /// The step is done.
    pub fn end(self) {
        self.pass.end();
    }
}
