//! HTTP for `object_store`, on the connections of hyper and rustls.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_service::Service;

const CONNECT: Duration = Duration::from_secs(10);

/// The time until a response begins. A server may first have to store a part of 16 MiB.
const RESPONSE: Duration = Duration::from_secs(60);

/// The time between two pieces of a body.
const SILENCE: Duration = Duration::from_secs(30);

/// Redirections in a row.
const REDIRECTIONS: usize = 5;

/// Opens connections.
#[derive(Debug, Clone)]
pub(super) struct Connector(HttpsClient);

type HttpsClient = Client<HttpsConnector<ProxiedConnector>, HttpRequestBody>;

impl Connector {
    pub(super) fn new() -> Result<Connector, rustls::Error> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        // As OpenSSL: authorities of companies, and of test servers.
        if let Some(file) = std::env::var_os("SSL_CERT_FILE")
            && let Ok(certificates) = CertificateDer::pem_file_iter(file)
        {
            roots.add_parsable_certificates(certificates.flatten());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let tcp = ProxiedConnector { tcp, proxies: Arc::new(Matcher::from_env()) };
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .build(connector);
        Ok(Connector(client))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allowed = options.get_config_value(&ClientConfigKey::AllowHttp);
        let allow_http = allowed.is_some_and(|value| value == "true");
        Ok(HttpClient::new(Transport { client: self.0.clone(), allow_http, reached: AtomicBool::new(false) }))
    }
}

/// Opens TCP connections, those for HTTPS through the proxy that the environment names for the server (`HTTPS_PROXY`,
/// `NO_PROXY`). Plain HTTP is for servers nearby.
#[derive(Debug, Clone)]
struct ProxiedConnector {
    tcp: TcpConnector,
    proxies: Arc<Matcher>,
}

/// A proxy that does not connect to a server.
#[derive(Debug, thiserror::Error)]
#[error("{proxy} answers {answer}")]
pub(super) struct ProxyRefusal {
    pub(super) proxy: String,
    pub(super) answer: String,
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for ProxiedConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxedError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxedError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxedError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let is_encrypted = server.scheme_str() == Some("https");
        match self.proxies.intercept(&server).filter(|_| is_encrypted) {
            None => {
                let connection = self.tcp.call(server);
                Box::pin(async move { Ok(connection.await?) })
            }
            Some(proxy) => {
                let connection = self.tcp.call(proxy.uri().clone());
                Box::pin(async move {
                    let mut stream = connection.await?.into_inner();
                    tunnel(&mut stream, &server, &proxy).await?;
                    Ok(TokioIo::new(stream))
                })
            }
        }
    }
}

/// Has a proxy connect to a server (RFC 9110, 9.3.6).
async fn tunnel(stream: &mut TcpStream, server: &Uri, proxy: &Intercept) -> Result<(), BoxedError> {
    let address = format!("{}:{}", server.host().unwrap_or_default(), server.port_u16().unwrap_or(443));
    let mut request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n");
    if let Some(credentials) = proxy.basic_auth().and_then(|value| value.to_str().ok()) {
        request += &format!("Proxy-Authorization: {credentials}\r\n");
    }
    stream.write_all((request + "\r\n").as_bytes()).await?;
    // The server speaks after the client has, so all bytes up to the first request are the proxy's.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") && answer.len() < 16 << 10 {
        answer.push(stream.read_u8().await?);
    }
    let status = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let status = String::from_utf8_lossy(status);
    let status = status.split_once(' ').map_or(&*status, |(_, status)| status);
    if status.starts_with('2') {
        return Ok(());
    }
    let proxy = proxy.uri().authority().map_or_else(String::new, ToString::to_string);
    Err(ProxyRefusal { proxy, answer: status.to_owned() }.into())
}

#[derive(Debug)]
struct Transport {
    client: HttpsClient,
    allow_http: bool,
    /// Whether a server has answered. Before that a failed connection is not repeated: a wrong name or endpoint should be
    /// reported at once.
    reached: AtomicBool,
}

/// No connection to a server.
#[derive(Debug, thiserror::Error)]
#[error("no connection")]
pub(super) struct NotConnected(#[source] hyper_util::client::legacy::Error);

/// Requests without encryption are not allowed.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint has no encryption")]
pub(super) struct PlainHttp;

#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct NoAnswer(Duration);

#[async_trait::async_trait]
impl HttpService for Transport {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        for _ in 0..REDIRECTIONS {
            if !self.allow_http && request.uri().scheme_str() != Some("https") {
                return Err(HttpError::new(HttpErrorKind::Unknown, PlainHttp));
            }
            let again = redirectable(&request);
            let answer = tokio::time::timeout(RESPONSE, self.client.request(request)).await;
            let answer = answer
                .map_err(|_| HttpError::new(HttpErrorKind::Timeout, NoAnswer(RESPONSE)))?
                .map_err(|error| self.failed(error))?;
            self.reached.store(true, Ordering::Relaxed);
            match again.and_then(|again| redirection(again, &answer)) {
                Some(next) => request = next,
                None => {
                    let (parts, body) = answer.into_parts();
                    let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
                    let body = TimedBody { body: HttpResponseBody::new(body), silence: None };
                    return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
                }
            }
        }
        let message = std::io::Error::other("too many redirections");
        Err(HttpError::new(HttpErrorKind::Unknown, message))
    }
}

impl Transport {
    fn failed(&self, error: hyper_util::client::legacy::Error) -> HttpError {
        match (error.is_connect(), self.reached.load(Ordering::Relaxed)) {
            (false, _) => HttpError::new(HttpErrorKind::Request, error),
            (true, true) => HttpError::new(HttpErrorKind::Connect, NotConnected(error)),
            (true, false) => HttpError::new(HttpErrorKind::Unknown, NotConnected(error)),
        }
    }
}

/// A copy of a request that a redirection may repeat: one that reads and is not signed for its server.
fn redirectable(request: &HttpRequest) -> Option<HttpRequest> {
    let reads = [http::Method::GET, http::Method::HEAD].contains(request.method());
    (reads && !request.headers().contains_key(http::header::AUTHORIZATION)).then(|| request.clone())
}

fn redirection<B>(mut request: HttpRequest, answer: &http::Response<B>) -> Option<HttpRequest> {
    let is_one = answer.status().is_redirection() && answer.status() != http::StatusCode::NOT_MODIFIED;
    let target: http::Uri = answer.headers().get(http::header::LOCATION)?.to_str().ok()?.parse().ok()?;
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = target.scheme().cloned().or(parts.scheme);
    parts.authority = target.authority().cloned().or(parts.authority);
    parts.path_and_query = target.path_and_query().cloned();
    *request.uri_mut() = http::Uri::from_parts(parts).ok()?;
    request.headers_mut().remove(http::header::HOST);
    is_one.then_some(request)
}

/// A body that fails if the server is silent for too long.
struct TimedBody {
    body: HttpResponseBody,
    silence: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.silence = None;
            return Poll::Ready(frame);
        }
        let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(SILENCE)));
        silence.as_mut().poll(context).map(|()| Some(Err(HttpError::new(HttpErrorKind::Timeout, NoAnswer(SILENCE)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
