//! A small S3 server for tests: buckets in memory, as much of the protocol as `object_store` uses, and faults on demand.
//! Signatures are not checked, except that requests with the key `wrong` are refused.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Faults that change nothing but the time.
#[derive(Default)]
pub struct Faults {
    /// Every so many requests is answered with the status 500; 0 for none.
    pub fail_every: AtomicUsize,
    /// The body of every so many reads is cut; 0 for none.
    pub cut_every: AtomicUsize,
    /// The delay of each answer in milliseconds.
    pub latency_ms: AtomicU64,
    /// The object of this path is written once without an answer.
    pub lost_answer: Mutex<Option<String>>,
}

#[derive(Default)]
struct Content {
    buckets: HashSet<String>,
    /// Objects by `bucket/key`.
    objects: BTreeMap<String, Object>,
    uploads: HashMap<String, BTreeMap<u32, Vec<u8>>>,
    versions: u64,
}

#[derive(Clone)]
struct Object {
    bytes: Arc<Vec<u8>>,
    etag: String,
}

/// A server that runs until the process ends.
pub struct S3Server {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    content: Mutex<Content>,
    faults: Faults,
    requests: AtomicUsize,
    reads: AtomicUsize,
    /// The most requests at the same time.
    active: AtomicUsize,
    most_active: AtomicUsize,
}

impl S3Server {
    pub fn start(buckets: &[&str]) -> S3Server {
        S3Server::start_at("127.0.0.1:0", buckets)
    }

    pub fn start_at(address: &str, buckets: &[&str]) -> S3Server {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        state.content.lock().unwrap().buckets = buckets.iter().map(|name| name.to_string()).collect();
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(&state, stream));
            }
        });
        S3Server { address, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment of a client.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ]
    }

    pub fn faults(&self) -> &Faults {
        &self.state.faults
    }

    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    pub fn most_active(&self) -> usize {
        self.state.most_active.load(Ordering::SeqCst)
    }

    pub fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state.content.lock().unwrap().put(path, bytes.into());
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.state.content.lock().unwrap().objects.get(path).map(|object| object.bytes.to_vec())
    }

    pub fn names(&self) -> Vec<String> {
        self.state.content.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Puts every file below a folder under `prefix`.
    pub fn put_folder(&self, prefix: &str, folder: &std::path::Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{prefix}/{}", path.file_name().unwrap().to_str().unwrap());
            match path.is_dir() {
                true => self.put_folder(&name, &path),
                false => self.put(&name, std::fs::read(&path).unwrap()),
            }
        }
    }
}

impl Content {
    fn put(&mut self, path: &str, bytes: Vec<u8>) -> String {
        self.versions += 1;
        let etag = format!("\"{:08x}\"", self.versions);
        self.objects.insert(path.to_owned(), Object { bytes: Arc::new(bytes), etag: etag.clone() });
        etag
    }
}

struct Request {
    method: String,
    path: String,
    query: HashMap<String, String>,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: u16) -> Answer {
        Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Answer {
        self.headers.push((name, value.to_string()));
        self
    }

    fn error(status: u16, code: &str) -> Answer {
        Answer { body: format!("<Error><Code>{code}</Code></Error>").into_bytes(), ..Answer::new(status) }
    }
}

fn serve(state: &State, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read_request(&mut reader) {
        let active = state.active.fetch_add(1, Ordering::SeqCst) + 1;
        state.most_active.fetch_max(active, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(state.faults.latency_ms.load(Ordering::Relaxed)));
        let number = state.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let every = |setting: &AtomicUsize, number: usize| {
            let every = setting.load(Ordering::Relaxed);
            every > 0 && number.is_multiple_of(every)
        };
        let answer = match every(&state.faults.fail_every, number) {
            true => Answer::error(500, "InternalError"),
            false => answer(state, &request),
        };
        let is_lost = |lost: &mut String| request.method == "PUT" && *lost == request.path;
        if state.faults.lost_answer.lock().unwrap().take_if(is_lost).is_some() {
            state.active.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let is_read = request.method == "GET" && answer.status < 300 && answer.body.len() > 1;
        let is_cut = is_read && every(&state.faults.cut_every, state.reads.fetch_add(1, Ordering::SeqCst) + 1);
        let mut head = format!("HTTP/1.1 {} X\r\n", answer.status);
        let is_head = request.method == "HEAD";
        if !is_head {
            head += &format!("Content-Length: {}\r\n", answer.body.len());
        }
        for (name, value) in &answer.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        state.active.fetch_sub(1, Ordering::SeqCst);
        let body = if is_cut { &answer.body[..answer.body.len() / 2] } else { &answer.body[..] };
        let sent = stream.write_all(head.as_bytes()).and_then(|()| match is_head {
            true => Ok(()),
            false => stream.write_all(body),
        });
        if sent.is_err() || is_cut {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut parts = line.split_whitespace();
    let (method, target) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter(|part| !part.is_empty()).map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decode(name), decode(value))
    });
    Some(Request { method, path: decode(path.trim_start_matches('/')), query: query.collect(), headers, body })
}

fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let hex = std::str::from_utf8(&[*high, *low]).map(|hex| u8::from_str_radix(hex, 16).unwrap());
                bytes.push(hex.unwrap());
                rest = after;
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn answer(state: &State, request: &Request) -> Answer {
    let credential = request.headers.get("authorization").map_or("", String::as_str);
    if credential.contains("Credential=wrong/") {
        return Answer::error(403, "InvalidAccessKeyId");
    }
    if credential.contains("Credential=reader/") && request.method == "PUT" {
        return Answer::error(403, "AccessDenied");
    }
    let mut content = state.content.lock().unwrap();
    let bucket = request.path.split('/').next().unwrap_or_default();
    if !content.buckets.contains(bucket) {
        return Answer::error(404, "NoSuchBucket");
    }
    let path = request.path.trim_end_matches('/');
    let condition = |name: &str| request.headers.get(name).cloned();
    match request.method.as_str() {
        "GET" if path == bucket => list(&content, bucket, &request.query),
        "GET" | "HEAD" => match content.objects.get(path) {
            None => Answer::error(404, "NoSuchKey"),
            Some(object) if condition("if-match").is_some_and(|etag| etag != object.etag) => {
                Answer::error(412, "PreconditionFailed")
            }
            Some(object) => read(object, &request.method, condition("range")),
        },
        "PUT" if request.query.contains_key("partNumber") => {
            let number: u32 = request.query["partNumber"].parse().unwrap();
            let id = &request.query["uploadId"];
            content.uploads.get_mut(id).unwrap().insert(number, request.body.clone());
            Answer::new(200).with("ETag", format!("\"part{number}\""))
        }
        "PUT" => {
            let found = content.objects.get(path).map(|object| object.etag.clone());
            if condition("if-match").is_some_and(|etag| Some(etag) != found) {
                return Answer::error(412, "PreconditionFailed");
            }
            let etag = content.put(path, request.body.clone());
            Answer::new(200).with("ETag", etag)
        }
        "POST" if request.query.contains_key("uploads") => {
            content.versions += 1;
            let id = format!("upload{}", content.versions);
            content.uploads.insert(id.clone(), BTreeMap::new());
            let body =
                format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
            Answer { body: body.into_bytes(), ..Answer::new(200) }
        }
        "POST" => {
            let parts = content.uploads.remove(&request.query["uploadId"]).unwrap();
            let etag = content.put(path, parts.into_values().flatten().collect());
            let body = format!("<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>");
            Answer { body: body.into_bytes(), ..Answer::new(200) }
        }
        "DELETE" => {
            content.objects.remove(path);
            Answer::new(204)
        }
        _ => Answer::error(405, "MethodNotAllowed"),
    }
}

fn read(object: &Object, method: &str, range: Option<String>) -> Answer {
    let whole = &object.bytes;
    let base = |status| {
        Answer::new(status)
            .with("ETag", &object.etag)
            .with("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            .with("Accept-Ranges", "bytes")
    };
    if method == "HEAD" {
        return base(200).with("Content-Length", whole.len());
    }
    let Some((first, last)) = range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Answer { body: whole.to_vec(), ..base(200) };
    };
    let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
    let last = last.min(whole.len() - 1);
    let answer = base(206).with("Content-Range", format!("bytes {first}-{last}/{}", whole.len()));
    Answer { body: whole[first..=last].to_vec(), ..answer }
}

/// Pages of at most 100 objects, so that clients have to ask for the next ones.
fn list(content: &Content, bucket: &str, query: &HashMap<String, String>) -> Answer {
    let prefix = format!("{bucket}/{}", query.get("prefix").map_or("", String::as_str));
    let after = query.get("continuation-token").cloned().unwrap_or_default();
    let mut found = content.objects.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
    let mut body = String::from("<ListBucketResult>");
    let mut last = String::new();
    for (name, object) in found.by_ref().filter(|(name, _)| **name > after).take(100) {
        let key = name[bucket.len() + 1..].replace('&', "&amp;");
        let (size, etag) = (object.bytes.len(), object.etag.replace('"', "&quot;"));
        body += &format!(
            "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>{etag}</ETag>\
             <Size>{size}</Size></Contents>"
        );
        last = name.clone();
    }
    if found.next().is_some() {
        body += &format!("<NextContinuationToken>{last}</NextContinuationToken><IsTruncated>true</IsTruncated>");
    }
    body += "</ListBucketResult>";
    Answer { body: body.into_bytes(), ..Answer::new(200) }
}
