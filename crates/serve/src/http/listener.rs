//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them, with or without TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::ServiceExt;

use super::{App, Peer};

const HANDSHAKE: Duration = Duration::from_secs(10);
/// After a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);
const STREAMS_PER_CONNECTION: u32 = 100;
const HEADER_BYTES: usize = 64 << 10;
/// Silence on a connection beyond the time of a request.
const SILENCE: Duration = Duration::from_secs(30);

/// Serves until `stop` becomes true, then finishes the requests in flight.
pub async fn serve(app: Arc<App>, listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(app.options.max_connections.max(1)));
    let http = Arc::new(builder(&app));
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (app, http, router, watcher) = (app.clone(), http.clone(), router.clone(), graceful.watcher());
                tokio::spawn(async move {
                    connection(&app, &http, router, stream, peer, watcher).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    if timeout(app.options.shutdown_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were not finished in time");
    }
}

fn builder(app: &App) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(app.options.header_timeout).max_buf_size(HEADER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_header_list_size(HEADER_BYTES as u32)
        .keep_alive_interval(app.options.header_timeout);
    http
}

async fn connection(
    app: &App,
    http: &Builder<TokioExecutor>,
    router: Router,
    stream: TcpStream,
    peer: SocketAddr,
    watcher: Watcher,
) {
    // Answers are written at once; waiting for more to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let stream = SilenceLimit::new(stream, app.options.timeout + SILENCE);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request.map(Body::new))
    });
    let outcome = match &app.tls {
        None => watcher.watch(http.serve_connection(TokioIo::new(stream), service).into_owned()).await,
        Some(tls) => match timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => watcher.watch(http.serve_connection(TokioIo::new(stream), service).into_owned()).await,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err("the TLS handshake took too long".into()),
        },
    };
    if let Err(error) = outcome {
        tracing::debug!(%peer, error, "a connection broke");
    }
}

/// A stream that fails after a time without any byte in either direction: a client that neither sends nor reads.
struct SilenceLimit {
    stream: TcpStream,
    limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl SilenceLimit {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit, timer: Box::pin(sleep_until(Instant::now() + limit)) }
    }

    fn heard(&mut self) {
        let until = Instant::now() + self.limit;
        self.timer.as_mut().reset(until);
    }

    fn silent<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for SilenceLimit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(outcome) => {
                self.heard();
                Poll::Ready(outcome)
            }
            Poll::Pending => self.silent(context),
        }
    }
}

impl AsyncWrite for SilenceLimit {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(outcome) => {
                self.heard();
                Poll::Ready(outcome)
            }
            Poll::Pending => self.silent(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, slices) {
            Poll::Ready(outcome) => {
                self.heard();
                Poll::Ready(outcome)
            }
            Poll::Pending => self.silent(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
