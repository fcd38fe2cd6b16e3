//! `vit serve`: the server as a user starts it.

#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{command, image, model, vit};

/// A running server, killed when dropped.
struct Service {
    child: Child,
    address: String,
}

/// A status, the headers and the body.
struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }
}

impl Service {
    /// Starts a server on a free port and waits for the line with its address.
    fn start(arguments: &[&str]) -> Service {
        let mut command = command();
        command.args(["serve", "--bind", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("no address: {line:?}")).to_string();
        Service { child, address }
    }

    /// Sends a request on a connection of its own.
    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        read(send(&self.address, method, path, headers, body))
    }

    fn classify(&self, path: &Path, query: &str) -> Response {
        let body = std::fs::read(path).unwrap();
        self.send("POST", &format!("/v1/classify{query}"), "Content-Type: image/jpeg\r\n", &body)
    }

    fn signal(&self, name: &str) {
        let done = std::process::Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(done.unwrap().success());
    }

    /// The exit status and what was printed on standard error.
    fn wait(mut self) -> (i32, String) {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code().expect("ended by a signal"), text)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(address: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> Response {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|part| part == b"\r\n\r\n").expect("a whole head") + 4;
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head, body: all[end..].to_vec() }
}

#[test]
fn answers_are_those_of_vit_classify() {
    let service = Service::start(&["--model", &format!("a={}", model("timm_vit").display())]);
    let photo = image("preprocess/tiny.jpg");
    let answer = service.classify(&photo, "?top=3");
    assert_eq!(answer.status, 200, "{}", answer.head);
    let line =
        &vit(arguments!["classify", "-m", model("timm_vit"), &photo, "-k", "3", "--json"]).code(0).json_lines()[0];
    assert_eq!(answer.json()["results"][0]["predictions"], line["predictions"]);
    assert_eq!(answer.json()["model"], "a");
    let bad = service.send("POST", "/v1/classify", "Content-Type: image/jpeg\r\n", b"not an image");
    assert_eq!(bad.status / 100, 4);
    assert!(bad.head.contains("application/problem+json"), "{}", bad.head);
    assert_eq!(service.send("GET", "/", "", b"").status, 200);
    assert_eq!(service.send("GET", "/health/ready", "", b"").status, 200);
}

#[test]
fn a_signal_to_stop_answers_what_is_in_and_ends_with_0() {
    let service = Service::start(&[]);
    let photo = std::fs::read(image("preprocess/usual.jpg")).unwrap();
    let request = || send(&service.address, "POST", "/v1/classify", "Content-Type: image/jpeg\r\n", &photo);
    let waiting: Vec<TcpStream> = (0..16).map(|_| request()).collect();
    // All of them are in, or at least in the kernel's queue of a connection that was accepted.
    assert_eq!(service.send("GET", "/health/live", "", b"").status, 200);
    std::thread::sleep(Duration::from_millis(50));
    service.signal("-TERM");
    for stream in waiting {
        let answer = read(stream);
        assert_eq!(answer.status, 200, "{}", answer.head);
    }
    let (code, err) = service.wait();
    assert_eq!(code, 0, "{err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn a_hangup_loads_changed_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pets");
    std::fs::create_dir(&path).unwrap();
    let weights = path.join("model.safetensors");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(model("timm_vit").join(name), path.join(name)).unwrap();
    }
    let service = Service::start(&["--model", path.to_str().unwrap()]);
    let version = || {
        let model = &service.send("GET", "/v1/models", "", b"").json()["models"][0];
        assert_eq!(model["name"], "pets");
        model["version"].as_str().unwrap().to_string()
    };
    let first = version();
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    service.signal("-HUP");
    let begun = Instant::now();
    while version() == first {
        assert!(begun.elapsed() < Duration::from_secs(30), "the model was not loaded anew");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A broken model leaves the one in place that works.
    let second = version();
    std::fs::write(&weights, "broken").unwrap();
    service.signal("-HUP");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(service.classify(&image("preprocess/tiny.jpg"), "").status, 200);
    assert_eq!(version(), second);
    service.signal("-TERM");
    let (code, err) = service.wait();
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("pets") && err.contains("model.safetensors"), "the log names the broken model: {err}");
}

#[test]
fn what_cannot_be_served_is_said_with_what_to_type() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = vit(["serve", "--bind", &address]).code(1);
    assert!(run.err.contains(&address) && run.err.contains("in use") && run.err.contains("--bind"), "{}", run.err);

    let run = vit(["serve", "--model", "pets=nowhere"]).code(1);
    assert!(run.err.contains("nowhere: no such file or folder") && run.err.contains("cifar10"), "{}", run.err);
    let run = vit(["serve", "--model", "vit_base_patch16_224"]).code(1);
    assert!(run.err.contains("architecture without weights"), "{}", run.err);
    let run = vit(["serve", "--model", "cifar10", "--model", "cifar10"]).code(1);
    assert!(run.err.contains("two models are named `cifar10`") && run.err.contains("--model NAME="), "{}", run.err);

    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    std::fs::write(&keys, "\n\n").unwrap();
    for file in [&keys, &folder.path().join("missing.txt")] {
        let run = vit(arguments!["serve", "--bind", "127.0.0.1:0", "--api-key-file", file]).code(1);
        assert!(run.err.contains(file.to_str().unwrap()), "{}", run.err);
    }

    for (wrong, hint) in [
        (vec!["--bind", "8000"], "HOST:PORT"),
        (vec!["--max-delay", "soon"], "5ms"),
        (vec!["--max-body", "huge"], "20MB"),
        (vec!["--cors", "example.org"], "https://example.org"),
        (vec!["--tls-cert", "a.pem"], "--tls-key"),
        (vec!["--device", "tpu"], "cuda"),
        (vec!["--max-batch", "0"], "1"),
    ] {
        let run = vit([vec!["serve"], wrong.clone()].concat()).code(2);
        assert!(run.err.contains(hint), "{wrong:?}: {}", run.err);
    }
}

#[test]
fn keys_guard_the_routes_but_not_the_probes() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    std::fs::write(&keys, "# for the tests\nsecret-1\nsecret-2\n").unwrap();
    let service = Service::start(&["--api-key-file", keys.to_str().unwrap()]);
    assert_eq!(service.send("GET", "/health/ready", "", b"").status, 200);
    assert_eq!(service.send("GET", "/v1/models", "", b"").status, 401);
    assert_eq!(service.send("GET", "/v1/models", "Authorization: Bearer secret-3\r\n", b"").status, 401);
    assert_eq!(service.send("GET", "/v1/models", "Authorization: Bearer secret-2\r\n", b"").status, 200);
}
