//! A client's image before any model sees it: what its header says, held against bounds before a pixel is decoded, and
//! its pixels in the size a model wants. Pure; the shell reads headers, the encode role decodes.
//!
//! A picture is told from others by a digest of its bytes as they came (and of the detail that was asked for): it is
//! known before anything is decoded. The same pixels in another file are another picture, which costs a second look and
//! is never wrong.

use std::io::Cursor;
use std::sync::Arc;

use image::{ImageDecoder, ImageFormat, ImageReader, Limits};

mod jpeg;
mod pixels;

/// Side of the square that an image of low detail is fitted into before the model's own rule.
pub const LOW_SIDE: u32 = 512;
/// Bytes that a pixel takes while it is decoded: four channels of sixteen bits.
const PIXEL_BYTES: u64 = 8;
/// What a decoder may take beside the pixels.
const DECODER_BYTES: u64 = 16 << 20;

/// Name of a picture: BLAKE3 of its bytes and of the detail asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PictureDigest([u8; 32]);

impl PictureDigest {
    /// As bytes, to be hashed further.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for PictureDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Bounds of one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureBounds {
    /// Bytes as they come.
    pub bytes: u64,
    /// Pixels once it is decoded.
    pub pixels: u64,
}

/// How closely the client wants it looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// As the model's own rule says (`auto`, `high`).
    #[default]
    High,
    /// Fitted into a square of [`LOW_SIDE`] first.
    Low,
}

/// Why a picture is refused; completes "this image ...".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// No bytes.
    #[error("is empty")]
    Empty,
    /// More bytes than allowed.
    #[error("has {bytes} bytes, but only {most} are taken")]
    Bytes {
        /// Those it has.
        bytes: u64,
        /// Those that are taken.
        most: u64,
    },
    /// Not one of the formats.
    #[error("is not a PNG, JPEG, WebP or GIF file")]
    Format,
    /// More pixels than allowed, or none.
    #[error("has {width} x {height} pixels, but 1 to {most} in all are taken")]
    Size {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Pixels that are taken.
        most: u64,
    },
    /// The decoder gave up.
    #[error("cannot be decoded: {0}")]
    Broken(String),
}

/// An image as a client sent it. Its header was read and is within bounds; the rest may still be broken.
#[derive(Clone)]
pub struct Picture {
    /// Where it stands in the request, as a path: `messages[0].content[1]`.
    place: String,
    bytes: Arc<[u8]>,
    format: ImageFormat,
    detail: Detail,
    digest: PictureDigest,
    /// Pixels of a row and rows, turned upright.
    size: (u32, u32),
    bounds: PictureBounds,
}

impl Picture {
    /// Reads the header of an image that stands at `place`.
    ///
    /// # Errors
    /// It is no image, or beyond the bounds.
    pub fn read(
        place: &str,
        bytes: impl Into<Arc<[u8]>>,
        detail: Detail,
        bounds: PictureBounds,
    ) -> Result<Self, PictureError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(PictureError::Empty);
        }
        if bytes.len() as u64 > bounds.bytes {
            return Err(PictureError::Bytes { bytes: bytes.len() as u64, most: bounds.bytes });
        }
        let format = image::guess_format(&bytes).map_err(|_| PictureError::Format)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(detail == Detail::Low)]).update(&bytes);
        let digest = PictureDigest(*hasher.finalize().as_bytes());
        let size = (0, 0);
        let mut picture = Self { place: place.to_owned(), bytes, format, detail, digest, size, bounds };
        picture.size = pixels::guarded(|| picture.upright())?;
        Ok(picture)
    }

    /// Where it stands in the request.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Its name.
    pub fn digest(&self) -> PictureDigest {
        self.digest
    }

    /// The file as it came.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its media type.
    pub fn media_type(&self) -> &'static str {
        self.format.to_mime_type()
    }

    /// Pixels of a row and rows, upright, that a model makes its plan from: those it has, or what low detail leaves.
    pub fn size(&self) -> (u32, u32) {
        match self.detail {
            Detail::High => self.size,
            Detail::Low => fitted(self.size, LOW_SIDE),
        }
    }

    /// Red, green and blue, a byte each, rows from the top, `width` times `height` of them: the first image of a moving
    /// one, upright, on white where it is transparent, resized by bicubic interpolation.
    ///
    /// # Errors
    /// [`PictureError::Broken`], with what the decoder says.
    pub fn pixels(&self, width: u32, height: u32) -> Result<Vec<u8>, PictureError> {
        if self.format == ImageFormat::Jpeg && !jpeg::has_an_end(&self.bytes) {
            return Err(PictureError::Broken("the file breaks off".to_owned()));
        }
        let whole = pixels::guarded(|| pixels::decode(self.decoder()?))?;
        pixels::resized(whole, width, height)
    }

    /// A decoder that has read the header and is held to the bounds.
    fn decoder(&self) -> Result<Box<dyn ImageDecoder + '_>, PictureError> {
        let known = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];
        if !known.contains(&self.format) {
            return Err(PictureError::Format);
        }
        let mut limits = Limits::default();
        limits.max_alloc = Some(self.bounds.pixels.saturating_mul(PIXEL_BYTES).saturating_add(DECODER_BYTES));
        let mut reader = ImageReader::with_format(Cursor::new(&*self.bytes), self.format);
        reader.limits(limits);
        Ok(Box::new(reader.into_decoder().map_err(pixels::broken)?))
    }

    fn upright(&self) -> Result<(u32, u32), PictureError> {
        let mut decoder = self.decoder()?;
        let (width, height) = decoder.dimensions();
        let most = self.bounds.pixels;
        if !(1..=most).contains(&(u64::from(width) * u64::from(height))) {
            return Err(PictureError::Size { width, height, most });
        }
        let turned = pixels::lies_on_its_side(decoder.orientation().map_err(pixels::broken)?);
        Ok(if turned { (height, width) } else { (width, height) })
    }
}

impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        (self.digest, &self.place) == (other.digest, &other.place)
    }
}

impl Eq for Picture {}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { place, format, size: (width, height), digest, .. } = self;
        write!(f, "Picture({place}, {format:?}, {width}x{height}, {digest:?})")
    }
}

/// The largest size of the same shape that lies in a square of `side`; what is small already stays.
fn fitted((width, height): (u32, u32), side: u32) -> (u32, u32) {
    let longest = width.max(height);
    if longest <= side {
        return (width, height);
    }
    let shrunk = |length: u32| {
        let (length, side, longest) = (u64::from(length), u64::from(side), u64::from(longest));
        ((length * side + longest / 2) / longest).max(1) as u32
    };
    (shrunk(width), shrunk(height))
}

#[cfg(test)]
mod tests;
