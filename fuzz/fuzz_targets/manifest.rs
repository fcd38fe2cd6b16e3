//! Any bytes as a table of paths and labels, beside a few images, and as the names of the classes.
#![no_main]

#[path = "../exercise.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

const IMAGE: &[u8] = include_bytes!("../../crates/data/tests/fixtures/preprocess/tiny.jpg");

fuzz_target!(|data: &[u8]| {
    exercise::exercise(&[("labels.csv", data), ("1.jpg", IMAGE), ("2.jpg", IMAGE)], "");
    exercise::exercise(&[("a.jsonl", data), ("1.jpg", IMAGE)], "a.jsonl");
    let table = b"path,label\n1.jpg,0\n2.jpg,1\n";
    exercise::exercise(&[("labels.csv", table), ("classes.txt", data), ("1.jpg", IMAGE), ("2.jpg", IMAGE)], "");
});
