//! The common part of all dataset targets: writes the files into a folder, opens them in every way, and reads the first
//! samples. Errors are allowed; panics, aborts and memory for claimed sizes are not.

use std::path::Path;
use std::sync::Once;
use tempfile::TempDir;
use vit_data::dataset::{Dataset, DatasetOptions, LabelRequirement, Limits, ReadOptions, open, open_split};
use vit_data::{DecodeOptions, Samples};

/// Samples read per dataset.
const SAMPLES: usize = 8;

static HOOK: Once = Once::new();

/// Opens `name` in a folder with these files.
pub fn exercise(files: &[(&str, &[u8])], name: &str) {
    // libFuzzer's hook aborts at any panic, also at those of third-party readers that become errors. This one only
    // prints them; a panic that escapes still ends the run.
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| eprintln!("{info}"))));
    let folder = TempDir::new().expect("a temporary folder");
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a temporary file");
    }
    // With all data in memory, and with none; with images that have no label, and without.
    use LabelRequirement::{Optional, Required};
    for (memory, labels) in [(1 << 20, Required), (0, Required), (1 << 20, Optional), (0, Optional)] {
        let read = ReadOptions {
            decode: DecodeOptions { max_pixels: 1 << 16, ..DecodeOptions::default() },
            limits: Limits { memory, disk: 1 << 20 },
            labels,
        };
        let path = match name {
            "" => folder.path().to_owned(),
            name => folder.path().join(name),
        };
        train(&path, &read);
        if let Ok(opened) = open_split(&path, None, None, &read) {
            look(&opened.samples);
        }
    }
}

fn train(path: &Path, read: &ReadOptions) {
    let options = DatasetOptions { read: read.clone(), ..DatasetOptions::default() };
    if let Ok(splits) = open(path, &options) {
        let _ = splits.report.to_string();
        look(&splits.train);
    }
}

fn look(samples: &Dataset) {
    let classes = samples.classes().len();
    for index in 0..samples.len().min(SAMPLES) {
        assert!(samples.labels(index).iter().all(|label| (*label as usize) < classes));
        let _ = (samples.name(index), samples.shares(index));
        if let Ok(image) = samples.image(index) {
            assert_eq!(image.pixels().len(), image.width() * image.height() * 3);
        }
    }
}
