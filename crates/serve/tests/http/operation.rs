//! Keys, TLS, headers, health, metrics, administration, shutdown, the page.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use vit_serve::{ServeError, ServeOptions, Server, TlsFiles, page};

use crate::client::{Reply, connect, get, post};
use crate::{image, options, server};

#[test]
fn keys_are_required_where_there_are_keys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "first\nsecond\n").unwrap();
    let server = Server::start(ServeOptions { api_key_file: Some(file.clone()), ..options() }).unwrap();
    let address = server.address();
    for open in ["/", "/docs", "/openapi.json", "/health/live", "/health/ready", "/v2/health/live"] {
        assert_eq!(get(open).send(address).status, 200, "{open}");
    }
    for keyed in ["/v1/models", "/v2", "/v2/models/cifar10", "/metrics"] {
        let reply = get(keyed).send(address);
        assert_eq!((reply.status, reply.kind().as_str()), (401, "api-key"), "{keyed}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert_eq!(get(keyed).header("X-API-Key", "third").send(address).status, 401);
        assert_eq!(get(keyed).header("X-API-Key", "first").send(address).status, 200);
        assert_eq!(get(keyed).header("Authorization", "Bearer second").send(address).status, 200);
    }
    assert_eq!(post("/v1/classify", "image/jpeg", image("dog.jpg")).send(address).status, 401);
    std::fs::write(&file, "third\n").unwrap();
    assert_eq!(post("/admin/reload", "", "").header("X-API-Key", "first").send(address).status, 200);
    assert_eq!(get("/v1/models").header("X-API-Key", "first").send(address).status, 401);
    assert_eq!(get("/v1/models").header("X-API-Key", "third").send(address).status, 200);
    server.shutdown();
}

#[test]
fn connections_can_be_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let files = TlsFiles { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    std::fs::write(&files.certificate, certified.cert.pem()).unwrap();
    std::fs::write(&files.key, certified.signing_key.serialize_pem()).unwrap();
    let server = Server::start(ServeOptions { tls: Some(files.clone()), ..options() }).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certified.cert.der().to_vec())).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = StreamOwned::new(client, connect(server.address()));
    stream.write_all(&post("/v1/classify", "image/jpeg", image("dog.jpg")).bytes()).unwrap();
    let reply = Reply::read(&mut stream).unwrap();
    assert_eq!(reply.json()["results"][0]["predictions"][0]["label"], "dog");
    // Plain HTTP gets no answer.
    let mut plain = connect(server.address());
    plain.write_all(&get("/health/live").bytes()).unwrap();
    assert!(Reply::read(&mut plain).is_none());
    server.shutdown();

    std::fs::write(&files.key, "no key").unwrap();
    let error = Server::start(ServeOptions { tls: Some(files), ..options() }).err().unwrap();
    assert!(matches!(error, ServeError::Tls { .. }), "{error}");
}

#[test]
fn ids_and_traces_come_back() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let reply = get("/health/live").header("X-Request-Id", "mine-1").header("traceparent", trace).send(server());
    assert_eq!((reply.header("x-request-id"), reply.header("traceparent")), (Some("mine-1"), Some(trace)));
    let reply = get("/nothing").header("X-Request-Id", "<b>").header("traceparent", "junk").send(server());
    assert!(reply.header("x-request-id").is_some_and(|id| id.len() == 32) && reply.header("traceparent").is_none());
    assert_eq!(reply.kind(), "not-found");
}

#[test]
fn answers_carry_security_headers() {
    for path in ["/", "/docs", "/v1/models", "/nothing"] {
        let reply = get(path).send(server());
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(reply.header("access-control-allow-origin").is_none());
    }
}

#[test]
fn other_origins_are_admitted_if_asked_for() {
    let origins = vec!["https://example.org".to_string()];
    let server = Server::start(ServeOptions { cors_origins: origins, ..options() }).unwrap();
    let from = |origin: &str| {
        let call = get("/v1/classify").method("OPTIONS").header("Origin", origin);
        call.header("Access-Control-Request-Method", "POST").send(server.address())
    };
    let reply = from("https://example.org");
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://example.org"));
    assert!(from("https://example.com").header("access-control-allow-origin").is_none());
    server.shutdown();
    let wrong = ServeOptions { cors_origins: vec!["example.org".into()], ..options() };
    assert!(matches!(Server::start(wrong).err(), Some(ServeError::Origin(_))));
}

#[test]
fn the_page_is_served_and_cached() {
    for asset in page::assets() {
        let reply = get(asset.path).send(server());
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(asset.content_type)));
        assert!(reply.body == asset.body);
        let again = get(asset.path).header("If-None-Match", asset.etag.as_str()).send(server());
        assert_eq!((again.status, again.body.len()), (304, 0));
        assert_eq!(get(asset.path).method("HEAD").send(server()).status, 200);
    }
}

#[test]
fn metrics_count_what_happened() {
    let server = Server::start(options()).unwrap();
    let address = server.address();
    post("/v1/classify", "image/jpeg", image("dog.jpg")).send(address);
    post("/v1/classify", "image/jpeg", "junk").send(address);
    get("/unknown").send(address);
    let reply = get("/metrics").send(address);
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for line in [
        r#"vit_http_requests_total{route="/v1/classify",method="POST",status="200"} 1"#,
        r#"vit_http_requests_total{route="/v1/classify",method="POST",status="422"} 1"#,
        r#"vit_http_requests_total{route="unmatched",method="GET",status="404"} 1"#,
        r#"vit_images_total{model="cifar10",outcome="answered"} 1"#,
        r#"vit_images_total{model="cifar10",outcome="invalid-image"} 1"#,
        r#"vit_http_request_duration_seconds_count{route="/v1/classify"} 2"#,
        r#"vit_image_batch_size_bucket{model="cifar10",le="1"} 1"#,
        r#"vit_image_compute_seconds_count{model="cifar10"} 1"#,
        r#"vit_model_up{model="cifar10"} 1"#,
        r#"vit_queue_images{model="cifar10"} 0"#,
        "vit_build_info{version=",
        "process_resident_memory_bytes ",
    ] {
        assert!(reply.text().contains(line), "{line}\n{}", reply.text());
    }
    server.shutdown();
}

#[test]
fn administration_can_have_an_address_of_its_own() {
    let admin_bind = Some("127.0.0.1:0".parse().unwrap());
    let server = Server::start(ServeOptions { admin_bind, ..options() }).unwrap();
    let (public, admin) = (server.address(), server.admin_address().unwrap());
    assert_eq!(get("/metrics").send(public).status, 404);
    assert_eq!(post("/admin/reload", "", "").send(public).status, 404);
    assert_eq!(get("/v1/models").send(admin).status, 404);
    assert_eq!((get("/metrics").send(admin).status, get("/health/ready").send(admin).status), (200, 200));
    let answer = post("/admin/reload", "", "").send(admin).json();
    assert_eq!(answer["models"][0]["name"], "cifar10");
    assert!(answer["models"][0]["version"].is_string());
    let reply = post("/admin/reload", "", "").header("Origin", "https://example.org").send(admin);
    assert_eq!((reply.status, reply.kind().as_str()), (403, "forbidden"));
    server.shutdown();
}

#[test]
fn public_addresses_reload_only_with_keys() {
    let server = Server::start(ServeOptions { bind: "0.0.0.0:0".parse().unwrap(), ..options() }).unwrap();
    let address = ([127, 0, 0, 1], server.address().port()).into();
    assert_eq!(post("/admin/reload", "", "").send(address).kind(), "forbidden");
    server.shutdown();
}

#[test]
fn an_address_in_use_is_an_error() {
    let error = Server::start(ServeOptions { bind: server(), ..options() }).err().unwrap();
    assert!(matches!(error, ServeError::Bind { .. }), "{error}");
}

#[test]
fn shutdown_finishes_the_requests_in_flight() {
    let server = Server::start(options()).unwrap();
    let address = server.address();
    let whole = post("/v1/classify", "image/jpeg", image("dog.jpg")).bytes();
    let mut stream = connect(address);
    stream.write_all(&whole[..whole.len() - 1]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let ending = std::thread::spawn(|| server.shutdown());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!ending.is_finished() && TcpStream::connect(address).is_err());
    stream.write_all(&whole[whole.len() - 1..]).unwrap();
    assert_eq!(Reply::read(&mut stream).unwrap().status, 200);
    ending.join().unwrap();
}

#[test]
fn the_document_describes_the_api() {
    let document = get("/openapi.json").send(server()).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let classify = &document["paths"]["/v1/classify"]["post"];
    for status in ["200", "400", "401", "404", "408", "413", "415", "422", "429", "500", "503", "504"] {
        assert!(classify["responses"][status].is_object(), "{status}");
    }
    assert_eq!(
        classify["responses"]["422"]["content"]["application/problem+json"]["schema"],
        json!({"$ref": "#/components/schemas/Problem"})
    );
    let mut ids: Vec<&str> = Vec::new();
    for path in document["paths"].as_object().unwrap().values() {
        ids.extend(path.as_object().unwrap().values().filter_map(|operation| operation["operationId"].as_str()));
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are distinct");
}
