//! Pictures as vectors.

use std::str::FromStr;

use vit_models::Checkpoint;

use crate::{Error, Model, ModelOptions, device_for};

/// Which vector stands for a picture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pool {
    /// What the classification head sees.
    #[default]
    Features,
    /// The class token after the encoder.
    Class,
    /// The mean of the patch tokens, or of the last feature map's pixels.
    Mean,
    /// Every patch token, or every pixel of the last feature map.
    Patches,
}

impl FromStr for Pool {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "features" => Ok(Pool::Features),
            "class" => Ok(Pool::Class),
            "mean" => Ok(Pool::Mean),
            "patches" => Ok(Pool::Patches),
            other => Err(format!("`{other}` is not a pooling; use features, class, mean or patches")),
        }
    }
}

/// A model that turns pictures into vectors.
pub struct Embed {
    model: Model,
    pool: Pool,
    normalise: bool,
    prefix: usize,
}

impl Embed {
    /// Prepares a checkpoint; with `normalise` every vector has length 1.
    pub fn new(checkpoint: Checkpoint, pool: Pool, normalise: bool, options: &ModelOptions) -> Result<Embed, Error> {
        let architecture = &checkpoint.config.architecture;
        if pool == Pool::Class && !architecture.has_class_token() {
            return Err(Error::Unsuitable("this model has no class token; use --pool mean or features".into()));
        }
        // Where there are no tokens, the pixels of the last feature map take their place.
        let output = match (pool, architecture.prefix_tokens()) {
            (Pool::Features, _) => "features",
            (_, Some(_)) => "tokens",
            (_, None) => "feature_map",
        };
        let prefix = architecture.prefix_tokens().unwrap_or(0);
        let options = ModelOptions { outputs: vec![output.into()], ..options.clone() };
        let device = device_for(options.device, options.precision, options.threads)?;
        Ok(Embed { model: Model::new(checkpoint, device.as_ref(), &options)?, pool, normalise, prefix })
    }

    /// The model underneath.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The shape of one picture's embedding: `[dim]`, or `[patches, dim]`.
    pub fn shape(&self) -> Vec<usize> {
        let [tokens, dim] = self.tokens();
        match self.pool {
            Pool::Features | Pool::Class | Pool::Mean => vec![dim],
            Pool::Patches => vec![tokens - self.prefix, dim],
        }
    }

    /// Tokens, or pixels of the feature map, and their width; one for the features.
    fn tokens(&self) -> [usize; 2] {
        let shape = &self.model.outputs()[0].1;
        let dim = shape.last().copied().unwrap_or(1);
        [shape[1..shape.len() - 1].iter().product(), dim]
    }

    /// Embeddings of preprocessed pictures, at most a batch. An error inside is that of one image, whose embedding is NaN
    /// or infinite; the others are fine.
    pub fn run_prepared(&mut self, images: &[Vec<f32>]) -> Result<Vec<Result<Vec<f32>, Error>>, Error> {
        let name = self.model.outputs()[0].0.clone();
        let outputs = self.model.finite_outputs(&name, images)?;
        Ok(outputs.into_iter().map(|values| Ok(self.embedding(values?))).collect())
    }

    /// One image's embedding from the model's output.
    fn embedding(&self, values: Vec<f32>) -> Vec<f32> {
        let [_, dim] = self.tokens();
        let mut embedding = match self.pool {
            Pool::Features => values,
            _ => self.pooled(&values, dim),
        };
        if self.normalise {
            for vector in embedding.chunks_mut(dim) {
                let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
                vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
            }
        }
        embedding
    }

    fn pooled(&self, tokens: &[f32], dim: usize) -> Vec<f32> {
        let patches = &tokens[self.prefix * dim..];
        match self.pool {
            Pool::Class => tokens[..dim].to_vec(),
            Pool::Mean => {
                let count = (patches.len() / dim) as f64;
                (0..dim)
                    .map(|c| (patches.iter().skip(c).step_by(dim).map(|&v| f64::from(v)).sum::<f64>() / count) as f32)
                    .collect()
            }
            Pool::Features | Pool::Patches => patches.to_vec(),
        }
    }
}
