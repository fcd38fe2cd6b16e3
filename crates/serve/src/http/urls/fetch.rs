//! One GET request over HTTP or HTTPS, with redirects. Every hop is checked anew, and the connection goes to the very
//! address that was checked, so that a name cannot resolve to another one in between.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT};
use axum::http::uri::{Authority, Scheme};
use axum::http::{Request, Response, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout_at;
use tokio_rustls::TlsConnector;

use super::address::is_public;
use super::refused;
use crate::http::body::{BodyLimits, HeldShare, receive};
use crate::http::problem::{Problem, ProblemKind};

const MAX_REDIRECTS: usize = 3;
const LONGEST_URL: usize = 2048;
/// The time of one fetch, redirects included.
const TIME: Duration = Duration::from_secs(10);

/// Fetches images from certain hosts.
pub struct Fetcher {
    /// `example.org`, or `example.org:8443` for another port than the scheme's own.
    hosts: Vec<String>,
    tls: TlsConnector,
    admits: fn(IpAddr) -> bool,
}

impl Fetcher {
    pub fn new(hosts: &[String]) -> Self {
        Self::with_policy(hosts, is_public)
    }

    fn with_policy(hosts: &[String], admits: fn(IpAddr) -> bool) -> Self {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let hosts = hosts.iter().map(|host| host.trim().to_ascii_lowercase()).collect();
        Self { hosts, tls: TlsConnector::from(Arc::new(config)), admits }
    }

    /// The body at a URL. The share of memory must live as long as the bytes.
    pub async fn fetch(
        &self,
        url: &str,
        limits: &BodyLimits,
        deadline: Instant,
    ) -> Result<(Bytes, HeldShare), Problem> {
        if self.hosts.is_empty() {
            return Err(refused("This server fetches no URLs; send the image itself."));
        }
        let deadline = deadline.min(Instant::now() + TIME);
        let fetch = async {
            let response = self.follow(url).await?;
            let (parts, body) = response.into_parts();
            receive(limits, &parts.headers, Body::new(body), deadline).await.map_err(from_fetch)
        };
        let late = |_| refused("The URL did not answer in time.");
        timeout_at(deadline.into(), fetch).await.map_err(late)?
    }

    async fn follow(&self, url: &str) -> Result<Response<Incoming>, Problem> {
        let mut target = UrlTarget::parse(url)?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get(&target).await?;
            match response.status() {
                StatusCode::OK => return Ok(response),
                status if status.is_redirection() => {
                    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
                    target = target.redirected(location.unwrap_or_default())?;
                }
                status => return Err(refused(format!("The URL answers with status {}.", status.as_u16()))),
            }
        }
        Err(refused(format!("The URL redirects more than {MAX_REDIRECTS} times.")))
    }

    async fn get(&self, target: &UrlTarget) -> Result<Response<Incoming>, Problem> {
        if !self.hosts.contains(&target.listed_as()) {
            return Err(refused("The host of the URL is not one that this server fetches from."));
        }
        let stream = TcpStream::connect(self.resolve(target).await?).await.map_err(unreachable)?;
        if target.scheme == Scheme::HTTP {
            return request(stream, target).await;
        }
        let name =
            ServerName::try_from(target.host().to_string()).map_err(|_| refused("The URL has no valid host."))?;
        request(self.tls.connect(name, stream).await.map_err(unreachable)?, target).await
    }

    /// An address of the host, if all of them are admitted: a name that also leads elsewhere is not to be trusted.
    async fn resolve(&self, target: &UrlTarget) -> Result<SocketAddr, Problem> {
        let addresses: Vec<SocketAddr> = match target.host().parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, target.port())],
            Err(_) => lookup_host((target.host(), target.port())).await.map_err(unreachable)?.collect(),
        };
        match addresses.first() {
            Some(first) if addresses.iter().all(|address| (self.admits)(address.ip())) => Ok(*first),
            Some(_) => Err(refused("The host of the URL has an address that is not public.")),
            None => Err(refused("The host of the URL has no address.")),
        }
    }
}

/// Errors say no more than needed: their texts would tell clients about the server's network.
fn unreachable(error: impl std::fmt::Display) -> Problem {
    tracing::debug!(%error, "a URL was not fetched");
    refused("The URL cannot be reached.")
}

/// Limits of bodies are the same for fetched images, but the client is not the one who exceeded them.
fn from_fetch(problem: Problem) -> Problem {
    match problem.kind {
        ProblemKind::BodyTooLarge => refused("The image at the URL is too large."),
        ProblemKind::SlowBody | ProblemKind::Malformed | ProblemKind::Deadline => {
            refused("The image at the URL did not arrive as a whole.")
        }
        _ => problem,
    }
}

async fn request<S>(stream: S, target: &UrlTarget) -> Result<Response<Incoming>, Problem>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
    tokio::spawn(connection);
    let request = Request::get(&target.path)
        .header(HOST, target.authority.as_str())
        .header(USER_AGENT, concat!("vit/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "image/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(unreachable)?;
    sender.send_request(request).await.map_err(unreachable)
}

/// The parts of a URL.
#[derive(Debug, PartialEq)]
struct UrlTarget {
    scheme: Scheme,
    authority: Authority,
    /// Path and query.
    path: String,
}

impl UrlTarget {
    fn parse(url: &str) -> Result<Self, Problem> {
        let uri: Option<Uri> = if url.len() > LONGEST_URL { None } else { url.parse().ok() };
        let parts = uri.ok_or_else(|| refused("The URL is not valid."))?.into_parts();
        let scheme = parts.scheme.filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let authority = parts.authority.filter(|authority| !authority.as_str().contains('@'));
        let path = parts.path_and_query.map_or_else(|| "/".into(), |path| path.to_string());
        match (scheme, authority) {
            (Some(scheme), Some(authority)) if !authority.host().is_empty() => Ok(Self { scheme, authority, path }),
            _ => Err(refused("A URL should be http:// or https://, without a user name.")),
        }
    }

    /// The target of a `Location`: a URL, or a path of the same host.
    fn redirected(&self, location: &str) -> Result<Self, Problem> {
        match location.starts_with('/') && !location.starts_with("//") {
            true => Self::parse(&format!("{}://{}{location}", self.scheme, self.authority)),
            false => Self::parse(location),
        }
    }

    /// Without the brackets of IPv6 addresses.
    fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    fn port(&self) -> u16 {
        let usual = if self.scheme == Scheme::HTTP { 80 } else { 443 };
        self.authority.port_u16().unwrap_or(usual)
    }

    /// The host, with the port if it is not the scheme's own.
    fn listed_as(&self) -> String {
        let host = self.authority.host().to_ascii_lowercase();
        let usual = if self.scheme == Scheme::HTTP { 80 } else { 443 };
        if self.port() == usual { host } else { format!("{host}:{}", self.port()) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::http::body::HeldBytes;

    /// A server that gives every connection the same answer.
    async fn server(answer: String) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        address
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn to(location: &str) -> String {
        format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
    }

    async fn fetched(fetcher: &Fetcher, url: &str) -> Result<Bytes, String> {
        let limits = BodyLimits { bytes: 10, time: TIME, held: HeldBytes::new(100) };
        let deadline = Instant::now() + TIME;
        fetcher.fetch(url, &limits, deadline).await.map(|(bytes, _)| bytes).map_err(|problem| problem.detail)
    }

    #[tokio::test]
    async fn listed_hosts_are_fetched_and_redirects_are_followed() {
        let image = server(ok("image")).await;
        let hop = server(to(&format!("http://{image}/image"))).await;
        let large = server(ok("more than ten")).await;
        let endless = server(to("/again")).await;
        let hosts = [image, hop, large, endless].map(|address| address.to_string());
        let fetcher = Fetcher::with_policy(&hosts, |_| true);
        for address in [image, hop] {
            assert_eq!(fetched(&fetcher, &format!("http://{address}/")).await.unwrap(), "image");
        }
        assert!(fetched(&fetcher, &format!("http://{large}/")).await.unwrap_err().contains("too large"));
        assert!(fetched(&fetcher, &format!("http://{endless}/")).await.unwrap_err().contains("redirects more"));
        let unlisted = Fetcher::with_policy(&[hop.to_string()], |_| true);
        assert!(fetched(&unlisted, &format!("http://{image}/")).await.unwrap_err().contains("not one that"));
        assert!(fetched(&unlisted, &format!("http://{hop}/")).await.unwrap_err().contains("not one that"));
    }

    #[tokio::test]
    async fn private_addresses_are_refused_at_every_hop() {
        let image = server(ok("image")).await;
        let port = image.port();
        let public = Fetcher::new(&[image.to_string(), format!("localhost:{port}")]);
        for url in [format!("http://{image}/"), format!("http://localhost:{port}/")] {
            assert!(fetched(&public, &url).await.unwrap_err().contains("not public"), "{url}");
        }
        let hop = server(to(&format!("http://127.0.0.2:{port}/"))).await;
        let hosts = [hop.to_string(), format!("127.0.0.2:{port}")];
        let first_only = Fetcher::with_policy(&hosts, |address| address == IpAddr::from([127, 0, 0, 1]));
        assert!(fetched(&first_only, &format!("http://{hop}/")).await.unwrap_err().contains("not public"));
    }

    #[tokio::test]
    async fn other_urls_are_refused() {
        let none = Fetcher::new(&[]);
        assert!(fetched(&none, "https://example.org/a.png").await.unwrap_err().contains("fetches no URLs"));
        let fetcher = Fetcher::new(&["example.org".into()]);
        for url in ["ftp://example.org/", "http://user@example.org/", "http://", "http:///x", "//example.org", "x y"] {
            assert!(fetched(&fetcher, url).await.is_err(), "{url}");
        }
        for (url, listed) in [
            ("http://Example.org/a", "example.org"),
            ("https://example.org:443", "example.org"),
            ("https://example.org:80/", "example.org:80"),
            ("http://[::1]:8/", "[::1]:8"),
        ] {
            assert_eq!(UrlTarget::parse(url).unwrap().listed_as(), listed);
        }
    }
}
