//! Texts as embedding vectors beside those of images, and classifiers made of texts.

use std::path::Path;

use vit_data::tokenise::Tokeniser;
use vit_graph::device::{Elements, Executable};
use vit_graph::rewrite::eliminate_dead_code;
use vit_models::clip::{PairExtents, TextTower};
use vit_models::{Checkpoint, Mode};

use crate::device::quantised;
use crate::finite::is_finite;
use crate::model::open_checkpoint;
use crate::{Error, ModelOptions};

/// The place of a label in a template.
pub const LABEL: &str = "{}";

const FEATURES: &str = "text_features";

/// The 80 templates that the CLIP paper's authors published for ImageNet.
pub fn imagenet_templates() -> Vec<&'static str> {
    include_str!("text/imagenet_templates.txt").lines().collect()
}

/// The tokeniser of a model with a text tower: its own, or CLIP's where it has none and the vocabulary is as large.
pub fn tokeniser_of(checkpoint: &Checkpoint) -> Result<Tokeniser, Error> {
    let clip = checkpoint.image_text().ok_or(Error::NoTextTower)?;
    let TextTower { context, vocabulary, .. } = clip.text;
    let files = checkpoint.tokenizer.as_ref().map(|files| (files.tokenizer.as_str(), &files.config));
    Tokeniser::of_model(files, vocabulary, context)?.ok_or_else(|| {
        let folder = checkpoint.source.parent().unwrap_or(Path::new("")).to_path_buf();
        Error::NoTokeniser { folder, vocabulary }
    })
}

/// The text tower of an image-text model.
///
/// ```no_run
/// use vit::{ModelOptions, TextEmbed};
///
/// let mut texts = TextEmbed::open("clip-vit-base-patch32", &ModelOptions::new().batch(2))?.normalised();
/// let embeddings = texts.embed(&["a photo of a cat", "a photo of a dog"])?;
/// assert_eq!(embeddings[0].len(), texts.embed_dim());
/// # Ok::<(), vit::Error>(())
/// ```
pub struct TextEmbed {
    tokeniser: Tokeniser,
    tower: TextTower,
    executable: Box<dyn Executable>,
    batch: usize,
    normalise: bool,
    truncate: bool,
}

impl TextEmbed {
    /// Opens the text tower of a model.
    pub fn open(path: impl AsRef<Path>, options: &ModelOptions) -> Result<TextEmbed, Error> {
        Self::new(&open_checkpoint(path.as_ref(), options)?, options)
    }

    /// Prepares the text tower of a checkpoint; as many texts as `options.batch` are run at once.
    pub fn new(checkpoint: &Checkpoint, options: &ModelOptions) -> Result<TextEmbed, Error> {
        let tokeniser = tokeniser_of(checkpoint)?;
        let clip = checkpoint.image_text().ok_or(Error::NoTextTower)?;
        let batch = options.batch.max(1);
        let extents = PairExtents { images: 1, texts: batch, masked: false };
        let mut graph = clip.build_pairs(extents, Mode::Inference)?;
        graph.retain_outputs(|name| name == FEATURES);
        let graph = quantised(eliminate_dead_code(&graph)?, options.device.precision)?;
        let executable = options.device.open()?.compile(&graph, &mut &checkpoint.weights)?;
        let tower = clip.text.clone();
        Ok(TextEmbed { tokeniser, tower, executable, batch, normalise: false, truncate: false })
    }

    /// Scales every vector to length 1.
    pub fn normalised(self) -> Self {
        Self { normalise: true, ..self }
    }

    /// Cuts texts that are longer than the model's context, instead of refusing them.
    pub fn truncating(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// The width of an embedding, which is that of the images'.
    pub fn embed_dim(&self) -> usize {
        self.tower.embed_dim
    }

    /// The embeddings of any number of texts.
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        let mut all = Vec::with_capacity(texts.len());
        for texts in texts.chunks(self.batch) {
            let mut ids = Vec::with_capacity(self.batch * self.tower.context);
            for text in texts {
                ids.extend(self.ids(text.as_ref())?);
            }
            ids.resize(self.batch * self.tower.context, 0);
            self.executable.write("ids", Elements::I32(&ids))?;
            if self.tower.pooling.reads_ids() {
                self.executable.write("ends", Elements::I32(&self.tower.ends(&ids)))?;
            }
            self.executable.run()?;
            let mut values = vec![0.0; self.batch * self.embed_dim()];
            self.executable.read(FEATURES, &mut values)?;
            for (text, embedding) in texts.iter().zip(values.chunks(self.embed_dim())) {
                if !is_finite(embedding) {
                    return Err(Error::NonFiniteText { text: text.as_ref().into() });
                }
                let embedding = embedding.to_vec();
                all.push(if self.normalise { unit_length(embedding) } else { embedding });
            }
        }
        Ok(all)
    }

    /// The embedding of each class: the mean of those of its label in all templates, each of length 1, and itself of length 1
    /// (section 3.1.4 of the CLIP paper). Without templates the labels themselves are embedded.
    pub fn classes(&mut self, labels: &[String], templates: &[String]) -> Result<Vec<Vec<f32>>, Error> {
        if labels.is_empty() {
            return Err(Error::NoLabels);
        }
        if let Some(template) = templates.iter().find(|template| !template.contains(LABEL)) {
            return Err(Error::Template { template: template.clone() });
        }
        let usual = [LABEL.to_string()];
        let templates = if templates.is_empty() { &usual[..] } else { templates };
        let texts: Vec<String> =
            labels.iter().flat_map(|label| templates.iter().map(move |t| t.replace(LABEL, label))).collect();
        let embeddings: Vec<Vec<f32>> = self.embed(&texts)?.into_iter().map(unit_length).collect();
        let mean = |of_class: &[Vec<f32>]| {
            let sum = |i: usize| of_class.iter().map(|embedding| f64::from(embedding[i])).sum::<f64>();
            unit_length((0..self.embed_dim()).map(|i| (sum(i) / of_class.len() as f64) as f32).collect())
        };
        Ok(embeddings.chunks(templates.len()).map(mean).collect())
    }

    fn ids(&self, text: &str) -> Result<Vec<i32>, Error> {
        let tokens = self.tokeniser.encode(text)?;
        if tokens.length > self.tower.context && !self.truncate {
            let (tokens, context) = (tokens.length, self.tower.context);
            return Err(Error::TextLength { text: text.into(), tokens, context });
        }
        Ok(tokens.ids)
    }
}

/// A vector scaled to length 1.
fn unit_length(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    vector
}

/// A checkpoint that classifies images by texts: an image-text model becomes a classifier of these labels, with softmax for
/// CLIP and a sigmoid for each label for SigLIP.
pub fn zero_shot(
    checkpoint: Checkpoint,
    labels: &[String],
    templates: &[String],
    truncate: bool,
    options: &ModelOptions,
) -> Result<Checkpoint, Error> {
    let texts = labels.len() * templates.len().max(1);
    let options = ModelOptions::new().batch(texts.clamp(1, 64)).device(options.device);
    let mut tower = TextEmbed::new(&checkpoint, &options)?.truncating(truncate);
    let embeddings = tower.classes(labels, templates)?;
    Ok(checkpoint.into_zero_shot(labels.to_vec(), &embeddings)?)
}
