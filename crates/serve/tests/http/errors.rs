//! Every error is a problem document that says what was wrong.

use serde_json::json;

use crate::client::{Call, form, get, post, post_json};
use crate::{base64, image, server};

fn refused(call: Call) -> (u16, String) {
    let reply = call.send(server());
    (reply.status, reply.kind())
}

#[test]
fn errors_have_their_status_and_kind() {
    let dog = || image("dog.jpg");
    let nine = vec![base64(b"x"); 9];
    let many: Vec<(&str, &[u8])> = vec![("name=\"images\"", b"x"); 9];
    let fields: Vec<(&str, &[u8])> = vec![("name=\"top\"", b"1"); 100];
    let deep = format!("{{\"image\": {}", "[".repeat(1_000_000));
    let infer = "/v2/models/cifar10/infer";
    for (call, status, kind) in [
        (get("/nothing"), 404, "not-found"),
        (get("/v1/classify"), 405, "method-not-allowed"),
        (get("/v1/models").method("DELETE"), 405, "method-not-allowed"),
        (post("/v1/classify", "text/plain", "x"), 415, "unsupported-media-type"),
        (post("/v1/classify", "application/x-www-form-urlencoded", dog()), 415, "unsupported-media-type"),
        (post("/v1/classify", "image/jpeg", ""), 400, "malformed"),
        (post("/v1/classify", "image/jpeg", "not an image"), 422, "invalid-image"),
        (post("/v1/classify", "image/jpeg", &dog()[..500]), 422, "invalid-image"),
        (post("/v1/classify?top=0", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/classify?top=1&top=2", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/classify?tpo=1", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/classify?threshold=NaN", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/classify?model=%3Cscript%3E", "image/jpeg", dog()), 404, "unknown-model"),
        (post("/v1/classify", "image/jpeg", dog()).header("X-Request-Timeout", "soon"), 400, "malformed"),
        (post("/v1/classify", "application/json", "{"), 400, "malformed"),
        (post("/v1/classify", "application/json", deep), 400, "malformed"),
        (post_json("/v1/classify", &json!({"top": 3})), 400, "malformed"),
        (post_json("/v1/classify", &json!({"image": base64(&dog()), "top": "3"})), 422, "invalid-option"),
        (post_json("/v1/classify", &json!({"image": {"url": "x"}})), 400, "malformed"),
        (post_json("/v1/classify", &json!({"images": nine})), 422, "too-many-images"),
        (post_json("/v1/classify", &json!({"image": "http://127.0.0.1/a.png"})), 422, "url-refused"),
        (post("/v1/classify", "multipart/form-data", "x"), 400, "malformed"),
        (form("/v1/classify", &many), 422, "too-many-images"),
        (form("/v1/classify", &fields), 400, "malformed"),
        (post("/v1/embed?pool=all", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/embed?normalise=maybe", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/explain?method=magic", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/explain?method=rollout&layer=1", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/explain?layer=99", "image/jpeg", dog()), 422, "unsuitable-model"),
        (post("/v1/explain?class=unicorn", "image/jpeg", dog()), 422, "invalid-option"),
        (post("/v1/explain?method=rollout&class=cat", "image/jpeg", dog()), 422, "unsuitable-model"),
        (post("/v1/explain", "image/jpeg", dog()).header("Accept", "text/html"), 406, "not-acceptable"),
        (post("/v1/embeddings", "image/jpeg", dog()), 415, "unsupported-media-type"),
        (post_json("/v1/embeddings", &json!({"input": [1, 2, 3]})), 400, "malformed"),
        (get("/v2/models/unknown"), 404, "unknown-model"),
        (get("/v2/models/cifar10/versions/7"), 404, "unknown-model"),
        (post_json(infer, &json!({"inputs": []})), 400, "malformed"),
        (
            post(infer, "application/octet-stream", "{}").header("Inference-Header-Content-Length", "9"),
            400,
            "malformed",
        ),
        (post(infer, "application/json", "{}").header("Content-Encoding", "br"), 415, "unsupported-media-type"),
    ] {
        let request = String::from_utf8_lossy(&call.bytes()).chars().take(120).collect::<String>();
        assert_eq!(refused(call), (status, kind.into()), "{request}");
    }
}

#[test]
fn problems_carry_the_members_of_the_protocol() {
    let kserve = get("/v2/models/unknown").send(server()).problem();
    assert_eq!(kserve["error"], kserve["detail"]);
    assert!(get("/nothing").send(server()).problem().get("error").is_none());
    let reply = get("/v1/classify").send(server());
    assert_eq!(reply.header("allow"), Some("POST"));
}

#[test]
fn bombs_cost_nothing() {
    // A PNG whose header claims 100,000 x 100,000 pixels.
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend(100_000u32.to_be_bytes().repeat(2));
    png.extend(b"\x08\x02\0\0\0\0\0\0\0\0\0\0\0IDAT");
    assert_eq!(refused(post("/v1/classify", "image/png", png)), (422, "invalid-image".into()));
    let zeros = format!("{{\"images\": [{}\"\"]}}", "\"\",".repeat(1_000_000));
    assert_eq!(refused(post("/v1/classify", "application/json", zeros)), (422, "too-many-images".into()));
    let members = format!("{{{}\"a\": 1}}", "\"a\": 1,".repeat(500_000));
    assert_eq!(refused(post("/v1/classify", "application/json", members)), (422, "invalid-option".into()));
    let tensor = format!(
        r#"{{"inputs": [{{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [{}0]}}]}}"#,
        "0,".repeat(4_000_000)
    );
    assert_eq!(refused(post("/v2/models/cifar10/infer", "application/json", tensor)), (400, "malformed".into()));
}
