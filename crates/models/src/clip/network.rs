//! An image-text model as a [`Network`]: of images, it is its image tower.

use serde_json::{Map, Value, json};
use vit_graph::Tensor;
use vit_graph::ops::Operation;

use super::{Clip, PairExtents, Pairing, TextPooling, TextTower, variants};
use crate::architecture::{Dimensions, Network, PatchGrid, PositionLayout, TokenSequence};
use crate::config::{self, Arguments, Configured, TimmForm};
use crate::layers::Building;
use crate::variant::Variant;
use crate::vit::{Embedding, Vit};
use vit_preprocess::Preprocess;

impl Network for Clip {
    fn kind(&self) -> &'static str {
        "image-text model"
    }

    fn dimensions(&self) -> Dimensions {
        self.image.dimensions()
    }

    fn set_dimensions(&mut self, dimensions: Dimensions) {
        self.image.set_dimensions(dimensions);
    }

    /// As many texts as images.
    fn forward(&self, image: &Tensor, building: &Building) {
        let samples = image.extent(0);
        self.run(image, PairExtents { images: samples, texts: samples, masked: false }, building);
    }

    fn contradiction(&self) -> Option<String> {
        if let Some(reason) = self.image.contradiction().or_else(|| self.text.contradiction()) {
            return Some(reason);
        }
        let width = match self.image.embedding {
            None => return Some("the image tower has no embedding".into()),
            Some(Embedding::Pooled) => self.image.dim,
            Some(Embedding::Projected(width)) => width,
        };
        let texts = self.text.embed_dim;
        (width != texts).then(|| format!("the embeddings of images have a width of {width}, those of texts of {texts}"))
    }

    fn rates(&self) -> Vec<f32> {
        self.image.rates()
    }

    fn set_dropout(&mut self, rate: f32) {
        self.image.set_dropout(rate);
    }

    fn set_attention_dropout(&mut self, rate: f32) {
        self.image.set_attention_dropout(rate);
    }

    fn set_patch_drop(&mut self, rate: f32) {
        self.image.set_patch_drop(rate);
    }

    fn set_drop_path(&mut self, rate: f32) {
        self.image.set_drop_path(rate);
    }

    fn heads(&self) -> &'static [&'static str] {
        self.image.heads()
    }

    fn first_filters(&self) -> String {
        self.image.first_filters()
    }

    fn refuses_image_size(&self, size: [usize; 2]) -> Option<String> {
        self.image.refuses_image_size(size)
    }

    fn patches(&self) -> Option<PatchGrid> {
        self.image.patches()
    }

    fn tokens(&self) -> Option<TokenSequence> {
        self.image.tokens()
    }

    fn position_layout(&self, parameter: &str) -> Option<PositionLayout> {
        self.image.position_layout(parameter)
    }

    fn options_of(&self, parameter: &str) -> Option<String> {
        if parameter.starts_with("text.") { None } else { self.image.options_of(parameter) }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let TextTower { vocabulary, context, dim, depth, heads, mlp_dim, embed_dim, causal, .. } = self.text;
        let sees = if causal { "those before it" } else { "all" };
        let pairs = match self.pairing {
            Pairing::Softmax => "a softmax over all texts",
            Pairing::Sigmoid => "a sigmoid for each pair",
        };
        let mut facts = self.image.facts();
        facts.retain(|(name, _)| *name != "Answers from");
        facts.extend([
            ("Text", format!("{context} tokens of a vocabulary of {vocabulary}; each sees {sees}")),
            ("Text encoder", format!("{depth} blocks, width {dim}, {heads} heads, MLP {mlp_dim}")),
            ("Embedding", format!("width {embed_dim}, of images and texts; {pairs}")),
        ]);
        facts
    }

    fn variant(name: &str) -> Option<Variant> {
        variants::variant(name)
    }
}

const CLASS: &str = "vit.Clip";

impl Configured for Clip {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        let (class, image) = self.image.constructor();
        let [height, width] = self.image.image_size;
        let text = &self.text;
        let pooling = match text.pooling {
            TextPooling::Id(id) => json!(id),
            TextPooling::HighestId => json!("highest_id"),
            TextPooling::First => json!("first"),
            TextPooling::Last => json!("last"),
        };
        let args = json!({
            "image": {
                "class": class,
                "args": image,
                "input_shape": [1, self.image.channels, height, width],
                "vit": self.image.timm().extra,
            },
            "text": {
                "vocabulary": text.vocabulary,
                "context": text.context,
                "dim": text.dim,
                "depth": text.depth,
                "heads": text.heads,
                "mlp_dim": text.mlp_dim,
                "activation": text.activation.name(),
                "norm_epsilon": config::timm::short(text.norm_epsilon),
                "layer_scale": text.layer_scale.map(config::timm::short),
                "causal": text.causal,
                "pooling": pooling,
                "embed_dim": text.embed_dim,
                "projection_bias": text.projection_bias,
            },
            "pairing": if self.pairing == Pairing::Sigmoid { "sigmoid" } else { "softmax" },
        });
        (CLASS, config::timm::object(args))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        if let Some(image) = args.get("image") {
            let image = config::parse(image, None)?.architecture;
            self.image = image.downcast_ref::<Vit>().ok_or("the image tower is no Vision Transformer")?.clone();
        }
        if let Some(text) = args.object("text")? {
            self.text.configure(&Arguments::new("vit", text))?;
        }
        self.pairing = match args.text("pairing")? {
            None => self.pairing,
            Some("softmax") => Pairing::Softmax,
            Some("sigmoid") => Pairing::Sigmoid,
            Some(other) => return Err(format!("`pairing` should be softmax or sigmoid, not {other}")),
        };
        args.finish(&[])
    }

    fn timm(&self) -> TimmForm {
        TimmForm { base: Err("timm has no text towers".into()), ..TimmForm::published(Map::new()) }
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, variants::base_32(), variants::preprocess())]
    }
}

impl TextTower {
    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        let counts: [(&str, &mut usize); 7] = [
            ("vocabulary", &mut self.vocabulary),
            ("context", &mut self.context),
            ("dim", &mut self.dim),
            ("depth", &mut self.depth),
            ("heads", &mut self.heads),
            ("mlp_dim", &mut self.mlp_dim),
            ("embed_dim", &mut self.embed_dim),
        ];
        for (name, count) in counts {
            *count = args.count(name)?.unwrap_or(*count);
        }
        self.activation = args.activation("activation")?.unwrap_or(self.activation);
        self.norm_epsilon = args.number("norm_epsilon")?.map_or(self.norm_epsilon, |e| e as f32);
        self.layer_scale = args.number("layer_scale")?.map(|initial| initial as f32);
        self.causal = args.flag("causal")?.unwrap_or(self.causal);
        self.projection_bias = args.flag("projection_bias")?.unwrap_or(self.projection_bias);
        self.pooling = match args.get("pooling") {
            None => self.pooling,
            Some(Value::String(pooling)) if pooling == "highest_id" => TextPooling::HighestId,
            Some(Value::String(pooling)) if pooling == "first" => TextPooling::First,
            Some(Value::String(pooling)) if pooling == "last" => TextPooling::Last,
            Some(id) => {
                let id = id.as_i64().and_then(|id| i32::try_from(id).ok());
                TextPooling::Id(id.ok_or("`pooling` should be highest_id, first, last or an id")?)
            }
        };
        args.finish(&[])
    }
}
