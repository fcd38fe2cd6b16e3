//! Random and mutated bytes for every parser: whatever a client sends is an answer or a problem, never a panic.

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::deadline::{REQUEST_TIMEOUT, deadline};
use super::fields::Fields;
use super::images::{json, multipart, source};
use super::kserve::{parse_inference, parse_rpc};

/// Requests whose pieces are replaced, removed and repeated.
const TEMPLATES: [&[u8]; 7] = [
    br#"{"images": ["aGk=", "data:image/png;base64,aGk="], "top": 3, "class": ["cat", 2], "model": null}"#,
    br#"{"inputs": [{"name": "image", "shape": [1, 1, 1, 2], "datatype": "FP32", "data": [[[[1, 2.5e3]]]]}]}"#,
    br#"{"inputs": [{"name": "image_bytes", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}}]}"#,
    b"--X\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\"\r\n\r\nhi\r\n--X--\r\n",
    b"top=3&class=a%20b&threshold=0.5",
    b"data:image/png;base64,aGk=",
    b"\x0a\x01m\x2a\x16\x0a\x05image\x12\x04FP32\x1a\x01\x01\x2a\x04\x32\x02hi2\x0a\x0a\x01a\x12\x05\x0a\x01b\x12\x00:\x04\0\0\x80?",
];

fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let mutated =
        (0..TEMPLATES.len(), vec((any::<usize>(), any::<u8>(), 0..4usize), 0..6)).prop_map(|(index, edits)| {
            let mut bytes = TEMPLATES[index].to_vec();
            for (position, byte, edit) in edits {
                let position = position % bytes.len().max(1);
                match edit {
                    0 if !bytes.is_empty() => bytes[position] = byte,
                    1 => bytes.insert(position, byte),
                    2 => bytes.truncate(position),
                    _ => bytes.extend_from_within(position..),
                }
            }
            bytes
        });
    prop_oneof![vec(any::<u8>(), 0..200), mutated]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn parsers_never_panic(bytes in hostile_bytes(), split in any::<usize>()) {
        let _ = json(&bytes, 3);
        let text = String::from_utf8_lossy(&bytes);
        let _ = source(&text);
        if let Ok(fields) = Fields::from_query(&text) {
            let _ = (fields.integer("top", 1..=9), fields.float("threshold", 0.0..=1.0), fields.flag("top"));
            let _ = (fields.text("top"), fields.all("class"), fields.only(&["top"]));
        }
        if let Ok(value) = HeaderValue::from_bytes(&bytes) {
            let headers = HeaderMap::from_iter([(REQUEST_TIMEOUT.parse().unwrap(), value)]);
            let _ = deadline(&headers, std::time::Duration::from_secs(1));
        }
        let split = split % (bytes.len() + 2);
        let _ = parse_inference(&Bytes::from(bytes.clone()), Some(split));
        let _ = parse_inference(&Bytes::from(bytes.clone()), None);
        let _ = parse_rpc(&Bytes::from(bytes.clone()));
        let form = multipart(Bytes::from(bytes), "X".into(), 3);
        let _ = futures_util::FutureExt::now_or_never(form).expect("the body is complete");
    }
}
