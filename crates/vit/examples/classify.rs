//! Classifies images: `cargo run -p vit --example classify -- cat.jpg dog.jpg`.

use vit::{Image, Model, ModelOptions};

fn main() -> Result<(), vit::Error> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let images = paths.iter().map(Image::open).collect::<Result<Vec<_>, _>>()?;
    // The built-in model; or a checkpoint folder, a weights file, a run's folder.
    let mut model = Model::open_with("cifar10", &ModelOptions::new().batch(8))?;
    for (path, predictions) in paths.iter().zip(model.classify_batch(&images)?) {
        println!("{path}: {} ({:.1}%)", predictions[0].label, 100.0 * predictions[0].probability);
    }
    Ok(())
}
