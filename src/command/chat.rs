//! `chat`: a conversation in the terminal, with a graph of its own or with a server that runs already. Both are a
//! [`Partner`]: messages in, pieces of text out.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Context as _;
use millstream_actors::request::{ChatMessage, ChatRole};
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
    let partner = Partner::find(&args).await?;
    let mut talk = Talk { messages: Vec::new(), choice: args.choice.clone(), signals: Signals::new()? };
    talk.messages.extend(args.system.as_ref().map(|text| ChatMessage::new(ChatRole::System, text)));
    let done = match &args.prompt {
        Some(prompt) => talk.turn(&partner, prompt).await,
        None => converse(&partner, &mut talk).await,
    };
    partner.leave().await;
    done
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
    choice: ChoiceArgs,
    signals: Signals,
}

impl Talk {
    /// Says something and prints the answer. What was not answered is forgotten.
    async fn turn(&mut self, partner: &Partner, text: &str) -> anyhow::Result<Done> {
        self.messages.push(ChatMessage::new(ChatRole::User, text));
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
