//! Reads a request body within bounds: bytes a body (counted before anything is parsed), bytes of all bodies together
//! and of the images that came out of them, and time. What is too large is read away for a moment, so that the client
//! sees the refusal and not a reset.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::fault::Fault;

/// The budget is counted in units of this many bytes.
const UNIT: usize = 4096;
/// A body that is too large is read away up to this many times its bound...
const DISCARD_TIMES: u64 = 32;
/// ...and for this long.
const DISCARD_WAIT: Duration = Duration::from_secs(5);

/// The bounds of all bodies of one server.
pub(crate) struct Bodies {
    /// Bytes of one body.
    pub(crate) size_max: u64,
    /// Time to send one.
    pub(crate) wait_max: Duration,
    /// What is left of the bytes of all bodies, in units.
    budget: Arc<Semaphore>,
}

/// A body and its share of the budget, which is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Vec<u8>,
    _shares: Option<OwnedSemaphorePermit>,
}

/// A share of the budget for what is kept of a body, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    _share: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(crate) fn new(size_max: u64, total_max: u64, wait_max: Duration) -> Self {
        let total = usize::try_from(total_max.max(size_max)).unwrap_or(usize::MAX);
        let units = total.div_ceil(UNIT).saturating_add(1).min(Semaphore::MAX_PERMITS);
        Self { size_max, wait_max, budget: Arc::new(Semaphore::new(units)) }
    }

    /// Reads one body.
    ///
    /// # Errors
    /// 413 too large, 408 too slow, 429 too many at once, 415 when it is not JSON or is compressed, 400 when it breaks off.
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Held, Fault> {
        json(headers)?;
        plain(headers)?;
        let announced =
            headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|bytes: u64| bytes > self.size_max) {
            // Who asks before sending has not sent anything that could be read away.
            if !headers.contains_key(header::EXPECT) {
                self.discard(body).await;
            }
            return Err(self.too_large());
        }
        tokio::time::timeout(self.wait_max, self.collect(body)).await.unwrap_or_else(|_| {
            let message = format!("the body did not arrive within {} seconds", self.wait_max.as_secs());
            Err(Fault::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message))
        })
    }

    async fn collect(&self, body: Body) -> Result<Held, Fault> {
        let mut held = Held { bytes: Vec::new(), _shares: None };
        let mut frames = body.into_data_stream();
        while let Some(frame) = frames.next().await {
            let frame = frame.map_err(|error| Fault::invalid(format!("the body broke off: {error}")))?;
            if held.bytes.len() as u64 + frame.len() as u64 > self.size_max {
                self.discard(Body::from_stream(frames)).await;
                return Err(self.too_large());
            }
            self.reserve(&mut held, &frame)?;
            held.bytes.extend_from_slice(&frame);
        }
        Ok(held)
    }

    /// A share for images that stay in memory until their request ends.
    ///
    /// # Errors
    /// 429 where there is no room.
    pub(crate) fn keep(&self, bytes: u64) -> Result<Kept, Fault> {
        let units = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(UNIT);
        Ok(Kept { _share: if units == 0 { None } else { Some(self.share(units)?) } })
    }

    /// Takes the frame's share of the budget.
    fn reserve(&self, held: &mut Held, frame: &Bytes) -> Result<(), Fault> {
        let have = held._shares.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let need = (held.bytes.len() + frame.len()).div_ceil(UNIT).saturating_sub(have);
        if need == 0 {
            return Ok(());
        }
        let more = self.share(need)?;
        match &mut held._shares {
            Some(shares) => shares.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    fn share(&self, units: usize) -> Result<OwnedSemaphorePermit, Fault> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Arc::clone(&self.budget)
            .try_acquire_many_owned(units)
            .map_err(|_| Fault::overload("too many large bodies and images at once", Duration::from_secs(1)))
    }

    async fn discard(&self, body: Body) {
        let mut left = self.size_max.saturating_mul(DISCARD_TIMES);
        let mut frames = body.into_data_stream();
        let away = async {
            while let Some(Ok(frame)) = frames.next().await {
                left = left.saturating_sub(frame.len() as u64);
                if left == 0 {
                    break;
                }
            }
        };
        // Running out of time is as good as the end of the body: the answer is the same.
        let _ = tokio::time::timeout(DISCARD_WAIT, away).await;
    }

    fn too_large(&self) -> Fault {
        let message = format!("the body is larger than {} bytes", self.size_max);
        Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).coded("request_too_large")
    }
}

/// Refuses a body that does not say that it is JSON. A page of another origin may send text and forms to this server
/// without asking it first, but not JSON.
fn json(headers: &HeaderMap) -> Result<(), Fault> {
    let is_json = |value: &HeaderValue| {
        let kind = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
    };
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter().peekable();
    if kinds.peek().is_some() && kinds.all(is_json) {
        return Ok(());
    }
    let message = "the body must be JSON and say so: send the header content-type: application/json";
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
        .coded("unsupported_content_type"))
}

/// Refuses a body that is not sent as it is.
fn plain(headers: &HeaderMap) -> Result<(), Fault> {
    let as_it_is = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().all(as_it_is) {
        return Ok(());
    }
    let message = "the body is compressed; send it as it is, without content-encoding";
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
        .coded("unsupported_encoding"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Bodies {
        Bodies::new(10_000, 10_000, Duration::from_millis(50))
    }

    fn of_json() -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))])
    }

    #[tokio::test]
    async fn only_json_is_read() {
        let read = async |kinds: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for kind in kinds {
                headers.append(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            bodies().read(&headers, Body::from("{}")).await.map(|held| held.bytes)
        };
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/json ;x"] {
            assert_eq!(read(&[kind]).await.unwrap(), b"{}", "{kind}");
        }
        let twice = ["application/json", "text/plain"];
        for kinds in [
            &[][..],
            &["text/plain"],
            &["application/x-www-form-urlencoded"],
            &[""],
            &["application/jsonx"],
            &twice,
        ] {
            let fault = read(kinds).await.unwrap_err();
            assert_eq!(fault.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kinds:?}");
        }
    }

    #[tokio::test]
    async fn large_bodies_are_counted_not_kept() {
        let bodies = bodies();
        assert_eq!(bodies.read(&of_json(), Body::from(vec![0; 10_000])).await.unwrap().bytes.len(), 10_000);
        let fault = bodies.read(&of_json(), Body::from(vec![0; 10_001])).await.unwrap_err();
        assert_eq!(fault.status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn compressed_bodies_are_refused_by_name() {
        let read = async |encoding: &'static str| {
            let encoding = HeaderValue::from_static(encoding);
            let mut headers = of_json();
            headers.insert(header::CONTENT_ENCODING, encoding);
            bodies().read(&headers, Body::from("{}")).await.map(|held| held.bytes)
        };
        assert_eq!(read("Identity").await.unwrap(), b"{}");
        for encoding in ["gzip", "br", "identity, gzip", ""] {
            assert_eq!(read(encoding).await.unwrap_err().status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
    }

    #[tokio::test]
    async fn the_budget_is_shared_and_given_back() {
        let bodies = bodies();
        let first = bodies.read(&of_json(), Body::from(vec![0; 9_000])).await.unwrap();
        let fault = bodies.read(&of_json(), Body::from(vec![0; 9_000])).await.unwrap_err();
        assert_eq!(fault.status, StatusCode::TOO_MANY_REQUESTS);
        drop(first);
        assert!(bodies.read(&of_json(), Body::from(vec![0; 9_000])).await.is_ok());
    }

    #[test]
    fn what_is_kept_of_bodies_counts_as_they_do() {
        let bodies = bodies();
        let kept = bodies.keep(9_000).unwrap();
        assert_eq!(bodies.keep(9_000).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        assert!(bodies.keep(0).is_ok());
        drop(kept);
        assert!(bodies.keep(9_000).is_ok());
    }

    #[tokio::test]
    async fn slow_bodies_run_out_of_time() {
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let fault = bodies().read(&of_json(), never).await.unwrap_err();
        assert_eq!(fault.status, StatusCode::REQUEST_TIMEOUT);
    }
}
