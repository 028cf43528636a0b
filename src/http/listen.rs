//! Accepts connections and serves the router on them, within bounds: connections at once, bytes and number of headers,
//! time to send them, time a write may stand still.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use super::patient::Patient;

/// After a failed `accept` (out of file descriptors, mostly): give connections time to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// Connections at once; more wait in the system's backlog.
    pub connections_max: usize,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// Headers of a request.
    pub headers_max: usize,
    /// Time to send a head; a connection that is idle for so long is closed too.
    pub head_wait_max: Duration,
    /// Time a write may stand still.
    pub write_wait_max: Duration,
}

/// A server that accepts connections.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    places: Arc<Semaphore>,
    bounds: ConnectionBounds,
}

impl Listening {
    /// Binds the address and starts to accept.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub(crate) async fn start(
        address: SocketAddr,
        router: Router,
        bounds: ConnectionBounds,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let places = Arc::new(Semaphore::new(bounds.connections_max));
        let door = Door { router, bounds, places: Arc::clone(&places), stopped };
        Ok(Self { address, stop, accepting: tokio::spawn(door.accept(listener)), places, bounds })
    }

    /// Accepts no more, lets answers under way end, and waits for the connections to close, at most `limit`.
    pub(crate) async fn finish(self, limit: Duration) {
        self.stop.send_replace(true);
        let all = u32::try_from(self.bounds.connections_max).unwrap_or(u32::MAX);
        // Those that are not done by then are cut by the end of the process.
        let _ = tokio::time::timeout(limit, self.places.acquire_many(all)).await;
        self.accepting.abort();
    }
}

/// What every connection is given.
struct Door {
    router: Router,
    bounds: ConnectionBounds,
    places: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl Door {
    async fn accept(self, listener: TcpListener) {
        tokio::select! {
            () = told(self.stopped.clone()) => {}
            () = self.accept_all(&listener) => {}
        }
    }

    async fn accept_all(&self, listener: &TcpListener) {
        while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(self.connection(stream, place))),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves one connection until it closes.
    fn connection(&self, stream: TcpStream, place: OwnedSemaphorePermit) -> impl Future<Output = ()> + use<> {
        let (bounds, stopped) = (self.bounds, self.stopped.clone());
        let service = TowerToHyperService::new(self.router.clone());
        async move {
            let _place = place;
            // Without it a peer stalls for 40 ms on small chunks; a socket that refuses is served all the same.
            let _ = stream.set_nodelay(true);
            let io = TokioIo::new(Patient::new(stream, bounds.write_wait_max));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(bounds.head_wait_max)
                .max_buf_size(bounds.head_bytes_max)
                .max_headers(bounds.headers_max);
            let mut connection = std::pin::pin!(http.serve_connection(io, service));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = told(stopped) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        }
    }
}

/// Waits until the server is told to finish.
async fn told(mut stopped: watch::Receiver<bool>) {
    // An error means that the server is gone, which says the same.
    let _ = stopped.wait_for(|stop| *stop).await;
}
