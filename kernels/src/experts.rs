//! Mixture of experts: many feed-forward layers, of which a few compute each token. Tokens are gathered by expert, so that
//! each expert's weights are read once a step, and what they come to is scattered back in an order that depends on the
//! token alone.

use crate::backend::Backend;
use crate::matrix::Matrix;
use crate::op::Activation;

/// One expert: a gated feed-forward layer.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `[intermediate, hidden]`.
    pub gate: Matrix,
    /// `[intermediate, hidden]`.
    pub up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
    /// What is added to the three products, where the family does so.
    pub bias: Option<ExpertBias>,
}

/// What is added to the products of an expert.
#[derive(Clone, Debug)]
pub struct ExpertBias {
    /// `[intermediate]`.
    pub gate: Vec<f32>,
    /// `[intermediate]`.
    pub up: Vec<f32>,
    /// `[hidden]`.
    pub down: Vec<f32>,
}

/// Which experts compute each token, and with which weight.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// Expert, token and weight; in order of the experts, then of the tokens, once [`Routing::arrange`] was called.
    chosen: Vec<(u32, u32, f32)>,
    /// Tokens so far.
    tokens: u32,
}

impl Routing {
    /// No tokens.
    pub fn new() -> Routing {
        Routing::default()
    }

    /// Forgets all tokens, keeps the memory.
    pub fn clear(&mut self) {
        self.chosen.clear();
        self.tokens = 0;
    }

    /// The next token: its experts, each once, with their weights.
    pub fn push(&mut self, experts: impl IntoIterator<Item = (u32, f32)>) {
        let token = self.tokens;
        self.chosen.extend(experts.into_iter().map(|(expert, weight)| (expert, token, weight)));
        self.tokens += 1;
    }

    /// Puts the choices into the order in which they are computed. No two are equal, so the order is one.
    pub fn arrange(&mut self) {
        self.chosen.sort_unstable_by_key(|&(expert, token, _)| (expert, token));
    }

    /// Expert, token and weight of all choices.
    #[cfg(test)]
    pub(crate) fn chosen(&self) -> &[(u32, u32, f32)] {
        &self.chosen
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.chosen.capacity() * size_of::<(u32, u32, f32)>()
    }
}

/// What experts need besides their data.
#[derive(Copy, Clone, Debug)]
pub struct Experts<'a> {
    /// All of the layer, of one shape.
    pub experts: &'a [Expert],
    /// Of their gates.
    pub activation: Activation,
    /// Arranged.
    pub routing: &'a Routing,
}

/// Memory for the tokens of one expert; grows to the largest step once.
#[derive(Clone, Debug, Default)]
pub struct ExpertBuffers {
    /// `[tokens, hidden]`: rows gathered.
    x: Vec<f32>,
    /// `[tokens, intermediate]`.
    gate: Vec<f32>,
    /// `[tokens, intermediate]`.
    up: Vec<f32>,
    /// `[tokens, hidden]`: rows to scatter.
    y: Vec<f32>,
}

impl ExpertBuffers {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let floats = [&self.x, &self.gate, &self.up, &self.y];
        floats.iter().map(|buffer| buffer.capacity() * size_of::<f32>()).sum()
    }

    /// Room for as many rows as one expert can get: all tokens.
    fn size(&mut self, tokens: usize, hidden: usize, intermediate: usize) {
        for (buffer, width) in [
            (&mut self.x, hidden),
            (&mut self.gate, intermediate),
            (&mut self.up, intermediate),
            (&mut self.y, hidden),
        ] {
            if buffer.len() < tokens * width {
                buffer.resize(tokens * width, 0.0);
            }
        }
    }
}

/// Computes the experts by the other operations of a backend.
pub(crate) fn run<B: Backend + ?Sized>(
    backend: &mut B,
    args: &Experts<'_>,
    x: &[f32],
    buffers: &mut ExpertBuffers,
    out: &mut [f32],
) {
    let (hidden, intermediate) = check(args, x, out);
    let tokens = args.routing.tokens as usize;
    buffers.size(tokens, hidden, intermediate);
    let ExpertBuffers { x: gathered, gate, up, y } = buffers;
    out.fill(0.0);
    for group in args.routing.chosen.chunk_by(|a, b| a.0 == b.0) {
        let (expert, rows) = (&args.experts[group[0].0 as usize], group.len());
        let gathered = &mut gathered[..rows * hidden];
        for (row, &(_, token, _)) in gathered.chunks_exact_mut(hidden).zip(group) {
            row.copy_from_slice(&x[token as usize * hidden..][..hidden]);
        }
        let (gate, up) = (&mut gate[..rows * intermediate], &mut up[..rows * intermediate]);
        backend.matmul_many(gathered, rows, &mut [(&expert.gate, &mut *gate), (&expert.up, &mut *up)]);
        if let Some(bias) = &expert.bias {
            backend.add_bias(gate, &bias.gate);
            backend.add_bias(up, &bias.up);
        }
        backend.gated(gate, up, args.activation);
        let y = &mut y[..rows * hidden];
        backend.matmul(gate, rows, &expert.down, y);
        if let Some(bias) = &expert.bias {
            backend.add_bias(y, &bias.down);
        }
        for (y, &(_, token, weight)) in y.chunks_exact(hidden).zip(group) {
            let out = &mut out[token as usize * hidden..][..hidden];
            out.iter_mut().zip(y).for_each(|(out, y)| *out += weight * y);
        }
    }
}

/// Checks the arguments of `experts`; gives the widths of a token and of an expert.
fn check(args: &Experts<'_>, x: &[f32], out: &[f32]) -> (usize, usize) {
    let Some(first) = args.experts.first() else { panic!("experts: none") };
    let (hidden, intermediate) = (first.down.rows, first.gate.rows);
    for expert in args.experts {
        for (weight, sizes) in [
            (&expert.gate, (intermediate, hidden)),
            (&expert.up, (intermediate, hidden)),
            (&expert.down, (hidden, intermediate)),
        ] {
            assert_eq!((weight.rows, weight.cols), sizes, "experts: weights of one shape");
        }
        if let Some(bias) = &expert.bias {
            let sizes = (bias.gate.len(), bias.up.len(), bias.down.len());
            assert_eq!(sizes, (intermediate, intermediate, hidden), "experts: bias");
        }
    }
    let tokens = args.routing.tokens as usize;
    assert_eq!(x.len(), tokens * hidden, "experts: x, for {tokens} tokens");
    assert_eq!(out.len(), x.len(), "experts: out");
    let (chosen, count) = (&args.routing.chosen, args.experts.len());
    assert!(chosen.is_sorted_by_key(|&(expert, token, _)| (expert, token)), "experts: routing not arranged");
    assert!(chosen.last().is_none_or(|last| (last.0 as usize) < count), "experts: {count} are there");
    (hidden, intermediate)
}
