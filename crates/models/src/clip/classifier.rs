//! An image-text model as a model of images: its image tower alone, or a zero-shot classifier (section 3.1 of the CLIP
//! paper), whose head's weights are the embeddings of texts about the classes.

use std::path::Path;

use super::{Clip, Pairing};
use crate::checkpoint::{Checkpoint, OpenOptions};
use crate::error::ModelError;
use crate::problem_type::ProblemType;
use crate::vit::{Embedding, Vit};
use crate::weights::{Tensor, Weights, WeightsError};

impl Checkpoint {
    /// As [`Checkpoint::open`]; of an image-text model the image tower alone.
    pub fn open_image_model(path: &Path, options: OpenOptions) -> Result<Checkpoint, ModelError> {
        Ok(Checkpoint::open(path, options)?.into_image_tower()?)
    }

    /// The model, if it embeds texts, too.
    pub fn image_text(&self) -> Option<&Clip> {
        self.config.architecture.downcast_ref()
    }

    /// Whether the model embeds texts, too.
    pub fn has_text_tower(&self) -> bool {
        self.image_text().is_some()
    }

    /// Of an image-text model the image tower alone, whose head is the projection to the embedding; other models as they are.
    pub fn into_image_tower(mut self) -> Result<Checkpoint, WeightsError> {
        let Some(clip) = self.image_text().cloned() else { return Ok(self) };
        drop_text(&mut self.weights);
        let mut vit = Vit { embedding: None, ..clip.image };
        if let Some(Embedding::Projected(width)) = clip.image.embedding {
            vit.classes = width;
            let projection = self.weights.take("proj.weight")?;
            self.weights.insert("head.weight", projection)?;
            self.weights.insert("head.bias", Tensor::new(vec![width], vec![0.0; width])?)?;
        }
        self.config.architecture = vit.into();
        self.tokenizer = None;
        Ok(self)
    }

    /// A classifier from the embeddings of its classes, each of length 1; a model without a text tower as it is. Its logits
    /// are those of the pairs of image and text.
    pub fn into_zero_shot(mut self, labels: Vec<String>, embeddings: &[Vec<f32>]) -> Result<Checkpoint, WeightsError> {
        let Some(clip) = self.image_text().cloned() else { return Ok(self) };
        let classes = embeddings.len();
        let scale = scalar(&self.weights, "logit_scale")?.exp();
        let (bias, problem_type) = match clip.pairing {
            Pairing::Softmax => (0.0, ProblemType::SingleLabel),
            Pairing::Sigmoid => (scalar(&self.weights, "logit_bias")?, ProblemType::MultiLabel),
        };
        drop_text(&mut self.weights);
        let weight = embeddings.iter().flatten().map(|value| scale * value).collect();
        self.weights.insert("head.weight", Tensor::new(vec![classes, clip.text.embed_dim], weight)?)?;
        self.weights.insert("head.bias", Tensor::new(vec![classes], vec![bias; classes])?)?;
        self.config.architecture = Vit { classes, ..clip.image }.into();
        (self.config.labels, self.config.problem_type) = (labels, problem_type);
        self.tokenizer = None;
        Ok(self)
    }
}

fn scalar(weights: &Weights, name: &str) -> Result<f32, WeightsError> {
    weights.get(name).map(|tensor| tensor.data.first().copied().unwrap_or(0.0))
}

/// Removes all parameters but those of the image tower.
fn drop_text(weights: &mut Weights) {
    weights.tensors.retain(|name, _| !name.starts_with("text.") && !name.starts_with("logit_"));
}
