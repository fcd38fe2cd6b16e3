//! Trains on a dataset that is made by the program, and classifies with the result:
//! `cargo run --release -p vit --features train --example own_dataset -- runs/stripes`.

use std::sync::Arc;

use vit::data::{ImageError, Samples};
use vit::{Image, ModelOptions, Trainer};

/// Images of horizontal or vertical stripes, each of its own width and colour.
struct Stripes {
    classes: [String; 2],
}

impl Stripes {
    fn draw(class: u32, width: usize, shade: u8) -> Image {
        let pixel = |i: usize| {
            let along = if class == 0 { i / 32 } else { i % 32 };
            if (along / width).is_multiple_of(2) { [shade, 40, 255 - shade] } else { [230; 3] }
        };
        Image::from_rgb(32, 32, (0..32 * 32).flat_map(pixel).collect()).expect("32 x 32 pixels")
    }
}

impl Samples for Stripes {
    fn len(&self) -> usize {
        200
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self, index: usize) -> &[u32] {
        if index.is_multiple_of(2) { &[0] } else { &[1] }
    }

    fn name(&self, index: usize) -> String {
        format!("stripes {index}")
    }

    fn image(&self, index: usize) -> Result<Image, ImageError> {
        Ok(Stripes::draw(self.labels(index)[0], 2 + index % 5, (index * 7 % 256) as u8))
    }
}

fn main() -> Result<(), vit::Error> {
    let folder = std::env::args().nth(1).expect("give a folder for the run");
    let samples = Arc::new(Stripes { classes: ["horizontal".into(), "vertical".into()] });
    let run = Trainer::on_samples(samples)
        .model("lenet5_relu_cifar")
        .set("batch=32")
        .set("length=100 steps")
        .set("schedule.rate=4e-3")
        .train(folder)?;
    let mut model = run.model(&ModelOptions::new())?;
    for class in [0, 1] {
        let best = &model.classify(&Stripes::draw(class, 4, 100))?[0];
        println!("{} ({:.1}%)", best.label, 100.0 * best.probability);
    }
    Ok(())
}
