//! Any bytes as a Parquet file. Good seeds: `crates/data/tests/fixtures/datasets`.
#![no_main]

#[path = "../exercise.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    exercise::exercise(&[("a.parquet", data)], "a.parquet");
});
