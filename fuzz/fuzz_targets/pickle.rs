//! Any bytes as a PyTorch checkpoint, and as the pickle inside a legacy one, where no checksum stands in the way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vit_models::weights::pickle;

/// Magic number, protocol and an empty description of the system.
const START: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.";

fuzz_target!(|bytes: &[u8]| {
    let _ = pickle::from_bytes(bytes);
    let _ = pickle::from_bytes(&[START, bytes].concat());
});
