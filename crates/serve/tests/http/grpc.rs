//! The Open Inference Protocol over gRPC: framing, messages and status on real HTTP/2 connections. The messages are put
//! together here, byte by byte, from the protocol's public definition; `bench/serve-clients` runs `tritonclient` itself.

use std::io::Write;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use vit::data::ApplyPreprocess;
use vit::{Image, Model, ModelOptions};
use vit_serve::{ServeOptions, Server};

use crate::client::post_json;
use crate::{base64, example, image, options, server};

/// The outcome of a call.
#[derive(Debug)]
struct Reply {
    /// HTTP's status; gRPC's is 200 for errors too.
    http: u16,
    status: Option<u16>,
    text: String,
    message: Bytes,
}

/// A call of a method of the service.
struct Call<'a> {
    method: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: Vec<u8>,
}

fn call(method: &str, message: Vec<u8>) -> Call<'_> {
    Call { method, headers: vec![("content-type", "application/grpc")], body: framed(0, &message) }
}

fn framed(compressed: u8, message: &[u8]) -> Vec<u8> {
    [&[compressed][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

impl<'a> Call<'a> {
    fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    fn send(self, address: SocketAddr) -> Reply {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let uri = format!("http://{address}/inference.GRPCInferenceService/{}", self.method);
            let request =
                self.headers.iter().fold(hyper::Request::post(uri), |r, (name, value)| r.header(*name, *value));
            let request = request.header("te", "trailers").body(Full::new(Bytes::from(self.body))).unwrap();
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_default();
            let field =
                |name: &str| trailers.get(name).or(head.headers.get(name)).map(|v| v.to_str().unwrap().to_string());
            let (status, text) = (field("grpc-status"), field("grpc-message").unwrap_or_default());
            let bytes = body.to_bytes();
            let message = if bytes.is_empty() { bytes } else { unframed(bytes) };
            Reply { http: head.status.as_u16(), status: status.map(|s| s.parse().unwrap()), text, message }
        })
    }
}

fn unframed(mut body: Bytes) -> Bytes {
    let message = body.split_off(5);
    assert_eq!(body[..], framed(0, &message)[..5]);
    message
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field that is a text, bytes or a message.
fn field(number: usize, value: impl AsRef<[u8]>) -> Vec<u8> {
    [varint(number << 3 | 2), varint(value.as_ref().len()), value.as_ref().to_vec()].concat()
}

/// The values of such fields in a message of nothing else but integers.
fn values(message: &[u8], number: usize) -> Vec<Vec<u8>> {
    fn take(bytes: &mut &[u8]) -> usize {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let (mut rest, mut found) = (message, Vec::new());
    while !rest.is_empty() {
        let (key, value) = (take(&mut rest), take(&mut rest));
        if key & 7 == 2 {
            let (bytes, after) = rest.split_at(value);
            rest = after;
            found.extend((key >> 3 == number).then(|| bytes.to_vec()));
        }
    }
    found
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|element| f32::from_le_bytes(*element)).collect()
}

fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// A `ModelInferRequest` with one input.
fn inference(tensor: [&[u8]; 3], contents: Vec<u8>, outputs: &[Vec<u8>]) -> Vec<u8> {
    let [name, datatype, shape] = tensor;
    let input = [field(1, name), field(2, datatype), field(3, shape), contents].concat();
    [field(1, "cifar10"), field(3, "7"), field(5, input), outputs.concat()].concat()
}

const IMAGE: [&[u8]; 3] = [b"image", b"FP32", &[1, 3, 32, 32]];

/// The preprocessed dog and its logits.
fn dog() -> (Vec<f32>, Vec<f32>) {
    let mut model = Model::open_with("cifar10", &ModelOptions::new().threads(1)).unwrap();
    let input = model.preprocess().apply(&Image::open(example("dog.jpg")).unwrap()).unwrap();
    model.run_prepared(std::slice::from_ref(&input)).unwrap();
    let logits = model.output("logits", 1).unwrap();
    (input, logits)
}

#[test]
fn server_and_model_describe_themselves() {
    let truth: &[u8] = &[8, 1];
    assert_eq!(call("ServerLive", vec![]).send(server()).message, truth);
    assert_eq!(call("ServerReady", vec![]).send(server()).message, truth);
    assert_eq!(call("ModelReady", field(1, "cifar10")).send(server()).message, truth);
    let unknown = call("ModelReady", field(1, "nothing")).send(server());
    assert_eq!((unknown.status, unknown.message.len()), (Some(0), 0));

    let reply = call("ServerMetadata", vec![]).send(server());
    assert_eq!((reply.http, reply.status), (200, Some(0)));
    assert_eq!(values(&reply.message, 1), [b"vit"]);
    assert!(values(&reply.message, 3).contains(&b"statistics".to_vec()));
    let model = call("ModelMetadata", field(1, "cifar10")).send(server()).message;
    let inputs = values(&model, 4);
    assert_eq!((values(&inputs[0], 1), values(&inputs[0], 2)), (vec![b"image".to_vec()], vec![b"FP32".to_vec()]));
    let any = [&[0xff; 9][..], &[1, 3, 32, 32]].concat();
    assert_eq!(values(&inputs[0], 3), [any], "the shape begins with -1");
    assert_eq!(values(&model, 5).len(), 3);
    let config = values(&call("ModelConfig", field(1, "cifar10")).send(server()).message, 1).remove(0);
    assert_eq!((values(&config, 1), values(&config, 17)), (vec![b"cifar10".to_vec()], vec![b"vit".to_vec()]));
    assert_eq!(values(&values(&config, 11)[0], 1), [[1, 2, 4]], "preferred batch sizes");
    for everything in [vec![], field(1, "cifar10")] {
        let entries = values(&call("ModelStatistics", everything).send(server()).message, 1);
        assert_eq!((entries.len(), values(&entries[0], 1)), (1, vec![b"cifar10".to_vec()]));
    }
    let index = values(&call("RepositoryIndex", vec![]).send(server()).message, 1);
    assert_eq!(values(&index[0], 3), [b"READY"]);
}

#[test]
fn preprocessed_images_give_the_logits_of_the_facade() {
    let (input, expected) = dog();
    let raw = field(7, bytes_of(&input));
    let floats_field = field(5, field(6, bytes_of(&input)));
    let logits_output = || vec![field(6, field(1, "logits"))];
    let message = [inference(IMAGE, vec![], &logits_output()), raw.clone()].concat();
    for message in [message.clone(), inference(IMAGE, floats_field, &logits_output())] {
        let reply = call("ModelInfer", message).send(server());
        assert_eq!((reply.status, values(&reply.message, 3)), (Some(0), vec![b"7".to_vec()]), "{}", reply.text);
        let tensor = &values(&reply.message, 5)[0];
        assert_eq!((values(tensor, 1), values(tensor, 3)), (vec![b"logits".to_vec()], vec![vec![1, 10]]));
        assert_eq!(floats(&values(&reply.message, 6)[0]), expected);
    }
    let all = call("ModelInfer", [inference(IMAGE, vec![], &[]), raw.clone()].concat()).send(server());
    assert_eq!(values(&all.message, 6).len(), 3);

    let two = field(2, [field(1, "classification"), field(2, [16, 2])].concat());
    let likeliest = field(6, [field(1, "probabilities"), two].concat());
    let reply = call("ModelInfer", [inference(IMAGE, vec![], &[likeliest]), raw].concat()).send(server());
    let texts = String::from_utf8_lossy(&values(&reply.message, 6)[0]).into_owned();
    assert!(texts.contains(":5:dog"), "{texts}");

    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&message).unwrap();
    let compressed = Call { body: framed(1, &gzip.finish().unwrap()), ..call("ModelInfer", vec![]) };
    let reply = compressed.header("grpc-encoding", "gzip").send(server());
    assert_eq!(floats(&values(&reply.message, 6)[0]), expected);
}

#[test]
fn encoded_images_give_the_same_as_over_http() {
    let images = [image("dog.jpg"), image("ship.jpg")];
    let texts: Vec<String> = images.iter().map(|image| base64(image)).collect();
    let tensor = json!({"name": "image_bytes", "shape": [2], "datatype": "BYTES", "data": texts});
    let request = json!({"inputs": [tensor], "outputs": [{"name": "logits"}]});
    let answer = post_json("/v2/models/cifar10/infer", &request).send(server()).json();
    let expected: Vec<f32> =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|e| e.as_f64().unwrap() as f32).collect();

    let outputs = [field(6, field(1, "logits"))];
    let prefixed = images.each_ref().map(|image| [&(image.len() as u32).to_le_bytes(), image.as_slice()].concat());
    let raw = [inference([b"image_bytes", b"BYTES", &[2]], vec![], &outputs), field(7, prefixed.concat())].concat();
    let contents = field(5, images.each_ref().map(|image| field(8, image)).concat());
    for message in [raw, inference([b"image_bytes", b"BYTES", &[2]], contents, &outputs)] {
        let reply = call("ModelInfer", message).send(server());
        assert_eq!(floats(&values(&reply.message, 6)[0]), expected, "{}", reply.text);
    }
}

#[test]
fn errors_have_codes() {
    let wrong_shape = [inference([b"image", b"FP32", &[1, 2]], vec![], &[]), field(7, [0; 8])].concat();
    let too_many = field(5, field(8, "").repeat(9));
    let empty_inputs = field(5, "").repeat(100_000);
    for (method, message, code, text) in [
        ("ModelMetadata", field(1, "nothing"), 5, "no model `nothing`"),
        ("ModelMetadata", [field(1, "cifar10"), field(2, "1")].concat(), 5, "version"),
        ("ModelInfer", wrong_shape, 3, "[images, 3, 32, 32]"),
        ("ModelInfer", inference(IMAGE, vec![], &[]), 3, "0 elements"),
        ("ModelInfer", inference([b"image_bytes", b"BYTES", &[9]], too_many, &[]), 3, "8 images at most"),
        ("ModelInfer", empty_inputs, 3, "One input is needed"),
        ("ModelInfer", vec![0xff], 3, "Protocol Buffers"),
        ("ModelStreamInfer", vec![], 12, ""),
    ] {
        let reply = call(method, message).send(server());
        assert_eq!((reply.http, reply.status, reply.message.len()), (200, Some(code), 0), "{method}: {}", reply.text);
        assert!(reply.text.contains(text), "{}", reply.text);
    }
    let late = call("ModelInfer", [inference(IMAGE, vec![], &[]), field(7, [0; 12288])].concat());
    assert_eq!(late.header("grpc-timeout", "1n").send(server()).status, Some(4));
    let not_grpc = Call { headers: vec![("content-type", "application/json")], ..call("ServerLive", vec![]) };
    assert_eq!(not_grpc.send(server()).status, Some(12));
}

#[test]
fn keys_and_limits_hold_for_calls() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let limited = ServeOptions { api_key_file: Some(file), max_body_bytes: 20_000, ..options() };
    let server = Server::start(limited).unwrap();
    let metadata = || call("ModelMetadata", field(1, "cifar10"));
    assert_eq!(metadata().send(server.address()).status, Some(16));
    assert_eq!(call("ServerReady", vec![]).send(server.address()).status, Some(0));
    let with_key = |call: Call<'static>| call.header("authorization", "Bearer secret").send(server.address());
    assert_eq!(with_key(metadata()).status, Some(0));
    assert_eq!(with_key(call("ModelInfer", vec![0; 20_000])).status, Some(8));
    server.shutdown();
}
