//! The eyes of DeepSeek-V4.1: a tower with root-mean-square norms and gates, an aligner that makes one token of three by
//! three patches, and marks that begin and end an image and each of its rows.

use super::patches::{Cut, check};
use super::tower::{Block, Patches, Tower, TowerFeedForward, TowerNorm};
use super::{ImagePlan, Pixels, Vision, rope, take};
use crate::backend::Backend;
use crate::config::DeepSeekEyes;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::model::parts::{FeedForward, Linear, Norm};
use crate::op::Activation;
use crate::weights::Weights;

/// Added to the mean square in norms of the tower; no setting says it.
const EPS: f32 = 1e-6;

/// Loaded eyes.
pub(in crate::model) struct Eyes {
    config: DeepSeekEyes,
    tower: Tower,
    norm: Norm,
    /// What makes tokens of merged patches: two products.
    aligner: [Linear; 2],
    /// Embedding of the token that begins an image.
    start: Vec<f32>,
    /// Of the one behind each row.
    newline: Vec<f32>,
    /// Of the one that ends it.
    end: Vec<f32>,
}

impl Eyes {
    /// Takes the eyes of a text model of width `hidden` out of its files; `settings` are the part `vision_config`.
    ///
    /// # Errors
    /// Any of [`Error`] about settings and tensors.
    pub(in crate::model) fn load(
        weights: &mut Weights,
        settings: &Settings<'_>,
        hidden: usize,
    ) -> Result<Eyes, Error> {
        let config = DeepSeekEyes::from_json(settings)?;
        let shape = &config.tower;
        let (width, merged) = (shape.width, shape.width * shape.merge * shape.merge);
        let patch = take::linear(weights, "vision.patch_embed.proj", [width, 3 * shape.patch * shape.patch])?;
        let mut blocks = Vec::new();
        for index in 0..shape.layers {
            let name = |part: &str| format!("vision.blocks.{index}.{part}");
            let [query, key, value] = take::thirds(weights, &name("attn.wqkv"), width)?;
            let [gate, up] = take::parts(weights, &name("mlp.w1"), [shape.intermediate, width])?;
            let down = weights.matrix(&name("mlp.w2.weight"), width, shape.intermediate)?;
            blocks.push(Block {
                before_attention: TowerNorm::Rms(take::norm(weights, &name("norm1"), width, EPS)?),
                query,
                key,
                value,
                output: take::linear(weights, &name("attn.wo"), [width, width])?,
                before_feed_forward: TowerNorm::Rms(take::norm(weights, &name("norm2"), width, EPS)?),
                feed_forward: TowerFeedForward::Gated(FeedForward {
                    gate,
                    up,
                    down,
                    activation: Activation::Silu,
                }),
            });
        }
        let tower =
            Tower { patch, blocks, heads: shape.heads, rope: rope(shape, config.tokens_max * shape.merge) };
        let norm = take::norm(weights, "vision.norm", width, EPS)?;
        let aligner = [
            take::linear(weights, "aligner.w1", [hidden, merged])?,
            take::linear(weights, "aligner.w2", [hidden, hidden])?,
        ];
        let mut mark = |name| weights.vector(name, hidden);
        let (start, newline, end) = (mark("image_start")?, mark("image_newline")?, mark("image_end")?);
        Ok(Eyes { config, tower, norm, aligner, start, newline, end })
    }

    /// Merges squares of patches to one row each, `[rows * columns, width * merge²]`: of each value first those of all
    /// patches of the square. What lies beyond the right or lower edge is zero.
    fn merge(&self, x: &[f32], (height, width): (usize, usize), (rows, columns): (usize, usize)) -> Vec<f32> {
        let (merge, len) = (self.config.tower.merge, self.tower.width());
        let square = merge * merge;
        let mut merged = vec![0.0; rows * columns * len * square];
        for (at, token) in x.chunks_exact(len).enumerate().take(height * width) {
            let (row, column) = (at / width, at % width);
            let place = row / merge * columns + column / merge;
            let within = row % merge * merge + column % merge;
            let into = merged[place * len * square..][..len * square].iter_mut();
            into.skip(within).step_by(square).zip(token).for_each(|(to, value)| *to = *value);
        }
        merged
    }
}

/// Tokens of an image of so many pixels, which are whole patches, and their rows and columns.
fn tokens(config: &DeepSeekEyes, width: f64, height: f64) -> (f64, (f64, f64)) {
    let (patch, merge) = (config.tower.patch as f64, config.tower.merge as f64);
    let (rows, columns) = ((height / patch / merge).ceil(), (width / patch / merge).ceil());
    (rows * (columns + 1.0) + 2.0, (rows, columns))
}

/// What becomes of an image.
fn layout(config: &DeepSeekEyes, width: u32, height: u32) -> Result<ImagePlan, Error> {
    if width == 0 || height == 0 {
        return Err(Error::Image(format!("of {width} x {height} pixels")));
    }
    let (mut width, mut height) = (f64::from(width), f64::from(height));
    let patch = config.tower.patch as f64;
    let cell = patch * config.tower.merge as f64;
    if let Some(ratio) = config.ratio_max {
        width = width.min(height * ratio);
    }
    if width * height < config.pixels_min {
        let factor = (config.pixels_min / (width * height)).sqrt();
        (width, height) = ((width * factor).trunc(), (height * factor).trunc());
    }
    let (mut wide, mut high) = ((width / patch).ceil() * patch, (height / patch).ceil() * patch);
    let most = config.tokens_max as f64;
    if tokens(config, wide, high).0 > most {
        // So many columns and rows fill the tokens, a newline for each row among them.
        let ratio = height / width;
        let columns = ((most - 2.0) / ratio + 0.25).sqrt() - 0.5;
        let rows = columns * ratio;
        if columns < 1.0 {
            (wide, high) = (cell, ((most - 2.0) / 2.0).floor() * cell);
        } else if rows < 1.0 {
            (wide, high) = ((most - 3.0) * cell, cell);
        } else {
            let factor = (columns.floor() * cell / width).min(rows.floor() * cell / height);
            wide = (width * factor / patch).floor() * patch;
            high = (height * factor / patch).floor() * patch;
        }
    }
    let (wide, high) = (wide.max(patch), high.max(patch));
    let (count, (rows, columns)) = tokens(config, wide, high);
    let (width, height, tokens) = (wide as u32, high as u32, count as usize);
    Ok(ImagePlan { width, height, tokens, grid: (rows as u32, columns as u32) })
}

impl Vision for Eyes {
    fn plan(&self, width: u32, height: u32) -> Result<ImagePlan, Error> {
        layout(&self.config, width, height)
    }

    fn encode(
        &self,
        plan: &ImagePlan,
        image: Pixels<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<f32>, Error> {
        check(plan, image)?;
        let patch = self.config.tower.patch;
        let (height, width) = (image.height as usize / patch, image.width as usize / patch);
        let (rows, columns) = (plan.grid.0 as usize, plan.grid.1 as usize);
        let cut = Cut { patch, frames: 1, square: 1, mean: [0.5; 3], deviation: [0.5; 3] };
        let patches: Patches = cut.run(image);
        let mut x = self.tower.run(&patches, None, backend, &mut |_, _, _| {});
        backend.rms_norm_in_place(&mut x, &self.norm.weight, self.norm.eps);
        let merged = self.merge(&x, (height, width), (rows, columns));
        let mut inner = self.aligner[0].apply(&merged, rows * columns, backend);
        backend.activate(&mut inner, Activation::Gelu);
        let tokens = self.aligner[1].apply(&inner, rows * columns, backend);
        let mut span = self.start.clone();
        for row in tokens.chunks_exact(columns * self.width()) {
            span.extend_from_slice(row);
            span.extend_from_slice(&self.newline);
        }
        span.extend_from_slice(&self.end);
        Ok(span)
    }

    fn width(&self) -> usize {
        self.start.len()
    }
}

#[cfg(test)]
mod tests;
