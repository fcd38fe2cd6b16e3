//! Any bytes as a dataset of whatever kind they look like. Good seeds: those of all other targets.
#![no_main]

#[path = "../exercise.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    exercise::exercise(&[("data", data)], "data");
});
