//! A chat partner that is a graph in this process.

use std::time::Duration;

use millstream_actors::request::{ChatMessage, Outcome, Refusal, Reply};
use millstream_runtime::Exit;

use crate::args::{ChatArgs, ChoiceArgs};
use crate::builtin;
use crate::mill::Mill;
use crate::source;

/// Replies the terminal may lag behind.
const REPLIES_MAX: usize = 16_384;

/// A graph of its own.
pub(super) struct Local {
    mill: Mill,
}

impl Local {
    /// Starts the topology file, or the laptop topology of the model.
    pub(super) async fn start(args: &ChatArgs) -> anyhow::Result<Self> {
        let source = match (&args.topology, &args.model) {
            (Some(file), None) => source::check(file)?.built()?,
            (Some(file), Some(model)) => source::check(file)?.built()?.with_model(model),
            (None, Some(model)) => source::laptop(model)?,
            (None, None) => source::laptop(builtin::NAME)?,
        };
        let resources = source.load()?;
        let blind = resources.model.vision().is_none();
        anyhow::ensure!(
            args.images.is_empty() || !blind,
            "--image: this model has no eyes: it reads text only"
        );
        Ok(Self { mill: Mill::start(&source.plan, &resources, REPLIES_MAX).await? })
    }

    pub(super) async fn answer(
        &self,
        messages: &[ChatMessage],
        choice: &ChoiceArgs,
        out: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> anyhow::Result<String> {
        let asked = self.mill.desk().ask(choice.submit(messages));
        let mut answer =
            asked.map_err(|closed| anyhow::anyhow!("the graph takes no requests now: {closed:?}"))?;
        let mut whole = String::new();
        let mut exited = std::pin::pin!(self.mill.running().exited());
        loop {
            let reply = tokio::select! {
                biased;
                reply = answer.next() => reply.map_err(|cut| anyhow::anyhow!("{cut}"))?,
                exit = &mut exited => anyhow::bail!("{}", gone(&exit)),
            };
            match reply {
                Reply::Text { text, .. } => {
                    out(&text)?;
                    whole.push_str(&text);
                }
                Reply::Logits { .. } => {}
                Reply::End { outcome: Outcome::Finished(_), .. } => return Ok(whole),
                Reply::End { outcome, .. } => anyhow::bail!("{}", words(&outcome)),
            }
        }
    }

    pub(super) async fn leave(self, limit: Duration) {
        self.mill.drain(limit).await;
    }
}

/// Why the graph has ended, for a person.
fn gone(exit: &Exit) -> String {
    match exit {
        Exit::Stopped => "the graph has stopped".to_owned(),
        Exit::Failed { unit, cause } => format!("{unit} died more often than its budget allows: {cause}"),
    }
}

/// An outcome that is no answer, for a person.
fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished(_) => "the answer is complete".to_owned(),
        Outcome::Cancelled => "the request was cancelled".to_owned(),
        Outcome::Expired => "the request's time is over".to_owned(),
        Outcome::Failed(cause) => format!("the answer failed: {cause}"),
        Outcome::Refused(Refusal::Overload { .. }) => "all places are taken".to_owned(),
        Outcome::Refused(Refusal::Late { .. }) => "there is too little time for it".to_owned(),
        Outcome::Refused(Refusal::TooLong { tokens, limit }) => {
            format!("the conversation comes to at least {tokens} tokens, but only {limit} fit")
        }
        Outcome::Refused(Refusal::Invalid(why)) => why.clone(),
        Outcome::Refused(Refusal::Image { place, why }) => format!("{place}: {why}"),
        Outcome::Refused(Refusal::Field { field, why }) => format!("{field}: {why}"),
    }
}
