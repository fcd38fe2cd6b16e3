//! Images as embedding vectors.

use std::path::Path;
use std::str::FromStr;

use vit_data::ApplyPreprocess;
use vit_models::{Architecture, Checkpoint};

use crate::model::open_checkpoint;
use crate::{Error, Image, Model, ModelOptions};

/// The vector that stands for an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pool {
    /// The input of the classification head.
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

/// How a model's output becomes an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PooledOutput {
    pool: Pool,
    /// The model's output to request.
    pub output: &'static str,
    /// Tokens before the patches.
    prefix: usize,
}

impl PooledOutput {
    /// The output that an embedding of this kind needs, or an error if the model has none.
    pub fn new(architecture: &Architecture, pool: Pool) -> Result<Self, Error> {
        if pool == Pool::Class && !architecture.tokens().is_some_and(|tokens| tokens.class_token) {
            return Err(Error::NoClassToken);
        }
        // Models without tokens have the pixels of their last feature map instead.
        let output = match (pool, architecture.tokens()) {
            (Pool::Features, _) => "features",
            (_, Some(_)) => "tokens",
            (_, None) => "feature_map",
        };
        Ok(PooledOutput { pool, output, prefix: architecture.tokens().map_or(0, |tokens| tokens.prefix) })
    }

    /// The shape of one image's embedding, `[dim]` or `[patches, dim]`, from the shape of the output of a batch.
    pub fn shape(&self, output: &[usize]) -> Vec<usize> {
        let dim = output.last().copied().unwrap_or(1);
        let tokens: usize = output[1..output.len() - 1].iter().product();
        match self.pool {
            Pool::Features | Pool::Class | Pool::Mean => vec![dim],
            Pool::Patches => vec![tokens - self.prefix, dim],
        }
    }

    /// One image's embedding from its output, whose last extent is `dim`; every vector scaled to length 1 if `normalise`.
    pub fn embedding(&self, values: &[f32], dim: usize, normalise: bool) -> Vec<f32> {
        let patches = values.get(self.prefix * dim..).unwrap_or_default();
        let mut embedding = match self.pool {
            Pool::Features => values.to_vec(),
            Pool::Class => values[..dim].to_vec(),
            Pool::Mean => {
                let count = (patches.len() / dim) as f64;
                (0..dim)
                    .map(|c| (patches.iter().skip(c).step_by(dim).map(|&v| f64::from(v)).sum::<f64>() / count) as f32)
                    .collect()
            }
            Pool::Patches => patches.to_vec(),
        };
        if normalise {
            for vector in embedding.chunks_mut(dim) {
                let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
                vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
            }
        }
        embedding
    }
}

/// A model that turns images into embedding vectors.
///
/// ```
/// use vit::{Embed, Image, ModelOptions, Pool};
///
/// let mut model = Embed::open("cifar10", Pool::Features, &ModelOptions::new().batch(2))?.normalised();
/// let images = [32, 48, 64].map(|side| Image::from_rgb(side, side, vec![side as u8; 3 * side * side]).unwrap());
/// let embeddings = model.embed(&images)?;
/// assert_eq!((embeddings.len(), embeddings[0].len()), (3, 256));
/// # Ok::<(), vit::Error>(())
/// ```
pub struct Embed {
    model: Model,
    pooled: PooledOutput,
    normalise: bool,
}

impl Embed {
    /// Opens a model as [`Model::open_with`] does.
    pub fn open(path: impl AsRef<Path>, pool: Pool, options: &ModelOptions) -> Result<Embed, Error> {
        Self::new(open_checkpoint(path.as_ref(), options)?, pool, options)
    }

    /// Prepares a checkpoint.
    pub fn new(checkpoint: Checkpoint, pool: Pool, options: &ModelOptions) -> Result<Embed, Error> {
        let pooled = PooledOutput::new(&checkpoint.config.architecture, pool)?;
        let options = ModelOptions { outputs: vec![pooled.output.into()], ..options.clone() };
        let model = Model::new(checkpoint, options.device.open()?.as_ref(), &options)?;
        Ok(Embed { model, pooled, normalise: false })
    }

    /// Scales every vector to length 1.
    pub fn normalised(self) -> Self {
        Self { normalise: true, ..self }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The shape of one image's embedding: `[dim]`, or `[patches, dim]`.
    pub fn shape(&self) -> Vec<usize> {
        self.pooled.shape(&self.model.outputs()[0].1)
    }

    /// The embeddings of any number of images, run in batches of [`Model::batch`].
    pub fn embed(&mut self, images: &[Image]) -> Result<Vec<Vec<f32>>, Error> {
        let mut all = Vec::with_capacity(images.len());
        for images in images.chunks(self.model.batch()) {
            let prepared = images.iter().map(|image| Ok(self.model.preprocess().apply(image)?));
            let prepared = prepared.collect::<Result<Vec<_>, Error>>()?;
            for embedding in self.run_prepared(&prepared)? {
                all.push(embedding?);
            }
        }
        Ok(all)
    }

    /// Embeddings of preprocessed images, at most a batch. An inner error concerns one image, whose embedding is NaN or
    /// infinite; the others are fine.
    pub fn run_prepared(&mut self, images: &[Vec<f32>]) -> Result<Vec<Result<Vec<f32>, Error>>, Error> {
        let (name, shape) = self.model.outputs()[0].clone();
        let dim = shape.last().copied().unwrap_or(1);
        let outputs = self.model.finite_outputs(&name, images)?;
        Ok(outputs.into_iter().map(|values| Ok(self.pooled.embedding(&values?, dim, self.normalise))).collect())
    }
}
