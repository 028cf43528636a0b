//! Weights of latent attention, brought into the form that computes in the space of the latent.

use super::super::parts::{LatentPart, LatentQuery};
use super::{Naming, Source};
use crate::config::DeepSeek;
use crate::error::Error;
use crate::matrix::Matrix;
use crate::weights::repack;

impl Source {
    /// Latent attention of a layer.
    pub(in super::super) fn latent(&mut self, layer: usize, config: &DeepSeek) -> Result<LatentPart, Error> {
        let (shape, rank) = (&config.shape, config.rank);
        let (hidden, eps) = (shape.hidden, shape.eps);
        let queries = shape.heads * shape.head_dim;
        let query = match config.query_rank {
            None => {
                LatentQuery::Direct(self.matrix(layer, ("self_attn.q_proj", "attn_q"), [queries, hidden])?)
            }
            Some(rank) => LatentQuery::Ranked {
                down: self.matrix(layer, ("self_attn.q_a_proj", "attn_q_a"), [rank, hidden])?,
                norm: self.layer_norm(layer, ("self_attn.q_a_layernorm", "attn_q_a_norm"), rank, eps)?,
                up: self.matrix(layer, ("self_attn.q_b_proj", "attn_q_b"), [queries, rank])?,
            },
        };
        let key_value = ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa");
        let key_value = self.matrix(layer, key_value, [rank + config.turning, hidden])?;
        let norm = self.layer_norm(layer, ("self_attn.kv_a_layernorm", "attn_kv_a_norm"), rank, eps)?;
        let (into_latent, out_of_latent) = self.latent_heads(layer, config)?;
        let mut packed = |heads: Vec<Matrix>| {
            heads.iter().map(|head| self.weights.packed(head)).collect::<Result<Vec<_>, Error>>()
        };
        let (into_latent, out_of_latent) = (packed(into_latent)?, packed(out_of_latent)?);
        let output = ("self_attn.o_proj", "attn_output");
        let output = self.matrix(layer, output, [hidden, shape.heads * config.value_dim])?;
        let scale = config.scale;
        Ok(LatentPart { query, key_value, norm, into_latent, out_of_latent, output, scale })
    }

    /// For each head, the matrices into the latent and out of it, as they are stored. Later GGUF files hold them so; elsewhere they are the
    /// rows of one matrix, those of keys to be turned over.
    fn latent_heads(&mut self, layer: usize, config: &DeepSeek) -> Result<(Vec<Matrix>, Vec<Matrix>), Error> {
        let (heads, rank, value_dim) = (config.shape.heads, config.rank, config.value_dim);
        let still = config.shape.head_dim - config.turning;
        let split = format!("blk.{layer}.attn_k_b.weight");
        if self.naming == Naming::Gguf && self.weights.has(&split) {
            let into_latent = self.weights.stack(&split, [heads, rank, still])?;
            let name = format!("blk.{layer}.attn_v_b.weight");
            return Ok((into_latent, self.weights.stack(&name, [heads, value_dim, rank])?));
        }
        let each = still + value_dim;
        let name = self.weight(layer, ("self_attn.kv_b_proj", "attn_kv_b"));
        let both = self.weights.stored(&name, heads * each, rank)?;
        let into = |head: usize| repack::transposed(&both.part(head * each, still));
        let out = |head: usize| both.part(head * each + still, value_dim);
        Ok(((0..heads).map(into).collect(), (0..heads).map(out).collect()))
    }
}
