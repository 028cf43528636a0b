//! Images of a request: from a part of a message to a [`Picture`] whose header was read, within the bounds of the plan.
//! Bytes come with the request (a data URL), or are fetched from a server that the topology names (`fetch`). Nothing is
//! decoded here.

use std::cell::Cell;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use millstream_actors::picture::{Detail, Picture, PictureBounds};
use millstream_actors::request::Prompt;
use millstream_topology::EncodeSettings;
use tokio::sync::Semaphore;

use super::fault::Fault;
use super::fields::{Field, Fields};
use fetch::Fetch;

mod fetch;

/// Requests whose images are read at once; more wait with their bodies held, which are bounded.
const AT_ONCE: usize = 16;
/// The code of everything that is wrong with an image.
pub(crate) const INVALID: &str = "invalid_image";

/// Which images a server takes, and from where. There is none for a model without eyes.
pub(crate) struct Images {
    bounds: PictureBounds,
    count_max: usize,
    /// Bytes of all images of a request.
    together: u64,
    fetch: Fetch,
    places: Semaphore,
}

impl Images {
    /// As the settings say; the images of one request have at most `together` bytes.
    pub(crate) fn new(settings: &EncodeSettings, together: u64) -> Self {
        Self {
            together,
            bounds: PictureBounds { bytes: settings.image_bytes, pixels: settings.pixels_max },
            count_max: settings.images_max,
            fetch: Fetch::new(settings.hosts.clone()),
            places: Semaphore::new(AT_ONCE),
        }
    }

    /// Whether a body may have images: reading them may take a while, and is done where it holds up nobody else.
    pub(crate) fn mentioned(body: &[u8]) -> bool {
        // An escaped letter may hide the name; such a body is read apart too.
        std::str::from_utf8(body).is_ok_and(|text| text.contains("image_url") || text.contains("\\u"))
    }

    /// Runs `work`, which reads a body with images.
    pub(crate) async fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let _place = self.places.acquire().await.map_err(|_| Fault::server("no images are read any more"))?;
        let images = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&images)).await;
        done.unwrap_or_else(|_| Err(Fault::server("the server has made a mistake")))
    }
}

/// Bytes of the images of a prompt.
pub(crate) fn bytes(prompt: &Prompt) -> u64 {
    let Prompt::Chat(messages) = prompt else { return 0 };
    let pictures = messages.iter().flat_map(|message| message.content.images());
    pictures.map(|picture| picture.bytes().len() as u64).sum()
}

/// The images of one request as they are read.
pub(crate) struct Sheet<'a> {
    images: Option<&'a Images>,
    taken: Cell<usize>,
    bytes: Cell<u64>,
}

impl<'a> Sheet<'a> {
    pub(crate) fn new(images: Option<&'a Images>) -> Self {
        Self { images, taken: Cell::new(0), bytes: Cell::new(0) }
    }

    /// Reads a part of the type `image_url`. May take as long as a fetch may.
    ///
    /// # Errors
    /// The model has no eyes, there are too many, a field is wrong, or the image is; with the path of the part.
    pub(crate) fn part(&self, part: &Field<'_>, fields: &Fields<'_>) -> Result<Arc<Picture>, Fault> {
        let Some(images) = self.images else {
            let why = "not supported by this server: its model has no eyes, it reads text only";
            return Err(fields.need("type")?.fault(why).coded("unsupported_value"));
        };
        fields.only(&[&["type", "image_url"]])?;
        let place = fields.need("image_url")?.fields()?;
        place.only(&[&["url", "detail"]])?;
        let detail = place.get("detail").map_or(Ok(Detail::High), |field| detail(&field))?;
        self.taken.set(self.taken.get() + 1);
        if self.taken.get() > images.count_max {
            let why = format!("this image is one too many: {} are taken in one request", images.count_max);
            return Err(part.fault(why).coded("out_of_range"));
        }
        let wrong = |why: &str| part.fault(format!("this image {why}")).coded(INVALID);
        let left = images.together.saturating_sub(self.bytes.get());
        let bytes = images.bytes(&place.need("url")?, left).map_err(|error| match error {
            Unread::Field(fault) => *fault,
            Unread::Image(why) => wrong(&why),
        })?;
        self.bytes.set(self.bytes.get() + bytes.len() as u64);
        let picture = Picture::read(part.path(), bytes, detail, images.bounds);
        picture.map(Arc::new).map_err(|error| wrong(&error.to_string()))
    }
}

/// Why there are no bytes.
enum Unread {
    /// What stands in the field is wrong or not served.
    Field(Box<Fault>),
    /// What it stands for is; completes "this image ...".
    Image(String),
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Self::Field(Box::new(fault))
    }
}

impl Images {
    /// The bytes that a URL stands for; those that are fetched are at most `left`.
    fn bytes(&self, field: &Field<'_>, left: u64) -> Result<Vec<u8>, Unread> {
        let url = field.text()?;
        let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        match scheme.as_str() {
            "data" => self.inline(url).map_err(Unread::Image),
            "https" => {
                let unserved = |why: String| Unread::from(field.fault(why).coded("unsupported_value"));
                let wish = self.fetch.wish(url).map_err(unserved)?;
                self.fetch.get(wish, self.bounds.bytes.min(left)).map_err(Unread::Image)
            }
            _ => {
                let why = "must be a data URL, \"data:image/png;base64,...\", or begin with \"https://\"";
                Err(field.fault(why).into())
            }
        }
    }

    /// The bytes of a data URL.
    fn inline(&self, url: &str) -> Result<Vec<u8>, String> {
        let (head, data) = url.split_once(',').ok_or("has no comma in its data URL")?;
        let kind = head.get("data:".len()..).unwrap_or_default().to_ascii_lowercase();
        let Some(kind) = kind.strip_suffix(";base64") else {
            return Err("is not base64: its data URL must begin as data:image/png;base64,".to_owned());
        };
        if !kind.is_empty() && !kind.starts_with("image/") {
            return Err(format!(
                "is of the type {:?}, not an image",
                kind.chars().take(64).collect::<String>()
            ));
        }
        let (bytes, most) = (data.len() as u64 / 4 * 3, self.bounds.bytes);
        if bytes > most.saturating_add(3) {
            return Err(format!("has {bytes} bytes, but only {most} are taken"));
        }
        let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let alphabet = GeneralPurpose::new(&alphabet::STANDARD, config);
        alphabet.decode(data).map_err(|error| format!("is not base64: {error}"))
    }
}

fn detail(field: &Field<'_>) -> Result<Detail, Fault> {
    match field.text()? {
        "auto" | "high" => Ok(Detail::High),
        "low" => Ok(Detail::Low),
        "original" => {
            let why = "not supported by this server: images are resized by the model's rule, leave it out or say \"high\"";
            Err(field.fault(why).coded("unsupported_value"))
        }
        _ => Err(field.fault("must be \"auto\", \"low\" or \"high\"")),
    }
}
