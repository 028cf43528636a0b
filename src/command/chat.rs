//! `chat`: a conversation in the terminal, with a graph of its own or with a server that runs already. Both are a
//! [`Partner`]: messages in, pieces of text out.

use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use millstream_actors::picture::{Detail, Picture, PictureBounds};
use millstream_actors::request::{ChatMessage, ChatRole, Content, Part};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::Done;
use super::files::tell;
use super::signals::Signals;
use crate::args::{ChatArgs, ChoiceArgs};
use local::Local;
use remote::Remote;

mod local;
mod remote;

/// Time for the graph to hear that an answer is not wanted any more.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Bounds of an image file of the person at the terminal. A server has bounds of its own.
const IMAGE_BOUNDS: PictureBounds = PictureBounds { bytes: 64 << 20, pixels: 100_000_000 };

/// Who answers.
enum Partner {
    /// A graph in this process.
    Local(Box<Local>),
    /// A server.
    Remote(Remote),
}

impl Partner {
    async fn find(args: &ChatArgs) -> anyhow::Result<Self> {
        Ok(match &args.server {
            Some(url) => Self::Remote(Remote::new(url)?),
            None => Self::Local(Box::new(Local::start(args).await?)),
        })
    }

    /// Streams the answer to `out` and returns the whole of it.
    async fn answer(
        &self,
        messages: &[ChatMessage],
        choice: &ChoiceArgs,
        out: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> anyhow::Result<String> {
        match self {
            Self::Local(local) => local.answer(messages, choice, out).await,
            Self::Remote(remote) => remote.answer(messages, choice, out).await,
        }
    }

    async fn leave(self) {
        if let Self::Local(local) = self {
            local.leave(LEAVE_MAX).await;
        }
    }
}

/// `chat`.
pub(super) async fn chat(args: ChatArgs) -> anyhow::Result<Done> {
    let empty = args.prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty());
    anyhow::ensure!(!empty || !args.images.is_empty(), "there is nothing to answer: the prompt is empty");
    let partner = Partner::find(&args).await?;
    let images = args.images.iter().map(|file| image(file)).collect::<anyhow::Result<_>>();
    let images = match images {
        Ok(images) => images,
        Err(error) => {
            partner.leave().await;
            return Err(error);
        }
    };
    let (messages, choice) = (Vec::new(), args.choice.clone());
    let mut talk = Talk { messages, images, choice, signals: Signals::new()? };
    talk.messages.extend(args.system.as_ref().map(|text| ChatMessage::new(ChatRole::System, text)));
    let done = match &args.prompt {
        Some(prompt) => talk.turn(&partner, prompt).await,
        None => converse(&partner, &mut talk).await,
    };
    partner.leave().await;
    done
}

/// Reads the header of an image file.
fn image(file: &Path) -> anyhow::Result<Part> {
    let cannot = || format!("cannot read {}", file.display());
    let mut bytes = Vec::new();
    let opened = File::open(file).with_context(cannot)?;
    opened.take(IMAGE_BOUNDS.bytes + 1).read_to_end(&mut bytes).with_context(cannot)?;
    let picture = Picture::read(&file.display().to_string(), bytes, Detail::High, IMAGE_BOUNDS);
    let picture = picture.map_err(|error| anyhow::anyhow!("{}: this image {error}", file.display()))?;
    Ok(Part::Image(Arc::new(picture)))
}

/// Reads lines until the input ends or a person interrupts.
async fn converse(partner: &Partner, talk: &mut Talk) -> anyhow::Result<Done> {
    let terminal = std::io::stdin().is_terminal();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        if terminal {
            show("> ")?;
        }
        let line = tokio::select! {
            line = lines.next_line() => line.context("cannot read standard input")?,
            () = talk.signals.next() => None,
        };
        let Some(line) = line else {
            if terminal {
                show("\n")?;
            }
            return Ok(Done::Well);
        };
        if line.trim().is_empty() {
            continue;
        }
        match talk.turn(partner, &line).await {
            Ok(Done::Interrupted) => return Ok(Done::Interrupted),
            Ok(_) => {}
            Err(error) if terminal => tell(&format!("millstream: {error:#}")),
            Err(error) => return Err(error),
        }
    }
}

/// A conversation so far.
struct Talk {
    messages: Vec<ChatMessage>,
    /// Those that nothing was said about yet.
    images: Vec<Part>,
    choice: ChoiceArgs,
    signals: Signals,
}

impl Talk {
    /// Says something and prints the answer. What was not answered is forgotten.
    async fn turn(&mut self, partner: &Partner, text: &str) -> anyhow::Result<Done> {
        let mut parts = self.images.clone();
        parts.push(Part::Text(text.to_owned()));
        self.messages.push(ChatMessage { role: ChatRole::User, content: Content::of(parts) });
        let mut begun = false;
        let mut out = |piece: &str| {
            begun |= !piece.is_empty();
            show(piece)
        };
        let answer = tokio::select! {
            answer = partner.answer(&self.messages, &self.choice, &mut out) => Some(answer),
            () = self.signals.next() => None,
        };
        if begun || !matches!(answer, Some(Err(_))) {
            show("\n")?;
        }
        match answer {
            Some(Ok(answer)) => {
                self.messages.push(ChatMessage::new(ChatRole::Assistant, answer));
                self.images.clear();
                Ok(Done::Well)
            }
            Some(Err(error)) => {
                self.messages.pop();
                Err(error)
            }
            None => Ok(Done::Interrupted),
        }
    }
}

/// Prints at once. What a model writes may not steer a terminal.
fn show(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let text = if out.is_terminal() { harmless(text) } else { Cow::Borrowed(text) };
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The text with a mark in the place of each control character, but for ends of lines and tabs.
fn harmless(text: &str) -> Cow<'_, str> {
    let steers = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    if text.contains(steers) { Cow::Owned(text.replace(steers, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn an_answer_does_not_steer_the_terminal() {
        assert_eq!(harmless("a\tb\nc é 日本"), "a\tb\nc é 日本");
        let title = "\u{1b}]0;owned\u{7}\u{9b}31m\rred\u{7f}";
        assert_eq!(harmless(title), "\u{fffd}]0;owned\u{fffd}\u{fffd}31m\u{fffd}red\u{fffd}");
    }
}
