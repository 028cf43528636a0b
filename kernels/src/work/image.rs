//! What looking at an image asks: a tower of layers over patches that all see each other, and what makes tokens of them.

use super::Work;
use crate::config::{DeepSeekEyes, QwenEyes, TowerShape};
use crate::model::ImagePlan;

/// What counting needs to know of a model's eyes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImageWork {
    /// Sides of a patch in pixels.
    patch: u32,
    /// Weights that a patch is multiplied with.
    per_patch: f64,
    /// Weights that a square of merged patches is multiplied with.
    per_square: f64,
    /// Multiply-adds of two patches that see each other, in all layers.
    pair: f64,
}

impl ImageWork {
    pub(crate) fn of_qwen(eyes: &QwenEyes) -> ImageWork {
        let tower = &eyes.tower;
        let merged = (tower.width * tower.merge * tower.merge) as f64;
        let per_square = merged * (merged + eyes.out as f64) * (1 + eyes.deep.len()) as f64;
        ImageWork::of_tower(tower, eyes.frames, 2, per_square)
    }

    pub(crate) fn of_deepseek(eyes: &DeepSeekEyes, hidden: usize) -> ImageWork {
        let tower = &eyes.tower;
        let merged = tower.width * tower.merge * tower.merge;
        ImageWork::of_tower(tower, 1, 3, (hidden * (merged + hidden)) as f64)
    }

    /// With so many pictures in a patch, and so many matrices in a feed-forward layer.
    fn of_tower(tower: &TowerShape, frames: usize, matrices: usize, per_square: f64) -> ImageWork {
        let width = tower.width;
        let entry = 3 * frames * tower.patch * tower.patch * width;
        let layer = 4 * width * width + matrices * width * tower.intermediate;
        ImageWork {
            patch: tower.patch as u32,
            per_patch: (entry + tower.layers * layer) as f64,
            per_square,
            pair: (2 * width * tower.layers) as f64,
        }
    }

    /// Of one image. It is no row of a step: it counts as tokens what it becomes.
    pub(super) fn of(&self, plan: &ImagePlan, weight_bytes: f64) -> Work {
        let patches = f64::from(plan.width / self.patch) * f64::from(plan.height / self.patch);
        let squares = f64::from(plan.grid.0) * f64::from(plan.grid.1);
        Work {
            rows: 1.0,
            tokens: plan.tokens as f64,
            gemm: patches * self.per_patch + squares * self.per_square,
            pairs: patches * patches * self.pair,
            weights: weight_bytes * (self.per_patch + self.per_square),
            ..Work::default()
        }
    }
}
