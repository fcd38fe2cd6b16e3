//! Embeds images and compares each with the first: `cargo run --example embed -- cat.jpg other_cat.jpg dog.jpg`.

use vit::models::{Checkpoint, OpenOptions};
use vit::{Embed, Image, ModelOptions, Pool};

fn main() -> Result<(), vit::Error> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let images = paths.iter().map(Image::open).collect::<Result<Vec<_>, _>>()?;
    let checkpoint = Checkpoint::open("cifar10".as_ref(), OpenOptions::default())?;
    let normalise = true;
    let embeddings =
        Embed::new(checkpoint, Pool::Features, normalise, &ModelOptions::new().batch(8))?.embed(&images)?;
    for (path, embedding) in paths.iter().zip(&embeddings) {
        // Of vectors of length 1 the inner product is the cosine similarity.
        let similarity: f32 = embedding.iter().zip(&embeddings[0]).map(|(a, b)| a * b).sum();
        println!("{similarity:.3}  {path}");
    }
    Ok(())
}
