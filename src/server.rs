//! `serve`: a mill with HTTP before it. Tests and examples hold a [`Server`] too.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use millstream_actors::assemble::{Resources, encode_settings};
use millstream_runtime::Exit;
use millstream_topology::Plan;

use crate::clock;
use crate::http::listen::Listening;
use crate::http::{self, Bodies, Facts, Http, Images, Keepings, Names, Text};
use crate::mill::{self, Mill};

pub use crate::http::listen::ConnectionBounds;

/// Bounds of everything outside the graph. The topology has those inside it, and the size of a body.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of connections.
    pub connections: ConnectionBounds,
    /// Replies that one stream holds for a slow client before it is cut off.
    pub replies_max: usize,
    /// Time to send a body.
    pub body_wait_max: Duration,
    /// Bytes of all bodies that are being read or parsed, and of the images of all requests inside.
    pub bodies_max: u64,
    /// `/health` calls a unit ill that makes no progress for longer.
    pub busy_max: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: ConnectionBounds {
                connections_max: 4096,
                head_bytes_max: 64 << 10,
                headers_max: 100,
                head_wait_max: Duration::from_secs(30),
                write_wait_max: Duration::from_secs(30),
            },
            replies_max: 1024,
            body_wait_max: Duration::from_secs(30),
            bodies_max: 256 << 20,
            busy_max: Duration::from_secs(60),
        }
    }
}

/// How to serve.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// In place of the address in the plan.
    pub listen: Option<SocketAddr>,
    /// Bounds outside the graph.
    pub bounds: Bounds,
    /// Where what steps cost is kept between runs ([`crate::costs::folder`]); `None`: nowhere.
    pub costs: Option<PathBuf>,
}

/// A server that runs. Drain or stop it before it is dropped.
///
/// ```no_run
/// # async fn example() -> anyhow::Result<()> {
/// use millstream::server::{ServeOptions, Server};
/// use millstream::source;
///
/// let source = source::laptop("models/tiny")?;
/// let resources = source.load()?;
/// let server = Server::start(&source.plan, &resources, ServeOptions::default()).await?;
/// println!("listening on http://{}", server.address());
/// server.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    mill: Arc<Mill>,
    listening: Listening,
}

impl Server {
    /// Starts the graph, then listens.
    ///
    /// # Errors
    /// The plan cannot be built with this model, a seat cannot be started, or the address cannot be bound.
    pub async fn start(plan: &Plan, resources: &Resources, options: ServeOptions) -> anyhow::Result<Self> {
        let gateway = mill::gateway(plan)?;
        let bounds = options.bounds;
        let mill = Arc::new(Mill::start_with(plan, resources, (bounds.replies_max, options.costs)).await?);
        let facts =
            Facts { model: served_name(plan), plan: plan.id.to_string(), started: clock::unix_seconds() };
        let body_max = gateway.body_max(resources);
        let address = options.listen.unwrap_or(gateway.settings.listen);
        let router = http::router(Http {
            text: Arc::new(Text::new(resources.clone(), mill.reach())),
            images: encode_settings(plan, resources)
                .map(|settings| Arc::new(Images::new(&settings, body_max))),
            mill: Arc::clone(&mill),
            facts: Arc::new(facts),
            keepings: Arc::new(Keepings::new(&plan.cache)),
            names: Arc::new(Names::new(address, &gateway.settings.hosts)),
            bodies: Arc::new(Bodies::new(body_max, bounds.bodies_max, bounds.body_wait_max)),
            busy_max: bounds.busy_max,
        });
        match Listening::start(address, router, bounds.connections).await {
            Ok(listening) => Ok(Self { mill, listening }),
            Err(error) => {
                mill.stop().await;
                Err(error).with_context(|| format!("cannot listen on {address}"))
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address
    }

    /// The graph and its desk.
    pub fn mill(&self) -> &Arc<Mill> {
        &self.mill
    }

    /// Waits until the graph ends by itself: a unit has spent its restarts.
    pub async fn exited(&self) -> Exit {
        self.mill.running().exited().await
    }

    /// Turns new requests away, lets those inside end for at most `limit`, and stops. True when all of them ended.
    pub async fn drain(self, limit: Duration) -> bool {
        let drained = self.mill.drain(limit).await;
        self.listening.finish(Duration::from_secs(1)).await;
        drained
    }

    /// Stops now; open streams are cut.
    pub async fn stop(self) {
        self.mill.stop().await;
        self.listening.finish(Duration::from_secs(1)).await;
    }
}

/// The name clients ask for: [`Plan::served_name`].
pub fn served_name(plan: &Plan) -> String {
    plan.served_name()
}

#[cfg(test)]
mod tests {
    use super::served_name;
    use crate::source;

    #[test]
    fn the_name_served_is_the_topologys_or_the_models() {
        let name = |text: &str| served_name(&source::from_text(text, "test.toml").expect("a good file").plan);
        let unnamed = millstream_topology::laptop;
        assert_eq!(name(&unnamed("models/Tiny-1.5B.Q4.gguf")), "Tiny-1.5B.Q4");
        assert_eq!(name(&unnamed("models/tiny.v2/")), "tiny.v2");
        assert_eq!(name(&unnamed("hub/models--a--b/snapshots/0123")), "a/b");
        assert_eq!(name(&unnamed("hub/models--a--b/snapshots/0123/c.gguf")), "c");
        assert_eq!(name(&unnamed("builtin")), "builtin");
        assert_eq!(name(&format!("name = \"mill\"\n{}", unnamed("models/tiny"))), "mill");
    }
}
