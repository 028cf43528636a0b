//! From what a client wrote to token ids. The tokenizer's seat and the shell's `/tokenize` both ask here, so that what a
//! client counts is what it is charged.
//!
//! Where a chat has an image, its template writes one token; the image takes as many as the model's plan says, all with
//! that same id. Only a template can write it, and for each image it must write one: what would be dropped, or would be
//! a place without an image, is refused.

use std::sync::Arc;

use millstream_kernels::{Error, Model, Vision};

use crate::picture::Picture;
use crate::request::{Prompt, PromptImage, Refusal};
use crate::text::{ChatTemplate, Tokenizer};

/// Bytes for each token in the first beginning of a text that [`Reader`] looks at; most texts have fewer.
const BYTES_EACH: usize = 8;
/// Tokens that a word may come apart into where a text is cut.
const AT_CUT: usize = 64;

/// How a prompt is encoded where its kind leaves a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// A plain text gets the tokens that the family puts around texts.
    pub framed: bool,
    /// A chat ends with the turn of the assistant opened.
    pub opened: bool,
}

impl Encoding {
    /// What every request gets.
    pub const SERVED: Self = Self { framed: true, opened: true };
}

/// How a model sees, as far as prompts go.
#[derive(Clone, Copy)]
pub struct Eyes<'a> {
    vision: &'a dyn Vision,
    /// Stands for one token of an image.
    token: u32,
}

impl<'a> Eyes<'a> {
    /// Those of a model that has some.
    pub fn of(model: &'a dyn Model) -> Option<Self> {
        Some(Self { vision: model.vision()?, token: model.facts().image_token? })
    }
}

/// What reads prompts.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// Text to ids.
    pub tokenizer: &'a Tokenizer,
    /// Chats to text; without one they are refused.
    pub template: Option<&'a ChatTemplate>,
    /// For images; without them they are refused.
    pub eyes: Option<Eyes<'a>>,
    /// The most tokens a prompt may have. One that has more is not encoded to its end.
    pub tokens_max: Option<u32>,
}

/// A prompt as the model reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// Token ids, each in the vocabulary.
    pub ids: Vec<u32>,
    /// Images that some of them stand for, ascending; not looked at yet.
    pub images: Vec<PromptImage>,
}

impl Reader<'_> {
    /// Reads a prompt.
    ///
    /// # Errors
    /// The template refuses the chat, there is none, an id is not in the vocabulary, or an image cannot be seen.
    pub fn encode(&self, prompt: &Prompt, how: Encoding) -> Result<Encoded, Refusal> {
        let tokenizer = self.tokenizer;
        let ids = match prompt {
            Prompt::Chat(messages) => {
                let template = self.template;
                let template =
                    template.ok_or_else(|| invalid("this model has no chat template: send plain text"))?;
                let text = template.render(messages, how.opened).map_err(invalid)?;
                self.bound(&text.text())?;
                tokenizer.encode_marked(&text)
            }
            Prompt::Text(text) => {
                self.bound(text)?;
                if how.framed { tokenizer.encode_prompt(text) } else { tokenizer.encode_plain(text) }
            }
            Prompt::Tokens(ids) => ids.clone(),
            Prompt::Hollow { .. } => return Err(invalid("only a simulation asks tokens of no meaning")),
        };
        known(tokenizer, "prompt", ids.iter().copied())?;
        let pictures: Vec<&Arc<Picture>> = match prompt {
            Prompt::Chat(messages) => messages.iter().flat_map(|message| message.content.images()).collect(),
            Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Hollow { .. } => Vec::new(),
        };
        match (self.eyes, pictures.first()) {
            (Some(eyes), _) => eyes.place(ids, &pictures),
            (None, None) => Ok(Encoded { ids, images: Vec::new() }),
            (None, Some(picture)) => Err(unseen(picture, "this model has no eyes: it reads text only")),
        }
    }
}

impl Reader<'_> {
    /// Refuses a text that is far too long without encoding all of it, so that it holds up nobody else: beginnings of it
    /// are encoded, each twice as long as the last, until one has more tokens than a prompt may have. (The word at the
    /// cut may come apart, hence the few more.)
    fn bound(&self, text: &str) -> Result<(), Refusal> {
        let Some(limit) = self.tokens_max else { return Ok(()) };
        let most = limit as usize + AT_CUT;
        let mut len = most.saturating_mul(BYTES_EACH);
        while len < text.len() {
            let tokens = self.tokenizer.encode_plain(&text[..text.floor_char_boundary(len)]).len();
            if tokens > most {
                return Err(Refusal::TooLong { tokens: tokens as u64, limit: limit.into() });
            }
            len = len.saturating_mul(2);
        }
        Ok(())
    }
}

impl Eyes<'_> {
    /// Gives each picture the tokens of its plan, where the template wrote one.
    fn place(&self, ids: Vec<u32>, pictures: &[&Arc<Picture>]) -> Result<Encoded, Refusal> {
        let places = ids.iter().filter(|id| **id == self.token).count();
        if places != pictures.len() {
            let token = self.token;
            return Err(invalid(match pictures.len() {
                0 => format!("token {token} stands for an image, and there is none: send a chat with images"),
                count => format!("the chat template of this model writes {places} of {count} images"),
            }));
        }
        let (mut encoded, mut rest) = (Encoded::default(), pictures.iter());
        for id in ids {
            match rest.as_slice().first() {
                Some(&picture) if id == self.token => {
                    rest.next();
                    self.push(picture, &mut encoded)?;
                }
                _ => encoded.ids.push(id),
            }
        }
        Ok(encoded)
    }

    fn push(&self, picture: &Arc<Picture>, encoded: &mut Encoded) -> Result<(), Refusal> {
        let (width, height) = picture.size();
        let plan = self.vision.plan(width, height).map_err(|error| match error {
            Error::Image(why) => unseen(picture, &format!("this image {why}")),
            error => unseen(picture, &error.to_string()),
        })?;
        if plan.tokens == 0 {
            return Err(unseen(picture, "it takes no tokens"));
        }
        let first = encoded.ids.len() as u32;
        encoded.images.push(PromptImage { first, plan, picture: Arc::clone(picture), embeddings: None });
        encoded.ids.extend(std::iter::repeat_n(self.token, plan.tokens));
        Ok(())
    }
}

/// A refusal that names the image.
fn unseen(picture: &Picture, why: &str) -> Refusal {
    Refusal::Image { place: picture.place().to_owned(), why: why.to_owned() }
}

/// Refuses ids of the setting `field` that are beyond the vocabulary.
///
/// # Errors
/// The first of them, by name.
pub fn known(
    tokenizer: &Tokenizer,
    field: &'static str,
    mut ids: impl Iterator<Item = u32>,
) -> Result<(), Refusal> {
    let vocab = tokenizer.vocab();
    let Some(id) = ids.find(|id| *id as usize >= vocab) else { return Ok(()) };
    Err(Refusal::Field { field, why: format!("token {id} is not in the vocabulary of {vocab}") })
}

fn invalid(why: impl ToString) -> Refusal {
    Refusal::Invalid(why.to_string())
}
