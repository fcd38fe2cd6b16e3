//! The answers are those of the library, in every form of request.

use serde_json::{Value, json};
use vit::data::ApplyPreprocess;
use vit::explain::{ExplainOptions, Method, side_by_side_png};
use vit::{Embed, Explain, Image, Model, ModelOptions, Pool};

use crate::client::{form, get, post, post_json};
use crate::{base64, example, image, server};

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|element| element.as_f64().unwrap() as f32).collect()
}

#[test]
fn classes_are_those_of_the_model() {
    let mut model = Model::open_with("cifar10", &ModelOptions::new().threads(1)).unwrap();
    for name in ["dog.jpg", "ship.jpg", "bird.jpg", "car.jpg"] {
        let expected = model.classify(&Image::open(example(name)).unwrap()).unwrap();
        let reply = post("/v1/classify?top=10", "image/jpeg", image(name)).send(server());
        let answer = reply.json();
        let predictions = answer["results"][0]["predictions"].as_array().unwrap();
        assert_eq!(predictions.len(), 10);
        for (found, expected) in predictions.iter().zip(&expected) {
            assert_eq!(found["class"], expected.class);
            assert_eq!(found["label"], expected.label);
            assert_eq!(found["probability"].as_f64().unwrap() as f32, expected.probability);
        }
        assert_eq!(answer["model"], "cifar10");
        // Images of other tests may be in the same batch.
        let batch = answer["timing"]["batch"].as_u64().unwrap();
        assert!(answer["timing"]["compute_ms"].as_f64().unwrap() > 0.0 && (1..=8).contains(&batch), "{answer}");
    }
}

#[test]
fn every_form_of_request_gives_the_same_answer() {
    let (dog, ship) = (image("dog.jpg"), image("ship.jpg"));
    let lone = |image: &[u8]| {
        let answer = post("/v1/classify?top=2", "application/octet-stream", image).send(server()).json();
        answer["results"][0]["predictions"][0]["label"].clone()
    };
    let labels = [lone(&dog), lone(&ship)];
    let data_uri = format!("data:image/jpeg;base64,{}", base64(&dog));
    let calls = [
        form(
            "/v1/classify",
            &[("name=\"images\"", &dog), ("name=\"a\"; filename=\"b.jpg\"", &ship), ("name=\"top\"", b"2")],
        ),
        post_json("/v1/classify?top=7", &json!({"images": [data_uri, base64(&ship)], "top": 2, "model": "cifar10"})),
        post_json("/v1/classify", &json!({"image": data_uri, "input": base64(&ship), "top": 2, "model": null})),
    ];
    for call in calls {
        let answer = call.send(server()).json();
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "{answer}");
        for (result, label) in results.iter().zip(&labels) {
            assert_eq!(result["predictions"].as_array().unwrap().len(), 2);
            assert_eq!(&result["predictions"][0]["label"], label);
        }
    }
    let answer = post("/v1/classify?threshold=1", "image/jpeg", dog).send(server()).json();
    assert_eq!(answer["results"][0]["predictions"], json!([]));
    assert_eq!(answer["results"][0]["likeliest"]["label"], labels[0]);
}

#[test]
fn a_damaged_image_does_not_keep_others_from_being_answered() {
    let (good, cut) = (image("dog.jpg"), &image("ship.jpg")[..100]);
    let reply = post_json("/v1/classify", &json!({"images": ["?", base64(&good), base64(cut)]})).send(server());
    assert_eq!(reply.status, 200);
    let results = reply.json()["results"].clone();
    assert_eq!(results[1]["predictions"][0]["label"], "dog");
    for damaged in [&results[0], &results[2]] {
        assert_eq!(damaged["error"]["type"], "/problems/invalid-image");
        assert_eq!(damaged["error"]["status"], 422);
    }
    let reply = post_json("/v1/classify", &json!({"images": ["?", base64(cut)]})).send(server());
    assert_eq!((reply.status, reply.kind().as_str()), (422, "invalid-image"));
    let images = reply.problem()["images"].clone();
    assert_eq!((images[0]["index"].as_u64(), images[1]["index"].as_u64()), (Some(0), Some(1)));
}

#[test]
fn embeddings_are_those_of_the_model() {
    let options = ModelOptions::new().threads(1);
    let ship = Image::open(example("ship.jpg")).unwrap();
    for (query, pool, normalise) in [
        ("", Pool::Features, false),
        ("?pool=mean", Pool::Mean, false),
        ("?pool=patches&normalise=true", Pool::Patches, true),
    ] {
        let model = Embed::open("cifar10", pool, &options).unwrap();
        let mut model = if normalise { model.normalised() } else { model };
        let expected = model.embed(std::slice::from_ref(&ship)).unwrap().remove(0);
        let answer = post(&format!("/v1/embed{query}"), "image/jpeg", image("ship.jpg")).send(server()).json();
        assert_eq!(floats(&answer["results"][0]["embedding"]), expected, "{query}");
        assert_eq!(answer["results"][0]["shape"], json!(model.shape()));
    }
    let reply = post("/v1/embed?pool=class", "image/jpeg", image("ship.jpg")).send(server());
    assert_eq!((reply.status, reply.kind().as_str()), (422, "unsuitable-model"));
}

#[test]
fn openai_clients_get_embeddings_in_both_encodings() {
    let images = ["dog.jpg", "ship.jpg"].map(|name| format!("data:image/jpeg;base64,{}", base64(&image(name))));
    let ask = |format: &str| {
        let body = json!({"model": "cifar10", "input": images, "encoding_format": format, "user": "u"});
        post_json("/v1/embeddings", &body).send(server()).json()
    };
    let (plain, encoded) = (ask("float"), ask("base64"));
    assert_eq!(plain["object"], "list");
    assert_eq!(plain["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
    for index in 0..2 {
        let elements = floats(&plain["data"][index]["embedding"]);
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        assert_eq!(encoded["data"][index]["embedding"], base64(&bytes));
        assert_eq!(plain["data"][index]["index"], index);
        assert!((elements.iter().map(|e| e * e).sum::<f32>() - 1.0).abs() < 1e-5);
    }
    let one = post_json("/v1/embeddings", &json!({"input": images[0], "dimensions": 256})).send(server()).json();
    assert_eq!(one["data"][0]["embedding"], plain["data"][0]["embedding"]);
    let reply = post_json("/v1/embeddings", &json!({"input": images[0], "dimensions": 64})).send(server());
    let problem = reply.problem();
    assert_eq!(reply.status, 422);
    assert_eq!(problem["error"]["message"], problem["detail"]);
}

#[test]
fn explanations_are_those_of_the_model() {
    let dog = Image::open(example("dog.jpg")).unwrap();
    let cases = [
        ("?method=rollout", ExplainOptions { method: Some(Method::Rollout), ..Default::default() }),
        (
            "?class=cat&class=5&method=gradient",
            ExplainOptions { method: Some(Method::Gradient), classes: vec![3, 5], ..Default::default() },
        ),
        (
            "?layer=1&head=2",
            ExplainOptions { method: Some(Method::Attention { layer: Some(1), head: Some(2) }), ..Default::default() },
        ),
    ];
    for (query, options) in cases {
        let mut model = Explain::open("cifar10", &options, &ModelOptions::new().threads(1)).unwrap();
        let expected = model.explain(&dog).unwrap();
        let path = format!("/v1/explain{query}");
        let answer = post(&path, "image/jpeg", image("dog.jpg")).send(server()).json();
        let maps = answer["results"][0]["maps"].as_array().unwrap();
        assert_eq!(maps.len(), expected.maps.len(), "{query}");
        let region = model.preprocess().region(dog.width(), dog.height()).unwrap();
        for (found, (subject, map)) in maps.iter().zip(&expected.maps) {
            assert_eq!(floats(&found["values"]), map.values());
            assert_eq!(found["grid"], json!(map.grid()));
            assert_eq!(found["subject"], subject.to_string());
            let part = map.part(region);
            assert_eq!(found["region"][2].as_f64().unwrap(), part.width / dog.width() as f64);
        }
        let reply = post(&path, "image/jpeg", image("dog.jpg")).header("Accept", "image/png").send(server());
        assert_eq!(reply.header("content-type"), Some("image/png"));
        assert!(reply.body == side_by_side_png(&dog, region, &expected.maps[0].1).unwrap());
    }
    let answer = post("/v1/explain?layer=1&head=2", "image/jpeg", image("dog.jpg")).send(server()).json();
    let map = &answer["results"][0]["maps"][0];
    assert_eq!((map["layer"].as_u64(), map["head"].as_u64(), map["class"].is_null()), (Some(1), Some(2), true));
}

#[test]
fn the_models_are_listed() {
    let list = get("/v1/models").send(server()).json();
    let model = &list["models"][0];
    assert_eq!((model["name"].as_str(), model["default"].as_bool()), (Some("cifar10"), Some(true)));
    assert_eq!((model["classes"].as_u64(), model["image_size"].clone()), (Some(10), json!([32, 32])));
    assert_eq!(model["labels"][5], "dog");
    assert_eq!(model["layers"].as_u64().map(|n| n as usize), model["heads"].as_array().map(Vec::len));
    assert_eq!(list["limits"]["images"], 8);
    assert_eq!((list["object"].as_str(), list["data"][0]["id"].as_str()), (Some("list"), Some("cifar10")));
}
