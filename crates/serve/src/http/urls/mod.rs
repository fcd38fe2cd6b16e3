//! Images given by URL: refused unless the server was started with hosts to fetch from, and fetched from public addresses
//! only.

mod address;
mod fetch;

use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::App;
use super::body::HeldShare;
use super::images::{ImageSource, Sources};
use super::problem::{Problem, ProblemKind};
pub use fetch::Fetcher;

/// Fetches of one request at a time.
const AT_ONCE: usize = 4;

/// The images of all sources, and the memory of those that were fetched.
pub async fn fetch_all(
    app: &App,
    sources: Sources,
    deadline: Instant,
) -> (Vec<Result<Bytes, Problem>>, Vec<HeldShare>) {
    let fetch = |source: Result<ImageSource, Problem>| async move {
        match source? {
            ImageSource::Bytes(bytes) => Ok((bytes, None)),
            ImageSource::Url(url) => {
                let fetched = app.fetcher.fetch(&url, &app.body_limits, deadline).await;
                fetched.map(|(bytes, held)| (bytes, Some(held)))
            }
        }
    };
    let fetched: Vec<Result<_, Problem>> = stream::iter(sources).map(fetch).buffered(AT_ONCE).collect().await;
    let mut shares = Vec::new();
    let images = fetched.into_iter().map(|image| {
        image.map(|(bytes, held)| {
            shares.extend(held);
            bytes
        })
    });
    (images.collect(), shares)
}

fn refused(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::UrlRefused, detail)
}
