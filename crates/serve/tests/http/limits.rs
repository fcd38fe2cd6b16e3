//! Limits of size and time, and clients that do not keep to the rules.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use vit_serve::{ServeOptions, Server};

use crate::client::{Reply, connect, form, get, post};
use crate::{image, options, server};

fn strict() -> Server {
    let second = Duration::from_secs(1);
    let options = ServeOptions {
        max_body_bytes: 100_000,
        max_images: 2,
        max_connections: 4,
        header_timeout: second,
        body_timeout: second,
        ..options()
    };
    Server::start(options).unwrap()
}

#[test]
fn bodies_and_times_are_limited() {
    let server = strict();
    let address = server.address();
    let call = post("/v1/classify", "image/jpeg", vec![0; 100_001]);
    let reply = call.send(address);
    assert_eq!((reply.status, reply.problem()["limit"].as_u64()), (413, Some(100_000)));

    // Without a length, the bytes that arrive are counted.
    let mut stream = connect(address);
    let head =
        "POST /v1/classify HTTP/1.1\r\nHost: test\r\nContent-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [b"4000\r\n".as_slice(), &[7; 0x4000], b"\r\n"].concat();
    while stream.write_all(&chunk).is_ok() {}
    drop(stream);

    let claimed =
        "POST /v1/classify HTTP/1.1\r\nHost: test\r\nContent-Type: image/jpeg\r\nContent-Length: 90000\r\n\r\nhalf";
    let start = Instant::now();
    let mut stream = connect(address);
    stream.write_all(claimed.as_bytes()).unwrap();
    assert_eq!(Reply::read(&mut stream).unwrap().kind(), "slow-body");
    assert!(start.elapsed() < Duration::from_secs(10));

    let start = Instant::now();
    let mut stream = connect(address);
    stream.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(start.elapsed() < Duration::from_secs(10), "a slow header keeps its connection");

    let dog = image("dog.jpg");
    assert_eq!(form("/v1/classify", &[("name=\"image\"", dog.as_slice()); 3]).send(address).kind(), "too-many-images");
    assert_eq!(post("/v1/classify", "image/jpeg", dog).send(address).status, 200);
    server.shutdown();
}

#[test]
fn connections_beyond_the_limit_wait() {
    let server = strict();
    let silent: Vec<_> = (0..4).map(|_| connect(server.address())).collect();
    let waiting = std::thread::spawn({
        let address = server.address();
        move || get("/health/live").send(address).status
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    drop(silent);
    assert_eq!(waiting.join().unwrap(), 200);
    server.shutdown();
}

#[test]
fn a_deadline_that_has_passed_is_answered_with_504() {
    let call = post("/v1/classify", "image/jpeg", image("dog.jpg")).header("X-Request-Timeout", "0.000001");
    let reply = call.send(server());
    assert_eq!((reply.status, reply.kind().as_str()), (504, "deadline"));
    let call = post("/v1/classify", "image/jpeg", image("dog.jpg")).header("X-Request-Timeout", "20000ms");
    assert_eq!(call.send(server()).status, 200);
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let server = Server::start(options()).unwrap();
    let whole = post("/v1/classify", "image/jpeg", image("dog.jpg")).bytes();
    for length in [10, 100, whole.len() / 2, whole.len() - 1, whole.len()] {
        for _ in 0..10 {
            connect(server.address()).write_all(&whole[..length]).unwrap();
        }
    }
    let start = Instant::now();
    let quiet =
        |text: &str| text.contains("vit_http_requests_in_flight 1\n") && text.contains("vit_body_memory_bytes 0\n");
    loop {
        let reply = get("/metrics").send(server.address());
        if quiet(reply.text()) && server.engine().pending() == 0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{}", reply.text());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(post("/v1/classify", "image/jpeg", image("dog.jpg")).send(server.address()).status, 200);
    server.shutdown();
}

#[test]
fn junk_on_the_socket_is_refused() {
    for junk in [&b"\0\0\0\0"[..], b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\njunk", b"GET / HTTP/9\r\n\r\n"] {
        let mut stream = connect(server());
        stream.write_all(junk).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "x".repeat(200_000));
    let mut stream = connect(server());
    let _ = stream.write_all(long.as_bytes());
    assert!(Reply::read(&mut stream).is_none_or(|reply| [414, 431].contains(&reply.status)));
    assert_eq!(get("/health/live").send(server()).status, 200);
}

#[test]
fn a_full_queue_is_answered_with_429() {
    let mut options = ServeOptions { max_images: 64, ..options() };
    options.engine.queue = 2;
    let server = Server::start(options).unwrap();
    let dog = image("dog.jpg");
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let call = || post("/v1/classify", "image/jpeg", dog.clone()).send(server.address());
        let calls: Vec<_> = (0..40).map(|_| scope.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for reply in &replies {
        match reply.status {
            200 => {}
            429 => assert!(reply.kind() == "queue-full" && reply.header("retry-after").is_some()),
            other => panic!("{other}: {}", reply.text()),
        }
    }
    assert!(replies.iter().any(|reply| reply.status == 200));
    let three = [("name=\"images\"", dog.as_slice()); 3];
    assert_eq!(form("/v1/classify", &three).send(server.address()).kind(), "too-many-images");
    server.shutdown();
}
