//! Any bytes are a picture or an error: no panic gets out, no memory is taken for sizes that are
//! only claimed. Good seeds: `crates/data/tests/fixtures/formats` and `crates/data/tests/hostile`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Once;
use vit_data::{DecodeOptions, decode};

static HOOK: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    // libFuzzer's own hook ends the process at any panic, also at those of third-party decoders
    // that `decode` turns into errors. This one only names them; what gets out still ends the run.
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| eprintln!("{info}"))));
    let options = DecodeOptions { max_pixels: 1 << 16, ..DecodeOptions::default() };
    if let Ok(image) = decode(data, &options) {
        assert_eq!(image.pixels().len(), image.width() * image.height() * 3);
        assert!(image.width() * image.height() <= 1 << 16);
    }
});
