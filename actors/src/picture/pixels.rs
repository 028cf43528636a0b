//! From the bytes of a file to the pixels of a model: the first image, upright, on white, in one size. Decoders are
//! other people's code that meets hostile bytes; one that panics has met a broken file, and takes nobody along.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, RgbImage};

use super::PictureError;

/// What a decoder complains of.
pub(super) fn broken(error: impl Into<ImageError>) -> PictureError {
    PictureError::Broken(error.into().to_string())
}

/// Runs a decoder; a panic in it is a broken file.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, PictureError>) -> Result<T, PictureError> {
    // What a panic leaves half done is dropped with the decoder.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(PictureError::Broken("its decoder found no way out".to_owned())))
}

/// Whether rows become columns when it is turned upright.
pub(super) fn lies_on_its_side(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

/// The whole image, or the first one of several, upright.
pub(super) fn decode(mut decoder: Box<dyn ImageDecoder + '_>) -> Result<RgbImage, PictureError> {
    let orientation = decoder.orientation().map_err(broken)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(broken)?;
    image.apply_orientation(orientation);
    Ok(if image.color().has_alpha() { on_white(&image) } else { image.into_rgb8() })
}

/// What shows of a transparent image on white paper.
fn on_white(image: &DynamicImage) -> RgbImage {
    let image = image.to_rgba8();
    let mut flat = RgbImage::new(image.width(), image.height());
    for (from, to) in image.pixels().zip(flat.pixels_mut()) {
        let [red, green, blue, alpha] = from.0;
        let mix = |value: u8| {
            let (value, alpha) = (u32::from(value), u32::from(alpha));
            ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
        };
        to.0 = [mix(red), mix(green), mix(blue)];
    }
    flat
}

/// The image in another size: bicubic, each pixel of the result from all those it covers.
pub(super) fn resized(image: RgbImage, width: u32, height: u32) -> Result<Vec<u8>, PictureError> {
    let fault = |error: &dyn std::fmt::Display| PictureError::Broken(error.to_string());
    let (from_width, from_height) = image.dimensions();
    if (from_width, from_height) == (width, height) {
        return Ok(image.into_raw());
    }
    let from = Image::from_vec_u8(from_width, from_height, image.into_raw(), PixelType::U8x3);
    let from = from.map_err(|error| fault(&error))?;
    let mut to = Image::new(width, height, PixelType::U8x3);
    let bicubic = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom));
    Resizer::new().resize(&from, &mut to, &bicubic).map_err(|error| fault(&error))?;
    Ok(to.into_vec())
}
