//! Any bytes are an image or an error: no panic escapes, no memory is allocated for claimed sizes. Good seeds:
//! `crates/data/tests/fixtures/formats` and `crates/data/tests/hostile`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Once;
use vit_data::{DecodeOptions, decode};

static HOOK: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    // libFuzzer's hook aborts at any panic, also at those of third-party decoders that `decode` turns into errors. This
    // one only prints them; a panic that escapes still ends the run.
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| eprintln!("{info}"))));
    let options = DecodeOptions { max_pixels: 1 << 16, ..DecodeOptions::default() };
    if let Ok(image) = decode(data, &options) {
        assert_eq!(image.pixels().len(), image.width() * image.height() * 3);
        assert!(image.width() * image.height() <= 1 << 16);
    }
});
