//! A double for a model with eyes: a real language model over made-up eyes. An image's embeddings are token ids, which
//! take the place of the image's tokens before the real model runs; so the answer depends on every pixel, and a span
//! that is cut wrongly, comes twice or is missing is found at once.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use image::{ImageFormat, Rgb, RgbImage};
use millstream_actors::assemble::Resources;
use millstream_actors::picture::{Detail, Picture, PictureBounds};
use millstream_actors::request::{ChatMessage, ChatRole, Content, Part};
use millstream_actors::text::ChatTemplate;
use millstream_kernels::{
    Backend, Error, Facts, ImagePlan, KvMemory, Model, Pixels, Row, Scratch, TextFiles, Vision,
};

/// `<|image_pad|>` of the tiny Qwen tokenizers.
pub const IMAGE: u32 = 638;
/// Values of a token of an image: the id it stands for, its place in the image, and how many there are.
const WIDTH: usize = 3;
/// Pixels of a token's side.
const PATCH: u32 = 4;
/// The longest side an image may have once it is resized.
const SIDE: u32 = 24;

/// What Qwen's templates do with images.
pub const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n\
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}\
{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The same for DeepSeek-V4.1.
pub const DEEPSEEK: &str = "<｜begin▁of▁sentence｜>{% for m in messages %}<｜User｜>\
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}\
{% if part['type'] == 'image' %}<｜deepseek_image｜>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}";

/// Those resources with a chat template of its own: the tiny checkpoints bring none that shows images.
pub fn with_template(resources: &Resources, template: &str) -> Resources {
    let files = TextFiles { chat_template: Some(template.to_owned()), ..TextFiles::default() };
    let template = ChatTemplate::load(&files, &resources.tokenizer).expect("a good template");
    Resources { template: template.map(Arc::new), ..resources.clone() }
}

/// Those resources with eyes, and a template that shows where images stand.
pub fn with_eyes(resources: &Resources) -> Resources {
    let facts = Facts { image_token: Some(IMAGE), ..resources.model.facts().clone() };
    let model = Arc::new(Seeing { inner: Arc::clone(&resources.model), facts, eyes: Eyes });
    with_template(&Resources { model, ..resources.clone() }, TEMPLATE)
}

struct Seeing {
    inner: Arc<dyn Model>,
    facts: Facts,
    eyes: Eyes,
}

struct Eyes;

impl Vision for Eyes {
    fn plan(&self, width: u32, height: u32) -> Result<ImagePlan, Error> {
        if width > 50 * height {
            return Err(Error::Image(format!("of {width} x {height} pixels is too flat")));
        }
        let fit = |side: u32| side.min(SIDE).next_multiple_of(PATCH);
        let (width, height) = (fit(width), fit(height));
        let grid = (height / PATCH, width / PATCH);
        Ok(ImagePlan { width, height, tokens: (grid.0 * grid.1) as usize + 2, grid })
    }

    fn encode(
        &self,
        plan: &ImagePlan,
        image: Pixels<'_>,
        _backend: &mut dyn Backend,
    ) -> Result<Vec<f32>, Error> {
        assert_eq!((image.width, image.height), (plan.width, plan.height));
        assert_eq!(image.rgb.len(), (image.width * image.height * 3) as usize);
        let mut state = 7_u32;
        let mut values = Vec::new();
        for place in 0..plan.tokens {
            let part = image.rgb.chunks(image.rgb.len().div_ceil(plan.tokens)).nth(place).unwrap_or(&[]);
            state = part
                .iter()
                .fold(state, |state, byte| state.wrapping_mul(16_777_619).wrapping_add(u32::from(*byte) + 1));
            values.extend([(state >> 8) as f32 % 600.0, place as f32, plan.tokens as f32]);
        }
        Ok(values.into_iter().map(f32::trunc).collect())
    }

    fn width(&self) -> usize {
        WIDTH
    }

    fn turns(&self, spans: &[(u32, ImagePlan)], first: u32, count: usize) -> Vec<[u32; 3]> {
        (first..first + count as u32).map(|at| [at, spans.len() as u32, 0]).collect()
    }
}

impl Model for Seeing {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn vision(&self) -> Option<&dyn Vision> {
        Some(&self.eyes)
    }

    fn forward(
        &self,
        step: &[Row<'_>],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        let read: Vec<Vec<u32>> = step.iter().map(read).collect();
        let rows: Vec<Row<'_>> = step
            .iter()
            .zip(&read)
            .map(|(row, tokens)| Row { tokens, spans: &[], turns: &[], ..*row })
            .collect();
        self.inner.forward(&rows, kv, scratch, backend)
    }
}

/// The row's tokens with those that its images stand for.
fn read(row: &Row<'_>) -> Vec<u32> {
    let mut tokens = row.tokens.to_vec();
    assert!(row.turns.is_empty() || row.turns.len() == tokens.len(), "a turn for each token");
    assert!(row.turns.iter().zip(row.start..).all(|(turn, at)| turn[0] == at), "the turns of these tokens");
    let mut behind = 0;
    for span in row.spans {
        assert!(span.first >= behind, "spans ascend and do not overlap");
        assert_eq!((span.width, span.embeddings.len() % WIDTH), (WIDTH, 0));
        for (offset, value) in span.embeddings.chunks(WIDTH).enumerate() {
            let token = &mut tokens[span.first as usize + offset];
            assert_eq!(*token, IMAGE, "an image stands where its tokens are");
            *token = value[0] as u32;
        }
        let places = span.embeddings.chunks(WIDTH).map(|value| value[1]);
        assert!(places.clone().zip(places.skip(1)).all(|(a, b)| b == a + 1.0), "a piece of one image");
        behind = span.first + (span.embeddings.len() / WIDTH) as u32;
    }
    assert!(!tokens.contains(&IMAGE), "a token of an image without its embedding at {}", row.start);
    tokens
}

/// A picture file of its own for each number.
pub fn file(number: u64, width: u32, height: u32) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let colour = |x: u32, y: u32| {
        let bits = seed.rotate_left(x.wrapping_mul(7) ^ y.wrapping_mul(13));
        Rgb([bits as u8, (bits >> 8) as u8, (bits >> 16) as u8])
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    let image = RgbImage::from_fn(width, height, colour);
    image.write_to(&mut bytes, ImageFormat::Png).expect("it is encoded");
    bytes.into_inner()
}

pub fn picture(place: &str, bytes: Vec<u8>) -> Part {
    let bounds = PictureBounds { bytes: 1 << 20, pixels: 1 << 20 };
    Part::Image(Arc::new(Picture::read(place, bytes, Detail::High, bounds).expect("a good header")))
}

/// A user's message of text and images in turn.
pub fn message(parts: Vec<Part>) -> ChatMessage {
    ChatMessage { role: ChatRole::User, content: Content::of(parts) }
}
