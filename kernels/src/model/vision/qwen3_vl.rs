//! The eyes of Qwen 3 VL: a tower with layer norms and a table of positions that is stretched over the image, mergers that
//! make one token of two by two patches, and *deep* embeddings: what some blocks of the tower see goes to the first
//! layers of the text model.

use super::patches::{Cut, check};
use super::tower::{Block, LayerNorm, Tap, Tower, TowerFeedForward, TowerNorm};
use super::{ImagePlan, Pixels, Vision, rope, take};
use crate::backend::Backend;
use crate::config::QwenEyes;
use crate::error::Error;
use crate::matrix::Matrix;
use crate::model::parts::Linear;
use crate::op::Activation;
use crate::weights::Weights;

/// Added to variances; no setting says it.
const EPS: f32 = 1e-6;
/// An image may be so many times as long as it is wide.
const RATIO_MAX: f64 = 200.0;

/// Loaded eyes.
pub(in crate::model) struct Eyes {
    config: QwenEyes,
    tower: Tower,
    /// `[side * side, width]`: what is added to patches, by their place in the image.
    positions: Matrix,
    merger: Merger,
    /// Of the blocks whose tokens go deeper.
    deep: Vec<Merger>,
}

/// Makes tokens of the text model out of merged patches.
struct Merger {
    /// Of single patches or of merged ones, as its width says.
    norm: LayerNorm,
    /// Two products.
    inner: Linear,
    outer: Linear,
}

impl Merger {
    /// Takes a merger out of a model's files.
    fn load(weights: &mut Weights, name: &str, config: &QwenEyes, normed: usize) -> Result<Merger, Error> {
        let merged = config.tower.width * config.tower.merge * config.tower.merge;
        Ok(Merger {
            norm: take::layer_norm(weights, &format!("{name}.norm"), normed, EPS)?,
            inner: take::linear(weights, &format!("{name}.linear_fc1"), [merged, merged])?,
            outer: take::linear(weights, &format!("{name}.linear_fc2"), [config.out, merged])?,
        })
    }

    /// The tokens of patches, which come square by square.
    fn run(&self, patches: &[f32], backend: &mut dyn Backend) -> Vec<f32> {
        let mut merged = patches.to_vec();
        self.norm.apply(&mut merged, backend);
        let count = merged.len() / self.inner.weight.cols;
        let mut inner = self.inner.apply(&merged, count, backend);
        backend.activate(&mut inner, Activation::Gelu);
        self.outer.apply(&inner, count, backend)
    }
}

impl Eyes {
    /// Takes the eyes out of a model's files.
    ///
    /// # Errors
    /// Any of [`Error`] about tensors.
    pub(in crate::model) fn load(weights: &mut Weights, config: QwenEyes) -> Result<Eyes, Error> {
        let shape = &config.tower;
        let (width, root) = (shape.width, "model.visual");
        let kernel = [width, 3, config.frames, shape.patch, shape.patch];
        let patch = take::convolution(weights, &format!("{root}.patch_embed.proj"), &kernel)?;
        let mut blocks = Vec::new();
        for index in 0..shape.layers {
            let name = |part: &str| format!("{root}.blocks.{index}.{part}");
            let [query, key, value] = take::thirds(weights, &name("attn.qkv"), width)?;
            let wide = shape.intermediate;
            blocks.push(Block {
                before_attention: TowerNorm::Layer(take::layer_norm(weights, &name("norm1"), width, EPS)?),
                query,
                key,
                value,
                output: take::linear(weights, &name("attn.proj"), [width, width])?,
                before_feed_forward: TowerNorm::Layer(take::layer_norm(weights, &name("norm2"), width, EPS)?),
                feed_forward: TowerFeedForward::Plain {
                    up: take::linear(weights, &name("mlp.linear_fc1"), [wide, width])?,
                    activation: Activation::GeluTanh,
                    down: take::linear(weights, &name("mlp.linear_fc2"), [width, wide])?,
                },
            });
        }
        let most = config.images.pixels_max;
        let side = (most / (shape.patch * shape.merge)).max((RATIO_MAX * most as f64).sqrt() as usize);
        let tower = Tower {
            patch,
            blocks,
            heads: shape.heads,
            rope: rope(shape, side / shape.patch + 2 * shape.merge),
        };
        let table = format!("{root}.pos_embed.weight");
        let positions = weights.stored(&table, config.side * config.side, width)?;
        let merger = Merger::load(weights, &format!("{root}.merger"), &config, width)?;
        let merged = width * shape.merge * shape.merge;
        let deep = (0..config.deep.len())
            .map(|at| Merger::load(weights, &format!("{root}.deepstack_merger_list.{at}"), &config, merged))
            .collect::<Result<_, _>>()?;
        Ok(Eyes { config, tower, positions, merger, deep })
    }

    /// How an image is cut.
    fn cut(&self) -> Cut {
        let (tower, images) = (&self.config.tower, &self.config.images);
        let (mean, deviation) = (images.mean, images.deviation);
        Cut { patch: tower.patch, frames: self.config.frames, square: tower.merge, mean, deviation }
    }

    /// What is added to the patches at these places: the table of positions, stretched over an image of so many rows and
    /// columns of patches, between whose entries it is linear.
    fn stretched(&self, places: &[[u32; 3]], (rows, columns): (usize, usize)) -> Vec<f32> {
        let (side, width) = (self.config.side, self.tower.width());
        let table = self.positions.to_f32();
        // The entry before a place, the one behind it, and the share of that.
        let between = |place: u32, count: usize| {
            let at = place as usize * (side - 1);
            let steps = (count - 1).max(1);
            let (first, rest) = (at / steps, at % steps);
            (first, (first + 1).min(side - 1), rest as f32 / steps as f32)
        };
        let mut out = Vec::with_capacity(places.len() * width);
        for &[_, row, column] in places {
            let (top, bottom, down) = between(row, rows);
            let (left, right, across) = between(column, columns);
            let entry = |row: usize, column: usize| &table[(row * side + column) * width..][..width];
            let corners = [entry(top, left), entry(top, right), entry(bottom, left), entry(bottom, right)];
            let shares =
                [(1.0 - down) * (1.0 - across), (1.0 - down) * across, down * (1.0 - across), down * across];
            let value =
                |i: usize| corners.iter().zip(shares).map(|(corner, share)| corner[i] * share).sum::<f32>();
            out.extend((0..width).map(value));
        }
        out
    }

    /// [`Vision::encode`], while `tap` looks on.
    fn see(&self, image: Pixels<'_>, backend: &mut dyn Backend, tap: &mut Tap<'_>) -> Vec<f32> {
        let patches = self.cut().run(image);
        let side = self.config.tower.patch;
        let grid = (image.height as usize / side, image.width as usize / side);
        let start = self.stretched(&patches.places, grid);
        let mut parts = vec![Vec::new()];
        let x = self.tower.run(&patches, Some(&start), backend, &mut |block, x, backend| {
            if let Ok(level) = self.config.deep.binary_search(&block) {
                parts.push(self.deep[level].run(x, backend));
            }
            tap(block, x, backend);
        });
        parts[0] = self.merger.run(&x, backend);
        let out = self.config.out;
        let tokens = parts[0].len() / out;
        (0..tokens)
            .flat_map(|token| parts.iter().flat_map(move |part| &part[token * out..][..out]))
            .copied()
            .collect()
    }
}

impl Vision for Eyes {
    fn plan(&self, width: u32, height: u32) -> Result<ImagePlan, Error> {
        let (wide, high) = (f64::from(width), f64::from(height));
        if width == 0 || height == 0 || wide.max(high) > RATIO_MAX * wide.min(high) {
            return Err(Error::Image(format!(
                "of {width} x {height} pixels: one side may be {RATIO_MAX} times the other"
            )));
        }
        let cell = (self.config.tower.patch * self.config.tower.merge) as f64;
        let (least, most) = (self.config.images.pixels_min as f64, self.config.images.pixels_max as f64);
        let mut sides = [wide, high].map(|side| (side / cell).round_ties_even() * cell);
        if sides[0] * sides[1] > most {
            let factor = (wide * high / most).sqrt();
            sides = [wide, high].map(|side| ((side / factor / cell).floor() * cell).max(cell));
        } else if sides[0] * sides[1] < least {
            let factor = (least / (wide * high)).sqrt();
            sides = [wide, high].map(|side| (side * factor / cell).ceil() * cell);
        }
        let [width, height] = sides.map(|side| side as u32);
        let grid = (height / cell as u32, width / cell as u32);
        Ok(ImagePlan { width, height, tokens: grid.0 as usize * grid.1 as usize, grid })
    }

    fn encode(
        &self,
        plan: &ImagePlan,
        image: Pixels<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<f32>, Error> {
        check(plan, image)?;
        Ok(self.see(image, backend, &mut |_, _, _| {}))
    }

    fn width(&self) -> usize {
        self.config.out * (1 + self.deep.len())
    }

    fn turns(&self, spans: &[(u32, ImagePlan)], first: u32, count: usize) -> Vec<[u32; 3]> {
        let turn = |position: u32| {
            // An image takes as many positions as its longer side has tokens.
            let mut saved = 0;
            for &(start, plan) in spans.iter().take_while(|(start, _)| *start <= position) {
                let ((rows, columns), within) = (plan.grid, position - start);
                if within < rows * columns {
                    let base = start - saved;
                    return [base, base + within / columns, base + within % columns];
                }
                saved += rows * columns - rows.max(columns);
            }
            [position - saved; 3]
        };
        (first..first + count as u32).map(turn).collect()
    }
}

#[cfg(test)]
mod tests;
