//! A small HTTP/1.1 client over a plain socket, so that tests can also send what no library would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// Reads one answer.
    pub fn read(stream: &mut impl Read) -> Option<Reply> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).ok()?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| line.split_once(':').map(|(n, v)| (n.trim().to_lowercase(), v.trim().to_string()));
        let mut reply = Reply { status, headers: lines.filter_map(header).collect(), body: Vec::new() };
        if let Some(length) = reply.header("content-length") {
            reply.body = vec![0; length.parse().ok()?];
            stream.read_exact(&mut reply.body).ok()?;
        }
        Some(reply)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The problem document of an error; checks what all of them have in common.
    pub fn problem(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        assert_eq!(problem["instance"].as_str(), self.header("x-request-id"));
        assert!(
            problem["title"].is_string() && problem["detail"].as_str().is_some_and(|d| d.ends_with('.')),
            "{problem}"
        );
        problem
    }

    /// The last segment of a problem's type.
    pub fn kind(&self) -> String {
        self.problem()["type"].as_str().unwrap().trim_start_matches("/problems/").into()
    }
}

/// A request.
pub struct Call {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

pub fn get(path: &str) -> Call {
    Call { method: "GET", path: path.into(), headers: vec![], body: vec![] }
}

pub fn post(path: &str, content_type: &str, body: impl Into<Vec<u8>>) -> Call {
    Call { method: "POST", body: body.into(), ..get(path) }.header("Content-Type", content_type)
}

pub fn post_json(path: &str, body: &Value) -> Call {
    post(path, "application/json", body.to_string())
}

impl Call {
    pub fn method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The bytes of the request.
    pub fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: test\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() || self.method == "POST" {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }

    /// Sends the request on a connection of its own.
    pub fn send(&self, address: SocketAddr) -> Reply {
        let mut stream = connect(address);
        // A server may refuse a body before it has read all of it.
        let _ = stream.write_all(&self.bytes());
        match self.method {
            "HEAD" => Reply { body: vec![], ..read_head(&mut stream) },
            _ => Reply::read(&mut stream).unwrap_or_else(|| panic!("{} {}: no answer", self.method, self.path)),
        }
    }
}

fn read_head(stream: &mut TcpStream) -> Reply {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let without_length = String::from_utf8(head).unwrap().to_lowercase().replace("content-length", "x-length");
    Reply::read(&mut without_length.as_bytes()).unwrap()
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// A form of parts with a head (`name="top"`) and a content.
pub fn form(path: &str, parts: &[(&str, &[u8])]) -> Call {
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend_from_slice(format!("--BOUNDARY\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--BOUNDARY--\r\n");
    post(path, "multipart/form-data; boundary=BOUNDARY", body)
}
