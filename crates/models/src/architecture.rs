//! The trait of architectures, and the handle of any model.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

use serde_json::{Map, Value};
use vit_graph::ops::Parameter;
use vit_graph::{Graph, GraphError, Tensor};

use crate::config::{Arguments, Config, Configured};
use crate::layers::{Building, Mode};
use crate::variant::Variant;
use crate::vit::{Masks, Pretraining};
use crate::weights::{Scheme, Weights};

/// One architecture: a struct of its choices, which this trait turns into graphs.
///
/// # An architecture of your own
/// Implement this trait and [`Configured`] for a struct that derives `Debug`, `Clone` and `PartialEq`.
/// [`forward`](Network::forward) is the model itself, written with the layers of [`crate::layers`]; it has the outputs
/// `features` and, if there are classes, `logits`. [`Architecture::from`] makes the struct one that can be trained,
/// evaluated, explained and saved; call [`register`](crate::register) for its named variants, and for its saved checkpoints
/// to be opened again.
///
/// Explanations find a model's intermediates by their taps ([`Tensor::tap`]): `stages.N` after each stage,
/// `feature_map [batch, rows, columns, channels]` before the mean over pixels, and for each attention layer a tap that ends
/// in `.attn`, with its `.attn.weights`. A model of one sequence of tokens has `blocks.N` instead of stages, the output
/// `tokens`, and describes them in [`tokens`](Network::tokens).
pub trait Network: Configured {
    /// The architecture in words, as in `Vision Transformer`.
    fn kind(&self) -> &'static str;

    /// Image size, channels and classes.
    fn dimensions(&self) -> Dimensions;

    /// Changes image size, channels and classes.
    fn set_dimensions(&mut self, dimensions: Dimensions);

    /// Appends the model to the graph of its input, `image [batch, channels, height, width]`. Only called where there is no
    /// [`contradiction`](Network::contradiction).
    fn forward(&self, image: &Tensor, building: &Building);

    /// Why no model can be built with these choices.
    fn contradiction(&self) -> Option<String> {
        None
    }

    /// All rates of dropout and stochastic depth: if one is above zero, a graph for training has an input `seed i32[4]`.
    fn rates(&self) -> Vec<f32> {
        Vec::new()
    }

    /// The graph for a batch of images.
    fn build(&self, batch: usize, mode: Mode) -> Result<Graph, GraphError> {
        let Dimensions { image_size, channels, .. } = self.dimensions();
        let (image, building) = Building::start(batch, channels, image_size, mode, &self.rates());
        match self.contradiction() {
            Some(reason) => drop(image.refuse(self.kind(), reason)),
            None => self.forward(&image, &building),
        }
        image.finish()
    }

    /// The layers that only pre-training without labels has, if there are any.
    fn pretraining(&self) -> Option<&Pretraining> {
        None
    }

    /// The graph of pre-training for a batch of images.
    fn build_pretraining(&self, _batch: usize, _masks: Masks) -> Result<Graph, GraphError> {
        let reason = "only Vision Transformers can be pre-trained without labels".into();
        Err(GraphError::Shape { op: self.kind(), scope: "pre-training".into(), inputs: "image".into(), reason })
    }

    /// Leaves out the layers that only pre-training has.
    fn without_pretraining(&mut self) {}

    /// Changes dropout: in a Vision Transformer after every layer, in others before the head.
    fn set_dropout(&mut self, _rate: f32) {}

    /// Changes dropout of attention weights.
    fn set_attention_dropout(&mut self, _rate: f32) {}

    /// Changes the share of patches that is left out in training.
    fn set_patch_drop(&mut self, _rate: f32) {}

    /// Changes stochastic depth: the rate of the last block, to which earlier ones grow linearly.
    fn set_drop_path(&mut self, _rate: f32) {}

    /// The layers that give the logits, by name.
    fn heads(&self) -> &'static [&'static str];

    /// Whether a parameter belongs to a layer that gives the logits.
    fn is_head(&self, parameter: &str) -> bool {
        let layer = parameter.rsplit_once('.').map_or("", |(layer, _)| layer);
        self.heads().contains(&layer)
    }

    /// The name of the filters `[out, channels, height, width]` that see the image.
    fn first_filters(&self) -> String;

    /// Why an image size does not suit the model, and the nearest ones that do.
    fn refuses_image_size(&self, _size: [usize; 2]) -> Option<String> {
        None
    }

    /// The patches that the image is cut into, where it is.
    fn patches(&self) -> Option<PatchGrid> {
        None
    }

    /// The tokens, where all blocks work on the same sequence of them.
    fn tokens(&self) -> Option<TokenSequence> {
        None
    }

    /// Whether a part of the model learns from a teacher alone (DeiT's distillation head).
    fn follows_teacher(&self) -> bool {
        false
    }

    /// How a parameter that depends on the image size is laid out; it is resampled when that changes.
    fn position_layout(&self, _parameter: &str) -> Option<PositionLayout> {
        None
    }

    /// The options that decide whether a parameter exists and what shape it has, with their values.
    fn options_of(&self, _parameter: &str) -> Option<String> {
        None
    }

    /// Lines of the model card, by name, besides those that every model has.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The published models, smallest first.
    fn variants() -> Vec<Variant>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// The model of a name that is not among the published ones but has their form.
    fn variant(_name: &str) -> Option<Variant>
    where
        Self: Sized,
    {
        None
    }

    /// Guesses the configuration from the shapes of weights with canonical names. Without a guess, named variants with
    /// exactly these parameters are considered.
    fn guess(_weights: &Weights, _scheme: Scheme) -> Option<Config>
    where
        Self: Sized,
    {
        None
    }
}

/// Implements the methods of [`Network`] that read and change single fields, for a struct that has `image_size`, `channels`
/// and `classes`, and of the rates `dropout`, `attention_dropout`, `patch_drop` and `drop_path` those that are given.
#[macro_export]
macro_rules! network_fields {
    ($($rate:ident),*) => {
        fn dimensions(&self) -> $crate::Dimensions {
            $crate::Dimensions { image_size: self.image_size, channels: self.channels, classes: self.classes }
        }

        fn set_dimensions(&mut self, to: $crate::Dimensions) {
            (self.image_size, self.channels, self.classes) = (to.image_size, to.channels, to.classes);
        }

        $($crate::network_fields!(@rate $rate);)*
    };
    (@rate dropout) => {
        fn set_dropout(&mut self, rate: f32) {
            self.dropout = rate;
        }
    };
    (@rate attention_dropout) => {
        fn set_attention_dropout(&mut self, rate: f32) {
            self.attention_dropout = rate;
        }
    };
    (@rate patch_drop) => {
        fn set_patch_drop(&mut self, rate: f32) {
            self.patch_drop = rate;
        }
    };
    (@rate drop_path) => {
        fn set_drop_path(&mut self, rate: f32) {
            self.drop_path = rate;
        }
    };
}

/// The sizes of a model's input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 without a head.
    pub classes: usize,
}

/// The patches that an image is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchGrid {
    /// Rows and columns of patches.
    pub grid: [usize; 2],
    /// Height and width of a patch in pixels; `None` for patches of a convolutional feature map.
    pub size: Option<[usize; 2]>,
}

/// A sequence of tokens: first those that are not patches, then the patches, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSequence {
    /// Class, distillation and register tokens.
    pub prefix: usize,
    /// Whether the first token is a class token.
    pub class_token: bool,
    /// Rows and columns of patches.
    pub grid: [usize; 2],
}

/// How a parameter with one entry per position is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionLayout {
    /// `[1, prefix + rows * columns, width]`: one vector per token.
    Tokens {
        /// Tokens that are not patches.
        prefix: usize,
        /// Rows and columns of patches.
        grid: [usize; 2],
    },
    /// So many vectors, one per row or per column.
    Line(usize),
    /// `[offsets + others, heads]` or `[heads, rows of offsets, columns of offsets]`: one bias per offset between two positions
    /// of a window of this size, then others that do not depend on it.
    Window([usize; 2]),
}

/// Any model: a [`Network`] that can be cloned and compared.
pub struct Architecture(Box<dyn Network>);

impl Architecture {
    /// The model as the struct of its architecture, if it is of this one.
    pub fn downcast_ref<N: Network>(&self) -> Option<&N> {
        self.0.as_any().downcast_ref()
    }

    /// The model as the struct of its architecture, to be changed.
    pub fn downcast_mut<N: Network>(&mut self) -> Option<&mut N> {
        self.0.as_any_mut().downcast_mut()
    }

    /// Gives weights with timm's names the names of this model's parameters.
    pub fn own_names(&self, weights: Weights) -> Result<Weights, GraphError> {
        let renamed = |parameter: Parameter| Some((self.timm_name(&parameter.name)?, parameter.name));
        let ours: HashMap<String, String> = self.parameters()?.into_iter().filter_map(renamed).collect();
        let named = |(name, tensor)| (ours.get(&name).cloned().unwrap_or(name), tensor);
        Ok(Weights { tensors: weights.tensors.into_iter().map(named).collect(), metadata: weights.metadata })
    }

    /// Changes options by name: those of the constructor in timm, such as `depth`, and those that only models of this project
    /// have, such as a Vision Transformer's `positions`.
    pub fn set_options(&mut self, options: &Map<String, Value>) -> Result<(), String> {
        let single = |name: &str, value: &Value| Map::from_iter([(name.to_string(), value.clone())]);
        let (ours, of_timm): (Map<_, _>, Map<_, _>) = (options.clone().into_iter()).partition(|(name, value)| {
            self.clone().configure_extra(&Arguments::new("this project", &single(name, value))).is_ok()
        });
        self.configure(&Arguments::new("timm", &of_timm))?;
        self.configure_extra(&Arguments::new("this project", &ours))?;
        self.contradiction().map_or(Ok(()), Err)
    }

    /// All parameters: the model's, then those that only pre-training has.
    pub fn parameters(&self) -> Result<Vec<Parameter>, GraphError> {
        let graph = self.build(1, Mode::Inference)?;
        let mut all: Vec<Parameter> = graph.parameters().map(|(_, parameter)| parameter.clone()).collect();
        if self.pretraining().is_some() {
            let graph = self.build_pretraining(1, Masks::Given)?;
            let more = graph.parameters().filter(|(_, p)| all.iter().all(|known| known.name != p.name));
            let more: Vec<Parameter> = more.map(|(_, parameter)| parameter.clone()).collect();
            all.extend(more);
        }
        Ok(all)
    }

    /// Height and width of the image.
    pub fn image_size(&self) -> [usize; 2] {
        self.dimensions().image_size
    }

    /// Colour channels.
    pub fn channels(&self) -> usize {
        self.dimensions().channels
    }

    /// Classes; 0 without a head.
    pub fn classes(&self) -> usize {
        self.dimensions().classes
    }

    /// Changes the image size.
    pub fn set_image_size(&mut self, image_size: [usize; 2]) {
        self.0.set_dimensions(Dimensions { image_size, ..self.0.dimensions() });
    }

    /// Changes the number of colour channels.
    pub fn set_channels(&mut self, channels: usize) {
        self.0.set_dimensions(Dimensions { channels, ..self.0.dimensions() });
    }

    /// Changes the number of classes.
    pub fn set_classes(&mut self, classes: usize) {
        self.0.set_dimensions(Dimensions { classes, ..self.0.dimensions() });
    }
}

impl<N: Network> From<N> for Architecture {
    fn from(network: N) -> Self {
        Architecture(Box::new(network))
    }
}

impl Deref for Architecture {
    type Target = dyn Network;

    fn deref(&self) -> &dyn Network {
        &*self.0
    }
}

impl DerefMut for Architecture {
    fn deref_mut(&mut self) -> &mut dyn Network {
        &mut *self.0
    }
}

/// Cloning, comparison and downcasts of a [`Network`] behind a handle; implemented for all that derive `Clone`, `PartialEq`
/// and `Debug`.
pub trait NetworkObject: Any + Debug + Send + Sync {
    #[doc(hidden)]
    fn boxed(&self) -> Box<dyn Network>;
    #[doc(hidden)]
    fn equals(&self, other: &dyn Network) -> bool;
    #[doc(hidden)]
    fn as_any(&self) -> &dyn Any;
    #[doc(hidden)]
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<N: Network + Clone + PartialEq> NetworkObject for N {
    fn boxed(&self) -> Box<dyn Network> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Network) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Clone for Architecture {
    fn clone(&self) -> Self {
        Architecture(self.0.boxed())
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&**other)
    }
}

impl Debug for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::variant;
    use crate::vit::{Positions, Vit};

    #[test]
    fn options_have_the_names_of_timm_or_of_this_project() {
        let with = |options: serde_json::Value| {
            let mut model = variant("P/4@32").unwrap().architecture;
            model.set_options(options.as_object().unwrap()).map(|()| model.downcast_ref::<Vit>().unwrap().clone())
        };
        let small = with(json!({"depth": 3, "embed_dim": 32})).unwrap();
        assert_eq!((small.depth, small.dim, small.mlp_dim), (3, 32, 64));
        assert_eq!(with(json!({"pos_embed": "none"})).unwrap().positions, Positions::None);
        assert_eq!(with(json!({"positions": "learned_2d", "depth": 2})).unwrap().positions, Positions::Learned2d);
        assert!(with(json!({"positions": "relative"})).unwrap().relative_bias.is_some());
        assert!(with(json!({"dept": 3})).unwrap_err().contains("`dept`"));
        assert!(with(json!({"num_heads": 5})).unwrap_err().contains("5 heads"));
        assert!(
            variant("resnet18_cifar")
                .unwrap()
                .architecture
                .set_options(json!({"depth": 3}).as_object().unwrap())
                .is_err()
        );
    }
}
