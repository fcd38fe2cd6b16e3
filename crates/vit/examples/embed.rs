//! Embeds images and compares each with the first: `cargo run -p vit --example embed -- cat.jpg other_cat.jpg dog.jpg`.

use vit::{Embed, Image, ModelOptions, Pool};

fn main() -> Result<(), vit::Error> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let images = paths.iter().map(Image::open).collect::<Result<Vec<_>, _>>()?;
    let mut model = Embed::open("cifar10", Pool::Features, &ModelOptions::new().batch(8))?.normalised();
    let embeddings = model.embed(&images)?;
    for (path, embedding) in paths.iter().zip(&embeddings) {
        // The inner product of vectors of length 1 is their cosine similarity.
        let similarity: f32 = embedding.iter().zip(&embeddings[0]).map(|(a, b)| a * b).sum();
        println!("{similarity:.3}  {path}");
    }
    Ok(())
}
