//! Text and tokens: why a model can be served over words at all. Synchronous and pure; it reads no file and no clock.
//!
//! The road of a text through this folder:
//!
//! - [`TextFiles`](millstream_kernels::TextFiles) (what came with the weights, unread) becomes a [`Tokenizer`]. A
//!   `tokenizer.json` is read by `json`, the vocabulary of a GGUF file by `gguf`; both end in `vocab`, one table of
//!   tokens with their kinds. Texts are then encoded by `bpe` (words, `split` by name or file and found by
//!   `splitter` or by the `tokenizers` crate, joined by `merge`) or by `spm` (SentencePiece scores).
//! - A conversation ([`ChatMessage`]) is rendered by the model's own [`ChatTemplate`] (`jinja` is the machine under it)
//!   to [`Marked`] text.
//! - [`Tokenizer::encode_marked`] turns that into ids; [`Tokenizer::bytes`] (prepared by `decoding`) turns ids back into
//!   bytes; a [`TextStream`] turns bytes into text, piece by piece, and watches for stop strings.
//!
//! **A user's text never becomes a control token.** Two walls hold that up. The model that encodes plain text does not
//! know the control tokens at all: they are taken out of its vocabulary and out of its merges when it is loaded. And in a
//! rendered template they are looked for only where the template wrote them: `marked` says how the words of the users are
//! fenced off.
//!
//! ```
//! use millstream_actors::text::{TextStream, Tokenizer};
//! use millstream_kernels::{GgufTokenizer, TextFiles};
//!
//! let tokens = ["<s>", "a", "b", "▁", "ab", "▁ab"];
//! let gguf = GgufTokenizer {
//!     model: "llama".into(),
//!     tokens: tokens.into_iter().collect(),
//!     scores: vec![0.0, 0.0, 0.0, 0.0, -1.0, -2.0],
//!     types: vec![3, 1, 1, 1, 1, 1],
//!     bos: Some(0),
//!     unk: Some(0),
//!     add_bos: true,
//!     ..GgufTokenizer::default()
//! };
//! let tokenizer = Tokenizer::load(&TextFiles { gguf: Some(gguf), ..TextFiles::default() })?;
//! assert_eq!(tokenizer.encode_prompt("ab aba"), [0, 4, 5, 1]);
//!
//! let mut stream = TextStream::new(vec!["ba".into()])?;
//! assert_eq!(stream.push(tokenizer.bytes(4)).text, "a"); // the `b` may begin the stop string
//! assert_eq!(stream.push(tokenizer.bytes(5)).text, "b a");
//! assert!(stream.push(tokenizer.bytes(1)).stopped);
//! # Ok::<(), millstream_actors::text::TextError>(())
//! ```

mod added;
mod bpe;
mod chat;
mod decoding;
mod error;
mod gguf;
mod jinja;
mod json;
mod marked;
mod memo;
mod merge;
mod split;
mod splitter;
mod spm;
mod stream;
mod template;
mod tokenizer;
mod vocab;
mod words;
#[cfg(test)]
mod writing;

pub use chat::{ChatMessage, ChatRole, Content, Part};
pub use error::TextError;
pub use marked::Marked;
pub use stream::{Piece, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
