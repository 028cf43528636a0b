//! One step on its way through the layers: checked once at the start, then the moves that families are written in. The
//! residual stream is `x`; `y` is what a part of a layer reads and leaves.

use super::parts::{AttentionPart, Ends, FeedForward, Mixture, Norm};
use super::rings::{self, Rows, Tokens};
use super::scratch::{MixtureScratch, Scratch, sized};
use super::{Facts, Local, Row, Span, Want};
use crate::backend::Backend;
use crate::error::Error;
use crate::experts::Experts;
use crate::kv::{KvLayout, KvMemory, Rings};
use crate::op::{Attention, AttentionRow, RopeAxes, RopeTable};
use crate::reference;

/// A step in progress.
pub(super) struct Pass<'a> {
    /// The step's rows as attention takes them.
    pub(super) rows: Vec<AttentionRow<'a>>,
    /// What each of them says of its state.
    pub(super) locals: Vec<Local<'a>>,
    /// Where their positions lie in rings, as [`rings::tables`] says it.
    tables: Vec<u32>,
    /// Layers with a ring that the step has passed.
    ringed: usize,
    pub(super) kv: &'a mut KvMemory,
    pub(super) scratch: &'a mut Scratch,
    pub(super) backend: &'a mut dyn Backend,
    /// How heads turn where tokens have a place on three axes; none: by position.
    pub(super) axes: Option<&'a RopeAxes>,
    /// Embeddings in the place of those that the ids have, and the first token of each among those of all rows.
    pub(super) spans: Vec<(usize, Span<'a>)>,
    /// Width of the residual stream; known when the tokens are embedded.
    pub(super) hidden: usize,
}

impl<'a> Pass<'a> {
    /// Checks a step against the model and the memory, and lays its rows out.
    ///
    /// # Errors
    /// [`Error::Step`], [`Error::KvLayout`].
    pub fn begin(
        facts: &Facts,
        step: &[Row<'a>],
        kv: &'a mut KvMemory,
        scratch: &'a mut Scratch,
        backend: &'a mut dyn Backend,
    ) -> Result<Pass<'a>, Error> {
        check(facts, step, kv)?;
        let mut rows = recycle(std::mem::take(&mut scratch.rows));
        scratch.vocab = facts.vocab;
        scratch.tokens.clear();
        scratch.positions.clear();
        scratch.turns.clear();
        let mut spans = Vec::new();
        scratch.wanted.clear();
        scratch.mixture.marked.clear();
        for row in step {
            let first = scratch.tokens.len();
            let end = first + row.tokens.len();
            scratch.tokens.extend_from_slice(row.tokens);
            scratch.positions.extend(row.start..row.start + row.tokens.len() as u32);
            let own = scratch.positions[first..].iter().map(|&position| [position; 3]);
            if row.turns.is_empty() {
                scratch.turns.extend(own)
            } else {
                scratch.turns.extend(row.turns)
            }
            spans.extend(row.spans.iter().map(|&span| (first + span.first as usize, span)));
            match row.logits {
                Want::Nothing => {}
                Want::Last => scratch.wanted.push(end - 1),
                Want::At(places) => scratch.wanted.extend(places.iter().map(|&place| first + place as usize)),
                Want::All => scratch.wanted.extend(first..end),
            }
            rows.push(AttentionRow {
                start: row.start,
                tokens: row.tokens.len(),
                from: 0,
                blocks: row.blocks,
            });
        }
        let locals: Vec<Local<'a>> = step.iter().map(|row| row.local).collect();
        let mut tables = std::mem::take(&mut scratch.tables);
        rings::tables(kv.layout(), rows.iter().zip(&locals), &mut tables);
        Ok(Pass { rows, locals, tables, ringed: 0, kv, scratch, backend, axes: None, spans, hidden: 0 })
    }

    /// `x` = the embeddings of the tokens, times `factor`.
    pub fn embed(&mut self, ends: &Ends, factor: f32) {
        self.hidden = ends.embedding.cols;
        let tokens = &self.scratch.tokens;
        let x = sized(&mut self.scratch.x, tokens.len() * self.hidden);
        self.backend.embed(&ends.embedding, tokens, x);
        if factor != 1.0 {
            self.backend.scale(x, factor);
        }
        for &(first, span) in &self.spans {
            let rows = span.embeddings.chunks_exact(span.width);
            let x = x[first * self.hidden..].chunks_exact_mut(self.hidden);
            x.zip(rows).for_each(|(x, row)| x.copy_from_slice(&row[..self.hidden]));
        }
    }

    /// `x` += what an image adds to its tokens behind layer `layer`, if it goes so deep.
    pub fn deepen(&mut self, layer: usize) {
        let (hidden, start) = (self.hidden, (layer + 1) * self.hidden);
        for &(first, span) in self.spans.iter().filter(|(_, span)| span.width > start) {
            let rows = span.embeddings.chunks_exact(span.width);
            let x = self.scratch.x[first * hidden..].chunks_exact_mut(hidden);
            x.zip(rows).for_each(|(x, row)| reference::add(x, &row[start..][..hidden]));
        }
    }

    /// `y` = the norm of `x`: a part of a layer begins.
    pub fn enter(&mut self, norm: &Norm) {
        let len = self.scratch.tokens.len() * self.hidden;
        let Scratch { x, y, .. } = &mut *self.scratch;
        self.backend.rms_norm(&x[..len], &norm.weight, norm.eps, sized(y, len));
    }

    /// `x` += `y`, normed where the family does so: a part of a layer ends.
    pub fn leave(&mut self, norm: Option<&Norm>) {
        let len = self.scratch.tokens.len() * self.hidden;
        let Scratch { x, y, .. } = &mut *self.scratch;
        if let Some(norm) = norm {
            self.backend.rms_norm_in_place(&mut y[..len], &norm.weight, norm.eps);
        }
        self.backend.add(&mut x[..len], &y[..len]);
    }

    /// `y` = attention of layer `layer` over `y` and all tokens before it. Layers come in their order.
    pub fn attend(&mut self, layer: usize, part: &AttentionPart, rope: &RopeTable) {
        let Scratch { tokens, positions, turns, y, q, k, v, attended, .. } = &mut *self.scratch;
        let (count, kv_heads) = (tokens.len(), self.kv.layout().kv_heads);
        let q = sized(q, count * part.query.weight.rows);
        let k = sized(k, count * part.key.weight.rows);
        let v = sized(v, count * part.value.weight.rows);
        let y = &mut y[..count * self.hidden];
        self.backend.matmul_many(
            y,
            count,
            &mut [(&part.query.weight, &mut *q), (&part.key.weight, &mut *k), (&part.value.weight, &mut *v)],
        );
        for (linear, out) in [(&part.query, &mut *q), (&part.key, &mut *k), (&part.value, &mut *v)] {
            if let Some(bias) = &linear.bias {
                self.backend.add_bias(out, bias);
            }
        }
        if let Some((query, key)) = &part.norms {
            self.backend.rms_norm_in_place(q, &query.weight, query.eps);
            self.backend.rms_norm_in_place(k, &key.weight, key.eps);
        }
        if let Some(axes) = self.axes {
            self.backend.rope_axes(q, part.heads, turns, axes);
            self.backend.rope_axes(k, kv_heads, turns, axes);
        } else {
            self.backend.rope(q, part.heads, positions, rope, part.pairing);
            self.backend.rope(k, kv_heads, positions, rope, part.pairing);
        }
        let &AttentionPart { heads, scale, window, ref sinks, .. } = part;
        let args = Attention { layer, heads, scale, window, sinks: sinks.as_deref(), rows: &self.rows };
        let attended = sized(attended, q.len());
        if window.is_some() && self.kv.layout().rings != Rings::NONE {
            let step = Rows { rows: &self.rows, locals: &self.locals, tables: &self.tables };
            let args = Attention { layer: self.ringed, ..args };
            rings::attend(self.kv, self.backend, step, args, Tokens { q, k, v, out: attended });
            self.ringed += 1;
        } else {
            let args = Attention { layer: layer - self.ringed, ..args };
            store(self.kv, args.layer, written(&self.rows, &self.locals), (k, v));
            self.backend.attention(&args, q, self.kv, attended);
        }
        self.backend.matmul(attended, count, &part.output.weight, y);
        if let Some(bias) = &part.output.bias {
            self.backend.add_bias(y, bias);
        }
    }

    /// `y` = the feed-forward layer of `y`.
    pub fn feed_forward(&mut self, part: &FeedForward) {
        let Scratch { tokens, y, gate, up, .. } = &mut *self.scratch;
        let count = tokens.len();
        let gate = sized(gate, count * part.gate.rows);
        let up = sized(up, count * part.up.rows);
        let y = &mut y[..count * self.hidden];
        self.backend.matmul_many(y, count, &mut [(&part.gate, &mut *gate), (&part.up, &mut *up)]);
        self.backend.gated(gate, up, part.activation);
        self.backend.matmul(gate, count, &part.down, y);
    }

    /// `y` = the mixture of experts of `y`.
    pub fn mixture(&mut self, part: &Mixture) {
        let Scratch { tokens, y, mixture, .. } = &mut *self.scratch;
        let MixtureScratch { logits, marked, routing, picker, buffers, out } = mixture;
        let (count, experts) = (tokens.len(), part.router.weight.rows);
        let (y, out) = (&y[..count * self.hidden], sized(out, count * self.hidden));
        let logits = sized(logits, count * experts);
        self.backend.matmul(y, count, &part.router.weight, logits);
        if let Some(bias) = &part.router.bias {
            self.backend.add_bias(logits, bias);
        }
        part.choice.route((logits, experts), marked, picker, routing);
        let args = Experts { experts: &part.experts, activation: part.activation, routing };
        self.backend.experts(&args, y, buffers, out);
        let Some(shared) = &part.shared else {
            std::mem::swap(&mut self.scratch.y, &mut self.scratch.mixture.out);
            return;
        };
        self.feed_forward(shared);
        let len = count * self.hidden;
        self.backend.add(&mut self.scratch.y[..len], &self.scratch.mixture.out[..len]);
    }

    /// Logits of the wanted tokens; the step is done.
    pub fn finish(self, ends: &Ends) {
        let Scratch { wanted, x, y, logits, .. } = &mut *self.scratch;
        if wanted.is_empty() {
            return self.end();
        }
        let y = sized(y, wanted.len() * self.hidden);
        for (y, &token) in y.chunks_exact_mut(self.hidden).zip(&*wanted) {
            y.copy_from_slice(&x[token * self.hidden..][..self.hidden]);
        }
        self.backend.rms_norm_in_place(y, &ends.norm.weight, ends.norm.eps);
        let output = ends.output.as_ref().unwrap_or(&ends.embedding);
        let logits = sized(logits, wanted.len() * output.rows);
        self.backend.matmul(y, wanted.len(), output, logits);
        self.end();
    }

    /// The step is done, its logits are there.
    pub fn end(self) {
        self.scratch.rows = recycle(self.rows);
        self.scratch.tables = self.tables;
    }
}

/// Rows, and up to where the blocks of each are written already.
pub(super) fn written<'a>(
    rows: &'a [AttentionRow<'a>],
    locals: &'a [Local<'a>],
) -> impl Iterator<Item = (&'a AttentionRow<'a>, u32)> {
    rows.iter().zip(locals.iter().map(|local| local.written))
}

/// Writes the keys and values of rows to their blocks, but for the positions below the one that stands beside a row.
pub(super) fn store<'a>(
    kv: &mut KvMemory,
    layer: usize,
    rows: impl Iterator<Item = (&'a AttentionRow<'a>, u32)>,
    (k, v): (&[f32], &[f32]),
) {
    let layout = kv.layout();
    let (keys, values) = (layout.kv_heads * layout.key_dim, layout.kv_heads * layout.value_dim);
    let mut tokens = k.chunks_exact(keys).zip(v.chunks_exact(values));
    for (row, written) in rows {
        for (position, (k, v)) in (row.start..).zip(tokens.by_ref().take(row.tokens)) {
            if position >= written {
                let (position, size) = (position as usize, layout.block_size);
                kv.write(layer, row.blocks[position / size], position % size, k, v);
            }
        }
    }
}

/// An empty list with the memory of an old one, free of what the old one borrowed.
fn recycle<'b>(mut rows: Vec<AttentionRow<'_>>) -> Vec<AttentionRow<'b>> {
    rows.clear();
    rows.into_iter().map(|row| AttentionRow { blocks: &[], ..row }).collect()
}

/// Refuses a step that does not fit the model or the memory.
fn check(facts: &Facts, step: &[Row<'_>], kv: &KvMemory) -> Result<(), Error> {
    let layout = kv.layout();
    let mut needed = KvLayout { format: layout.format, ..facts.kv_layout(layout.block_size) };
    if layout.rings != Rings::NONE {
        needed = needed.with_rings(facts.rings);
    }
    if layout != needed {
        return Err(Error::KvLayout { found: format!("{layout:?}"), needed: format!("{needed:?}") });
    }
    for (index, row) in step.iter().enumerate() {
        if let Some(problem) = problem(facts, row, kv) {
            return Err(Error::Step { row: index, problem });
        }
    }
    Ok(())
}

/// What is wrong with a row, if anything is.
fn problem(facts: &Facts, row: &Row<'_>, kv: &KvMemory) -> Option<String> {
    let end = row.start as usize + row.tokens.len();
    if end > facts.context as usize {
        return Some(format!("ends at position {end}, the model was made for {}", facts.context));
    }
    let Local { slot, valid_from, .. } = row.local;
    if kv.layout().bytes_per_slot() > 0 && slot as usize >= kv.slots() {
        return Some(format!("names state slot {slot}, the memory has {}", kv.slots()));
    }
    if valid_from > row.start {
        return Some(format!("starts at {}, its state is valid from {valid_from} on", row.start));
    }
    let needed = end.div_ceil(kv.layout().block_size);
    if row.blocks.len() < needed {
        return Some(format!("has {} blocks, position {end} needs {needed}", row.blocks.len()));
    }
    if let Some(block) = row.blocks[..needed].iter().find(|&&block| block as usize >= kv.blocks()) {
        return Some(format!("names block {block}, the memory has {}", kv.blocks()));
    }
    if let Some(token) = row.tokens.iter().find(|&&token| token as usize >= facts.vocab) {
        return Some(format!("holds token {token}, the vocabulary has {}", facts.vocab));
    }
    let fits = match row.logits {
        Want::Nothing | Want::All => true,
        Want::Last => !row.tokens.is_empty(),
        Want::At(places) => {
            places.is_sorted_by(|a, b| a < b)
                && places.last().is_none_or(|&last| (last as usize) < row.tokens.len())
        }
    };
    let problem = (!fits).then(|| format!("wants logits {:?} of {} tokens", row.logits, row.tokens.len()));
    problem.or_else(|| unseen(facts, row))
}

/// What is wrong with the images of a row, if anything is.
fn unseen(facts: &Facts, row: &Row<'_>) -> Option<String> {
    let (count, hidden) = (row.tokens.len(), facts.hidden);
    let mut end = 0;
    for span in row.spans {
        let Span { first, width, embeddings } = *span;
        let (first, tokens) = (first as usize, embeddings.len() / width.max(1));
        let whole = width > 0 && width.is_multiple_of(hidden) && embeddings.len().is_multiple_of(width);
        if !whole || first < end || tokens > count.saturating_sub(first) {
            let values = embeddings.len();
            return Some(format!("has {values} values of an image, {width} a token, from token {first} on"));
        }
        if row.tokens[first..first + tokens].iter().any(|&token| Some(token) != facts.image_token) {
            return Some(format!(
                "has an image at tokens {first} to {} that are none of one",
                first + tokens
            ));
        }
        end = first + tokens;
    }
    if !row.turns.is_empty() && row.turns.len() != count {
        return Some(format!("turns by {} places, has {count} tokens", row.turns.len()));
    }
    let far = row.turns.iter().find(|place| place.iter().any(|&p| p >= facts.context))?;
    Some(format!("turns by {far:?}, the model was made for {} positions", facts.context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_memory() {
        let row = AttentionRow { start: 0, tokens: 1, from: 0, blocks: &[0] };
        let rows = vec![row; 9];
        let place = rows.as_ptr().addr();
        let rows: Vec<AttentionRow<'static>> = recycle(rows);
        assert!(rows.is_empty() && rows.capacity() >= 9);
        assert_eq!(rows.as_ptr().addr(), place);
    }
}
