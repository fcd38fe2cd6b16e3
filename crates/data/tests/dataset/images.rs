//! Small images that differ by their colour.

use std::fs;
use std::path::Path;
use vit_data::Samples;

/// A PNG of 2 x 2 grey pixels of this value.
pub fn png(value: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 2, 2);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&[value; 12]).unwrap();
    bytes
}

/// Writes a file and creates its folders.
pub fn write(root: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// The class and the grey value of every sample.
pub fn listed(samples: &dyn Samples) -> Vec<(String, u8)> {
    (0..samples.len())
        .map(|index| {
            let [label] = samples.labels(index) else { panic!("one label expected") };
            (samples.classes()[*label as usize].clone(), samples.image(index).unwrap().pixels()[0])
        })
        .collect()
}

/// The expected result of `listed`.
pub fn expected(samples: &[(&str, u8)]) -> Vec<(String, u8)> {
    samples.iter().map(|(class, value)| ((*class).to_owned(), *value)).collect()
}

/// The names of all samples.
pub fn names(samples: &dyn Samples) -> Vec<String> {
    (0..samples.len()).map(|index| samples.name(index)).collect()
}
