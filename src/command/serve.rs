//! `serve`: from a file to a server, until Ctrl-C (or SIGTERM) drains it, a second one stops it, or the graph fails.

use std::time::Duration;

use millstream_runtime::Exit;

use super::Done;
use super::files::{say, tell};
use super::signals::Signals;
use crate::args::ServeArgs;
use crate::costs;
use crate::server::{ServeOptions, Server};
use crate::source::{self, Refused, Source};

/// Requests inside may take so long to end once a person has asked to stop.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// `serve FILE | --model PATH`.
pub(super) async fn serve(args: ServeArgs) -> anyhow::Result<Done> {
    let source = chosen(&args)?;
    let resources = source.load()?;
    let options = ServeOptions { listen: args.listen, costs: costs::folder(), ..ServeOptions::default() };
    let mut signals = Signals::new()?;
    let server = Server::start(&source.plan, &resources, options).await?;
    say(&format!("listening on http://{}", server.address()))?;
    tokio::select! {
        exit = server.exited() => {
            server.stop().await;
            ended(exit)
        }
        () = signals.next() => {
            leave(server, signals).await;
            Ok(Done::Well)
        }
    }
}

fn chosen(args: &ServeArgs) -> Result<Source, Refused> {
    match (&args.file, &args.model) {
        (Some(file), None) => source::check(file)?.built(),
        (Some(file), Some(model)) => Ok(source::check(file)?.built()?.with_model(model)),
        (None, Some(model)) => source::laptop(model),
        (None, None) => Err(Refused::Unreadable("name a topology file or a --model".to_owned())),
    }
}

fn ended(exit: Exit) -> anyhow::Result<Done> {
    match exit {
        Exit::Stopped => Ok(Done::Well),
        Exit::Failed { unit, cause } => {
            anyhow::bail!("{unit} has died more often than its budget allows; the last cause: {cause}")
        }
    }
}

async fn leave(server: Server, mut signals: Signals) {
    tell("draining: new requests are turned away, running ones may end; once more stops at once");
    tokio::select! {
        drained = server.drain(DRAIN_MAX) => {
            if !drained {
                tell(&format!("some requests did not end in {} s and were cut off", DRAIN_MAX.as_secs()));
            }
        }
        () = signals.next() => tell("stopping at once"),
    }
}
