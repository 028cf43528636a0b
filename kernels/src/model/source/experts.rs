//! Experts: one tensor for each matrix of each expert, or one for all of a layer, and in gpt-oss files with gate and up
//! row by row.

use super::super::parts::{FeedForward, Linear, Mixture};
use super::super::route::Choice;
use super::{Naming, Source};
use crate::config;
use crate::error::Error;
use crate::experts::{Expert, ExpertBias};
use crate::matrix::Matrix;
use crate::op::Activation;
use crate::weights::repack;

/// The matrices of all experts of a layer.
struct Stacks {
    gate: Vec<Matrix>,
    up: Vec<Matrix>,
    down: Vec<Matrix>,
}

impl Source {
    /// Experts with a router of no bias and gates of SiLU.
    pub(in super::super) fn mixture(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &config::Mixture,
        choice: Choice,
    ) -> Result<Mixture, Error> {
        let router = self.linear(layer, ("mlp.gate", "ffn_gate_inp"), [config.count, hidden], false)?;
        let experts = self.experts(layer, hidden, config)?;
        self.count(&experts, &choice);
        Ok(Mixture { router, choice, experts, activation: Activation::Silu, shared: None })
    }

    /// Notes the experts of a layer for the facts of the model.
    pub(in super::super) fn count(&mut self, experts: &[Expert], choice: &Choice) {
        let matrices = experts.iter().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]);
        for matrix in matrices {
            self.experts.parameters += (matrix.rows * matrix.cols) as u64;
            self.experts.bytes += matrix.size() as u64;
        }
        (self.experts.count, self.experts.per_token) = (experts.len(), choice.per_token);
    }

    /// The expert that computes every token besides.
    pub(in super::super) fn shared_expert(
        &mut self,
        layer: usize,
        hidden: usize,
        width: usize,
    ) -> Result<FeedForward, Error> {
        Ok(FeedForward {
            gate: self.matrix(layer, ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"), [width, hidden])?,
            up: self.matrix(layer, ("mlp.shared_experts.up_proj", "ffn_up_shexp"), [width, hidden])?,
            down: self.matrix(layer, ("mlp.shared_experts.down_proj", "ffn_down_shexp"), [hidden, width])?,
            activation: Activation::Silu,
        })
    }

    /// What is added to each expert for the choice; GGUF files leave it out where it is zero.
    pub(in super::super) fn selection_bias(
        &mut self,
        layer: usize,
        experts: usize,
    ) -> Result<Vec<f32>, Error> {
        let name = self.tensor(layer, ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"));
        if self.naming == Naming::Gguf && !self.weights.has(&name) {
            return Ok(vec![0.0; experts]);
        }
        self.weights.vector(&name, experts)
    }

    /// Experts without biases.
    fn experts(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &config::Mixture,
    ) -> Result<Vec<Expert>, Error> {
        let config::Mixture { count, intermediate, .. } = *config;
        let fused = self.tensor(layer, ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"));
        let down = self.tensor(layer, ("mlp.experts.down_proj", "ffn_down_exps.weight"));
        let (outer, inner) = ([count, hidden, intermediate], [count, intermediate, hidden]);
        if self.weights.has(&fused) {
            let both = self.weights.stack(&fused, [count, 2 * intermediate, hidden])?;
            let part = |first: usize| both.iter().map(|both| both.part(first, intermediate)).collect();
            let (gate, up) = (part(0), part(intermediate));
            let down = self.weights.stack(&down, outer)?;
            return self.plain(Stacks { gate, up, down });
        }
        if self.naming == Naming::Gguf {
            let gate = self.weights.stack(&format!("blk.{layer}.ffn_gate_exps.weight"), inner)?;
            let up = self.weights.stack(&format!("blk.{layer}.ffn_up_exps.weight"), inner)?;
            let down = self.weights.stack(&down, outer)?;
            return self.plain(Stacks { gate, up, down });
        }
        let mut experts = Vec::new();
        for expert in 0..count {
            let mut take = |name: &str, rows: usize, cols: usize| {
                let name = format!("model.layers.{layer}.mlp.experts.{expert}.{name}.weight");
                self.weights.matrix(&name, rows, cols)
            };
            experts.push(Expert {
                gate: take("gate_proj", intermediate, hidden)?,
                up: take("up_proj", intermediate, hidden)?,
                down: take("down_proj", hidden, intermediate)?,
                bias: None,
            });
        }
        Ok(experts)
    }

    /// Experts of these matrices, which are packed if matrices are, without biases.
    fn plain(&mut self, Stacks { gate, up, down }: Stacks) -> Result<Vec<Expert>, Error> {
        let mut packed = |matrix: Matrix| self.weights.packed(&matrix);
        let mut expert = |((gate, up), down): ((Matrix, Matrix), Matrix)| {
            Ok(Expert { gate: packed(gate)?, up: packed(up)?, down: packed(down)?, bias: None })
        };
        gate.into_iter().zip(up).zip(down).map(&mut expert).collect()
    }

    /// Router and experts of gpt-oss, biases everywhere.
    pub(in super::super) fn biased_mixture(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &config::Mixture,
        (choice, activation): (Choice, Activation),
    ) -> Result<Mixture, Error> {
        let router: Linear =
            self.linear(layer, ("mlp.router", "ffn_gate_inp"), [config.count, hidden], true)?;
        let (stacks, biases) = match self.naming {
            Naming::Folder => self.interleaved(layer, hidden, config)?,
            Naming::Gguf => self.stacked(layer, hidden, config)?,
        };
        let mut experts = self.plain(stacks)?;
        for (expert, bias) in experts.iter_mut().zip(biases) {
            expert.bias = Some(bias);
        }
        self.count(&experts, &choice);
        Ok(Mixture { router, choice, experts, activation, shared: None })
    }

    /// Experts of a folder of gpt-oss: gate and up are every second row of one matrix, which is MXFP4, or else turned over.
    fn interleaved(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &config::Mixture,
    ) -> Result<(Stacks, Vec<ExpertBias>), Error> {
        let config::Mixture { count, intermediate, .. } = *config;
        let prefix = format!("model.layers.{layer}.mlp.experts");
        let mut take = |name: &str, rows: usize, cols: usize, halves: bool| {
            let name = format!("{prefix}.{name}");
            if self.weights.has(&format!("{name}_blocks")) {
                return self.weights.fp4_stack(&name, [count, rows, cols], halves);
            }
            let turned = self.weights.stack(&name, [count, cols, rows])?;
            let turned = turned.iter().map(repack::transposed);
            Ok(turned.map(|matrix| if halves { repack::halves(&matrix) } else { matrix }).collect::<Vec<_>>())
        };
        let both = take("gate_up_proj", 2 * intermediate, hidden, true)?;
        let down = take("down_proj", hidden, intermediate, false)?;
        let half = |first: usize| both.iter().map(|both| both.part(first, intermediate)).collect();
        let stacks = Stacks { gate: half(0), up: half(intermediate), down };
        let both = self.weights.vectors(&format!("{prefix}.gate_up_proj_bias"), count, 2 * intermediate)?;
        let down = self.weights.vectors(&format!("{prefix}.down_proj_bias"), count, hidden)?;
        let half = |both: &[f32], first: usize| both.iter().skip(first).step_by(2).copied().collect();
        let bias =
            |(both, down): (Vec<f32>, _)| ExpertBias { gate: half(&both, 0), up: half(&both, 1), down };
        Ok((stacks, both.into_iter().zip(down).map(bias).collect()))
    }

    /// Experts of a GGUF file of gpt-oss.
    fn stacked(
        &mut self,
        layer: usize,
        hidden: usize,
        config: &config::Mixture,
    ) -> Result<(Stacks, Vec<ExpertBias>), Error> {
        let config::Mixture { count, intermediate, .. } = *config;
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps");
        let mut take = |part: &str, rows: usize, cols: usize| {
            let weight = self.weights.stack(&format!("{}.weight", name(part)), [count, rows, cols])?;
            Ok((weight, self.weights.vectors(&format!("{}.bias", name(part)), count, rows)?))
        };
        let (gate, gates) = take("gate", intermediate, hidden)?;
        let (up, ups) = take("up", intermediate, hidden)?;
        let (down, downs) = take("down", hidden, intermediate)?;
        let parts = gates.into_iter().zip(ups).zip(downs);
        let biases = parts.map(|((gate, up), down)| ExpertBias { gate, up, down }).collect();
        Ok((Stacks { gate, up, down }, biases))
    }
}
