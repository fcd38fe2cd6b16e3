//! Any bytes as an npz archive, and as the array inside one with a right checksum: an error or weights, which then meet
//! the mapping of names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vit_models::weights::{names, npz};

/// A zip archive of that one array, stored.
fn archive(array: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"embedding/kernel.npy";
    let length = (array.len() as u32).to_le_bytes();
    let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    common.extend(crc32fast::hash(array).to_le_bytes());
    common.extend(length);
    common.extend(length);
    common.extend([NAME.len() as u8, 0, 0, 0]);
    let local = [b"PK\x03\x04", &common[..], NAME, array].concat();
    let entry = [b"PK\x01\x02\x14\x00", &common[..], &[0; 14], NAME].concat();
    let mut end = b"PK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00".to_vec();
    end.extend((entry.len() as u32).to_le_bytes());
    end.extend((local.len() as u32).to_le_bytes());
    end.extend([0, 0]);
    [local, entry, end].concat()
}

fuzz_target!(|bytes: &[u8]| {
    for archive in [bytes, &archive(bytes)] {
        if let Ok(weights) = npz::from_bytes(archive) {
            let _ = names::canonical(weights);
        }
    }
});
