//! From pixels to the patches that a tower takes: bytes become numbers around zero, and squares of them rows.

use super::tower::Patches;
use super::{ImagePlan, Pixels};
use crate::error::Error;

/// How an image is cut.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Cut {
    /// Sides of a patch in pixels.
    pub patch: usize,
    /// How often a patch repeats each channel: frames of a picture that stands still.
    pub frames: usize,
    /// Patches come in squares of so many by so many, rows of squares from the top; 1: in reading order.
    pub square: usize,
    /// Subtracted from each channel, which lies between 0 and 1.
    pub mean: [f32; 3],
    /// Divides it then.
    pub deviation: [f32; 3],
}

impl Cut {
    /// The patches of an image, whose sides are whole squares: values in the order channel, frame, row, column.
    pub fn run(&self, image: Pixels<'_>) -> Patches {
        let (columns, rows) = (image.width as usize / self.patch, image.height as usize / self.patch);
        let value = |channel: usize, byte: u8| {
            (f32::from(byte) / 255.0 - self.mean[channel]) / self.deviation[channel]
        };
        let table: Vec<[f32; 3]> = (0..=255).map(|byte| std::array::from_fn(|c| value(c, byte))).collect();
        let len = 3 * self.frames * self.patch * self.patch;
        let mut patches = Patches {
            values: Vec::with_capacity(rows * columns * len),
            places: Vec::with_capacity(rows * columns),
        };
        let square = self.square;
        for at in 0..rows * columns {
            let (within, block) = (at % (square * square), at / (square * square));
            let row = block / (columns / square) * square + within / square;
            let column = block % (columns / square) * square + within % square;
            patches.places.push([0, row as u32, column as u32]);
            self.patch(image, (row, column), &table, &mut patches.values);
        }
        patches
    }

    /// Adds the values of one patch.
    fn patch(
        &self,
        image: Pixels<'_>,
        (row, column): (usize, usize),
        table: &[[f32; 3]],
        out: &mut Vec<f32>,
    ) {
        let line = image.width as usize * 3;
        for channel in 0..3 {
            let start = out.len();
            for y in row * self.patch..(row + 1) * self.patch {
                let pixels = &image.rgb[y * line + column * self.patch * 3..][..self.patch * 3];
                out.extend(pixels.chunks_exact(3).map(|pixel| table[usize::from(pixel[channel])][channel]));
            }
            let end = out.len();
            for _ in 1..self.frames {
                out.extend_from_within(start..end);
            }
        }
    }
}

/// Refuses an image that has not the size of its plan.
///
/// # Errors
/// [`Error::Image`].
pub(super) fn check(plan: &ImagePlan, image: Pixels<'_>) -> Result<(), Error> {
    if (image.width, image.height) != (plan.width, plan.height) {
        return Err(Error::Image(format!(
            "has {} x {} pixels, its plan {} x {}",
            image.width, image.height, plan.width, plan.height
        )));
    }
    let needed = image.width as usize * image.height as usize * 3;
    if image.rgb.len() != needed {
        return Err(Error::Image(format!("has {} bytes, its size needs {needed}", image.rgb.len())));
    }
    Ok(())
}
