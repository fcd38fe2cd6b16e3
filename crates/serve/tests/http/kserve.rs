//! The Open Inference Protocol, as `tritonclient` speaks it.

use std::io::Write;

use serde_json::{Value, json};
use vit::data::ApplyPreprocess;
use vit::{Image, Model, ModelOptions};

use crate::client::{Reply, get, post, post_json};
use crate::{base64, example, image, server};

const INFER: &str = "/v2/models/cifar10/infer";

/// The header of an answer with bytes after it, and those bytes.
fn parts(reply: &Reply) -> (Value, Vec<u8>) {
    let length: usize = reply.header("inference-header-content-length").unwrap().parse().unwrap();
    let (header, tensors) = reply.body.split_at(length);
    (serde_json::from_slice(header).unwrap(), tensors.to_vec())
}

fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|element| f32::from_le_bytes(*element)).collect()
}

fn with_tensors(header: &Value, tensors: &[u8]) -> crate::client::Call {
    let header = header.to_string();
    let body = [header.as_bytes(), tensors].concat();
    post(INFER, "application/octet-stream", body).header("Inference-Header-Content-Length", header.len().to_string())
}

#[test]
fn server_and_model_describe_themselves() {
    let server_metadata = get("/v2").send(server()).json();
    assert_eq!(server_metadata["name"], "vit");
    assert!(server_metadata["extensions"].as_array().unwrap().contains(&json!("binary_tensor_data")));
    let model = get("/v2/models/cifar10").send(server()).json();
    assert_eq!(model["inputs"][0], json!({"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}));
    assert_eq!(model["inputs"][1], json!({"name": "image_bytes", "datatype": "BYTES", "shape": [-1]}));
    assert_eq!(model["outputs"][2], json!({"name": "features", "datatype": "FP32", "shape": [-1, 256]}));
    let version = model["versions"][0].as_str().unwrap();
    for path in ["", "/ready", "/config", "/stats"] {
        for prefix in ["/v2/models/cifar10".to_string(), format!("/v2/models/cifar10/versions/{version}")] {
            assert_eq!(get(&format!("{prefix}{path}")).send(server()).status, 200, "{prefix}{path}");
        }
    }
    let config = get("/v2/models/cifar10/config").send(server()).json();
    assert_eq!(
        (config["max_batch_size"].as_u64(), config["input"][0]["data_type"].as_str()),
        (Some(4), Some("TYPE_FP32"))
    );
    assert_eq!(get("/v2/health/live").send(server()).json(), json!({"live": true}));
    assert_eq!(get("/v2/health/ready").send(server()).json(), json!({"ready": true}));
    let index = post("/v2/repository/index", "application/json", "").send(server()).json();
    assert_eq!(index[0]["state"], "READY");
    assert!(get("/v2/models/stats").send(server()).json()["model_stats"][0]["inference_stats"]["queue"]["ns"].is_u64());
}

#[test]
fn preprocessed_images_give_the_same_in_json_and_in_bytes() {
    let mut model = Model::open_with("cifar10", &ModelOptions::new().threads(1)).unwrap();
    let input = model.preprocess().apply(&Image::open(example("dog.jpg")).unwrap()).unwrap();
    model.run_prepared(std::slice::from_ref(&input)).unwrap();
    let expected = model.output("logits", 1).unwrap();

    let tensor = json!({"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": input});
    let answer = post_json(INFER, &json!({"id": "7", "inputs": [tensor]})).send(server()).json();
    assert_eq!((answer["id"].as_str(), answer["model_name"].as_str()), (Some("7"), Some("cifar10")));
    let names: Vec<&str> = answer["outputs"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["logits", "probabilities", "features"]);
    let logits = &answer["outputs"][0];
    let elements: Vec<f32> = logits["data"].as_array().unwrap().iter().map(|e| e.as_f64().unwrap() as f32).collect();
    assert_eq!((elements, &logits["shape"]), (expected.clone(), &json!([1, 10])));

    let bytes: Vec<u8> = input.iter().flat_map(|element| element.to_le_bytes()).collect();
    let header = json!({
        "inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32",
                    "parameters": {"binary_data_size": bytes.len()}}],
        "outputs": [{"name": "logits", "parameters": {"binary_data": true}},
                    {"name": "probabilities", "parameters": {"classification": 2}}],
    });
    let (answer, tensors) = parts(&with_tensors(&header, &bytes).send(server()));
    assert_eq!(answer["outputs"][0]["parameters"]["binary_data_size"], 40);
    assert_eq!(from_bytes(&tensors), expected);
    let likeliest = answer["outputs"][1]["data"][0].as_str().unwrap();
    assert!(likeliest.ends_with(":5:dog"), "{likeliest}");
}

#[test]
fn encoded_images_give_the_same_in_json_and_in_bytes() {
    let images = [image("dog.jpg"), image("ship.jpg")];
    let texts: Vec<String> = images.iter().map(|image| base64(image)).collect();
    let tensor = json!({"name": "image_bytes", "shape": [2], "datatype": "BYTES", "data": texts});
    let outputs = json!([{"name": "probabilities"}]);
    let answer = post_json(INFER, &json!({"inputs": [tensor], "outputs": outputs})).send(server()).json();
    assert_eq!(answer["outputs"][0]["shape"], json!([2, 10]));
    let from_json: Vec<f32> =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|e| e.as_f64().unwrap() as f32).collect();

    let prefixed = |image: &Vec<u8>| [&(image.len() as u32).to_le_bytes(), image.as_slice()].concat();
    let bytes: Vec<u8> = images.iter().flat_map(prefixed).collect();
    let header = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [{"name": "image_bytes", "shape": [2, 1], "datatype": "BYTES",
                    "parameters": {"binary_data_size": bytes.len()}}],
        "outputs": outputs,
    });
    let (_, tensors) = parts(&with_tensors(&header, &bytes).send(server()));
    assert_eq!(from_bytes(&tensors), from_json);

    let damaged = json!({"name": "image_bytes", "shape": [2], "datatype": "BYTES", "data": [texts[0], "aGk="]});
    let reply = post_json(INFER, &json!({"inputs": [damaged]})).send(server());
    assert_eq!((reply.status, reply.problem()["images"][0]["index"].as_u64()), (422, Some(1)));
}

#[test]
fn compressed_bodies_are_read() {
    let tensor = json!({"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": vec![0.5; 3072]});
    let body = json!({"inputs": [tensor], "outputs": [{"name": "logits"}]}).to_string();
    let plain = post(INFER, "application/json", body.clone()).send(server()).json();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body.as_bytes()).unwrap();
    let call = post(INFER, "application/json", gzip.finish().unwrap()).header("Content-Encoding", "gzip");
    assert_eq!(call.send(server()).json()["outputs"], plain["outputs"]);
}

#[test]
fn wrong_shapes_and_values_are_named() {
    for (tensor, expected) in [
        (
            json!({"name": "image", "shape": [1, 3, 16, 16], "datatype": "FP32", "data": vec![0; 768]}),
            "[images, 3, 32, 32]",
        ),
        (json!({"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": vec![0; 768]}), "768 elements"),
        (json!({"name": "pixels", "shape": [1], "datatype": "FP32", "data": [0]}), "no input `pixels`"),
    ] {
        let problem = post_json(INFER, &json!({"inputs": [tensor]})).send(server()).problem();
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{problem}");
    }
    let tensor = json!({"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": vec![0; 3072]});
    let reply = post_json(INFER, &json!({"inputs": [tensor], "outputs": [{"name": "boxes"}]})).send(server());
    assert!(reply.problem()["detail"].as_str().unwrap().contains("logits, probabilities, features"));
}
