//! Reads bodies within limits of size, time and rate. Memory grows with the bytes that have arrived, never with the
//! length that a client claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::problem::{Problem, ProblemKind};

/// A body has this much time before its rate is judged.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes per second of a body, on average after [`GRACE`].
const LEAST_RATE: u64 = 4096;

/// Limits of one body, and the memory that all bodies share.
#[derive(Debug)]
pub struct BodyLimits {
    pub bytes: usize,
    pub time: Duration,
    pub held: Arc<HeldBytes>,
}

/// Bytes of all bodies that are in memory.
#[derive(Debug)]
pub struct HeldBytes {
    limit: usize,
    held: AtomicUsize,
}

impl HeldBytes {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, held: AtomicUsize::new(0) })
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Result<(), Problem> {
        let free = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(_) => Ok(()),
            Err(_) => {
                let detail = "The bodies of other requests fill the server's memory for them; try again in 1 s.";
                let retry_after = Some(Duration::from_secs(1));
                Err(Problem { retry_after, ..Problem::new(ProblemKind::QueueFull, detail) })
            }
        }
    }
}

/// A share of [`HeldBytes`], given back when dropped.
#[derive(Debug)]
pub struct HeldShare {
    all: Arc<HeldBytes>,
    bytes: usize,
}

impl HeldShare {
    fn new(all: &Arc<HeldBytes>) -> Self {
        Self { all: all.clone(), bytes: 0 }
    }

    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        self.all.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.all.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The length that a client claims, if it is within the limit.
pub fn claimed_length(headers: &HeaderMap, limit: usize) -> Result<Option<usize>, Problem> {
    let Some(length) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    match length.to_str().ok().and_then(|text| text.parse::<usize>().ok()) {
        Some(length) if length <= limit => Ok(Some(length)),
        _ => Err(Problem::too_large(limit)),
    }
}

/// Reads a whole body. The share of memory must live as long as the bytes.
pub async fn receive(
    limits: &BodyLimits,
    headers: &HeaderMap,
    mut body: Body,
    deadline: std::time::Instant,
) -> Result<(Bytes, HeldShare), Problem> {
    claimed_length(headers, limits.bytes)?;
    let start = Instant::now();
    let latest = start + limits.time;
    let deadline = Instant::from_std(deadline);
    let mut share = HeldShare::new(&limits.held);
    let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
    loop {
        let received = (first.len() + whole.len()) as u64;
        let due = start + GRACE + Duration::from_millis(1000 * (received + 1) / LEAST_RATE);
        let frame = match timeout_at(due.min(latest).min(deadline), body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(Problem::malformed(format!("The body broke off: {error}."))),
            Err(_) if Instant::now() >= deadline => return Err(Problem::deadline()),
            Err(_) => {
                let detail = format!("{received} bytes arrived in {:.1} s.", start.elapsed().as_secs_f32());
                return Err(Problem::new(ProblemKind::SlowBody, detail));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        if received as usize + data.len() > limits.bytes {
            return Err(Problem::too_large(limits.bytes));
        }
        share.grow(data.len())?;
        if whole.is_empty() && first.is_empty() {
            // Most images arrive in a single frame, which then is not copied.
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok((if whole.is_empty() { first } else { whole.freeze() }, share))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};

    use super::*;

    fn limits(bytes: usize) -> BodyLimits {
        BodyLimits { bytes, time: Duration::from_secs(30), held: HeldBytes::new(100) }
    }

    fn later() -> std::time::Instant {
        std::time::Instant::now() + Duration::from_secs(600)
    }

    fn chunks(texts: &'static [&'static str]) -> Body {
        Body::from_stream(stream::iter(texts).map(|text| Ok::<_, Infallible>(Bytes::from_static(text.as_bytes()))))
    }

    #[tokio::test]
    async fn bodies_are_whole_and_their_memory_is_given_back() {
        let limits = limits(10);
        let (bytes, share) = receive(&limits, &HeaderMap::new(), chunks(&["ab", "", "cde"]), later()).await.unwrap();
        assert_eq!((&bytes[..], limits.held.held()), (&b"abcde"[..], 5));
        drop(share);
        assert_eq!(limits.held.held(), 0);
        let error = receive(&limits, &HeaderMap::new(), chunks(&["abcdef", "ghijk"]), later()).await.unwrap_err();
        assert_eq!((error.kind, error.limit), (ProblemKind::BodyTooLarge, Some(10)));
        assert_eq!(limits.held.held(), 0);
        let many = BodyLimits { held: HeldBytes::new(4), ..limits };
        let error = receive(&many, &HeaderMap::new(), chunks(&["abc", "de"]), later()).await.unwrap_err();
        assert_eq!((error.kind, many.held.held()), (ProblemKind::QueueFull, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_are_cut() {
        let drip = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b"x"))).then(|byte| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            byte
        });
        let start = Instant::now();
        let error = receive(&limits(100), &HeaderMap::new(), Body::from_stream(drip), later()).await.unwrap_err();
        assert_eq!(error.kind, ProblemKind::SlowBody);
        assert!(start.elapsed() < Duration::from_secs(7));
        let never = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let error = receive(&limits(100), &HeaderMap::new(), never, later()).await.unwrap_err();
        assert_eq!(error.kind, ProblemKind::SlowBody);
    }
}
