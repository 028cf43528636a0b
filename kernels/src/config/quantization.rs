//! What `config.json` says of weights that are stored in fewer bits than the model was made with.

use super::WIDTH_MAX;
use super::settings::Settings;
use crate::error::Error;

/// Methods that are built, for messages.
const KNOWN: &str = "fp8, mxfp4";

/// Rows and columns of the rectangles that share a factor in FP8 matrices; none if the model has none.
///
/// What the settings say of activations is for devices that multiply in few bits; here they stay f32.
///
/// # Errors
/// [`Error::Unsupported`] for other methods.
pub(crate) fn fp8_block(settings: &Settings<'_>) -> Result<Option<(usize, usize)>, Error> {
    let Some(section) = settings.section("quantization_config")? else { return Ok(None) };
    match section.text("quant_method")?.as_deref() {
        Some("mxfp4") => return Ok(None),
        Some("fp8") => {
            section.must("fmt", &["e4m3"])?;
            section.must("scale_fmt", &["ue8m0", "float"])?;
            section.must("expert_dtype", &["fp4", "fp8"])?;
        }
        other => {
            let found = other.unwrap_or("nothing").to_owned();
            return Err(section.unsupported("quant_method", found, KNOWN));
        }
    }
    let key = "weight_block_size";
    let sizes = section.numbers(key)?;
    let fits = |size: &f64| size.fract() == 0.0 && (1.0..=WIDTH_MAX as f64).contains(size);
    match *sizes.as_slice() {
        [rows, cols] if sizes.iter().all(fits) => Ok(Some((rows as usize, cols as usize))),
        _ => Err(section.wrong(key, format!("{sizes:?} are no two sizes"))),
    }
}
