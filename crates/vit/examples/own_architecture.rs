//! Trains an architecture that this project does not have, an MLP-Mixer (Tolstikhin et al., 2021), and opens the result:
//! `cargo run --release -p vit --features train --example own_architecture -- photos runs/mixer 'length=20 epochs'`.

use serde_json::{Map, Value, json};
use vit::graph::{Activation, Tensor};
use vit::models::layers::{Building, Conv, Padding, channels_last, head, layer_norm, mlp};
use vit::models::{Arguments, Configured, Dimensions, Network, Preprocess, Variant, register};
use vit::{ModelOptions, Trainer};

/// One Mixer.
#[derive(Debug, Clone, PartialEq)]
struct Mixer {
    dimensions: Dimensions,
    patch: usize,
    dim: usize,
    depth: usize,
}

impl Default for Mixer {
    fn default() -> Self {
        let dimensions = Dimensions { image_size: [32, 32], channels: 3, classes: 10 };
        Mixer { dimensions, patch: 4, dim: 64, depth: 4 }
    }
}

const CLASS: &str = "mixer.Mixer";

impl Network for Mixer {
    fn kind(&self) -> &'static str {
        "MLP-Mixer"
    }

    fn dimensions(&self) -> Dimensions {
        self.dimensions
    }

    fn set_dimensions(&mut self, dimensions: Dimensions) {
        self.dimensions = dimensions;
    }

    fn forward(&self, image: &Tensor, _: &Building) {
        let stem = Conv { stride: self.patch, padding: Padding::None, bias: true, ..Conv::new(self.dim, self.patch) };
        let map = stem.apply(&channels_last(image), "stem.proj");
        let mut x = map.reshape([map.extent(0), map.extent(1) * map.extent(2), self.dim]);
        for block in 0..self.depth {
            let _scope = x.scope(&format!("blocks.{block}"));
            // An MLP over the tokens of each channel, then one over the channels of each token.
            let tokens = layer_norm(&x, 1e-6, "norm1").permute([0, 2, 1]);
            x = &x + &mlp(&tokens, self.dim / 2, Activation::Gelu, |x| x, "mlp_tokens").permute([0, 2, 1]);
            x = &x + &mlp(&layer_norm(&x, 1e-6, "norm2"), 4 * self.dim, Activation::Gelu, |x| x, "mlp_channels");
        }
        head(&layer_norm(&x, 1e-6, "norm").mean([1]), self.dimensions.classes, "head");
    }

    fn heads(&self) -> &'static [&'static str] {
        &["head"]
    }

    fn first_filters(&self) -> String {
        "stem.proj.weight".into()
    }

    fn variants() -> Vec<Variant> {
        vec![Variant {
            name: "mixer_pico_patch4_32".into(),
            paper_name: None,
            family: "MLP-Mixer",
            architecture: Mixer::default().into(),
            preprocessing: Preprocess::cifar(),
        }]
    }
}

impl Configured for Mixer {
    /// What a checkpoint's config.json says of the model.
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        let Dimensions { image_size, channels, classes } = self.dimensions;
        let arguments = json!({
            "img_size": image_size, "in_chans": channels, "num_classes": classes,
            "patch_size": self.patch, "embed_dim": self.dim, "num_blocks": self.depth,
        });
        (CLASS, arguments.as_object().cloned().unwrap_or_default())
    }

    /// The reverse.
    fn configure(&mut self, arguments: &Arguments) -> Result<(), String> {
        let Dimensions { image_size, channels, classes } = self.dimensions;
        self.dimensions = Dimensions {
            image_size: arguments.pair("img_size")?.unwrap_or(image_size),
            channels: arguments.count("in_chans")?.unwrap_or(channels),
            classes: arguments.count("num_classes")?.unwrap_or(classes),
        };
        self.patch = arguments.count("patch_size")?.unwrap_or(self.patch);
        self.dim = arguments.count("embed_dim")?.unwrap_or(self.dim);
        self.depth = arguments.count("num_blocks")?.unwrap_or(self.depth);
        arguments.finish(&[])
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, Mixer::default(), Preprocess::cifar())]
    }
}

fn main() -> Result<(), vit::Error> {
    let mut arguments = std::env::args().skip(1);
    let (Some(data), Some(folder)) = (arguments.next(), arguments.next()) else {
        panic!("give a dataset, a folder for the run, and settings of the recipe");
    };
    register::<Mixer>();
    let trainer = Trainer::new(data).model("mixer_pico_patch4_32");
    let run = arguments.fold(trainer, Trainer::set).train(&folder)?;
    let model = run.model(&ModelOptions::new())?;
    println!("{folder}: {}, classes {}", model.config().architecture.kind(), model.config().labels.join(", "));
    Ok(())
}
