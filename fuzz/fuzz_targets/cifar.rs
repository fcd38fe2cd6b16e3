//! Any bytes as CIFAR's binary files: as they are, and filled up to whole records.
#![no_main]

#[path = "../exercise.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    exercise::exercise(&[("data_batch_1.bin", data)], "");
    for (name, names, record) in
        [("data_batch_1.bin", "batches.meta.txt", 3073), ("train.bin", "fine_label_names.txt", 3074)]
    {
        let mut whole = data.to_vec();
        whole.resize(data.len().next_multiple_of(record), 0);
        exercise::exercise(&[(name, &whole)], name);
        exercise::exercise(&[(name, &whole), (names, data)], "");
    }
});
