//! The captions of a run that trains an image-text model, as tokens: those of its training and of its validation images.

use std::sync::Arc;

use vit_data::Samples;
use vit_data::tokenise::Tokeniser;
use vit_graph::device::Elements;
use vit_models::TokenizerFiles;
use vit_models::clip::{Clip, TextTower};

use crate::error::TrainError;
use crate::step::pairs::{MAX_CAPTIONS, caption_codes, input_of_part};

/// The place of a label in a template.
const LABEL: &str = "{}";

/// The captions of a run.
pub(crate) struct RunCaptions {
    pub train: Captions,
    pub validation: Option<Captions>,
}

impl RunCaptions {
    /// Those of the samples; with a template, labels are put into it.
    pub fn new(
        clip: &Clip,
        tokenizer: Option<&TokenizerFiles>,
        template: Option<&str>,
        train: &dyn Samples,
        validation: Option<&dyn Samples>,
    ) -> Result<RunCaptions, TrainError> {
        let TextTower { vocabulary, context, .. } = clip.text;
        let unsuitable = |error: vit_data::tokenise::TokeniseError| TrainError::Unsuitable(error.to_string());
        let files = tokenizer.map(|files| (files.tokenizer.as_str(), &files.config));
        let tokeniser = Tokeniser::of_model(files, vocabulary, context).map_err(unsuitable)?.ok_or_else(|| {
            TrainError::Unsuitable(format!(
                "the model has no tokenizer.json, and CLIP's tokeniser does not suit a vocabulary of {vocabulary} tokens; \
                 copy the file into its folder"
            ))
        })?;
        if let Some(template) = template.filter(|template| !template.contains(LABEL)) {
            return Err(TrainError::Unsuitable(format!(
                "the template `{template}` has no {LABEL} where the label goes"
            )));
        }
        let encode = |captions: &[String]| -> Result<Arc<CaptionTokens>, TrainError> {
            if captions.len() > MAX_CAPTIONS {
                let (most, found) = (MAX_CAPTIONS, captions.len());
                return Err(TrainError::Unsuitable(format!(
                    "there are {found} captions; at most {most} are supported"
                )));
            }
            let mut tokens = CaptionTokens { ids: Vec::new(), starts: vec![0], padding: tokeniser.padding(), context };
            for caption in captions {
                let caption = template.map_or(caption.clone(), |template| template.replace(LABEL, caption));
                let encoded = tokeniser.encode(&caption).map_err(unsuitable)?;
                tokens.ids.extend(&encoded.ids[..encoded.length.min(context)]);
                tokens.starts.push(tokens.ids.len());
            }
            Ok(Arc::new(tokens))
        };
        let tokens = encode(train.classes())?;
        let validation = match validation {
            // Splits of one dataset have the same list.
            Some(samples) if samples.classes().as_ptr() == train.classes().as_ptr() => {
                Some(Captions::new(&clip.text, tokens.clone(), samples)?)
            }
            Some(samples) => Some(Captions::new(&clip.text, encode(samples.classes())?, samples)?),
            None => None,
        };
        Ok(RunCaptions { train: Captions::new(&clip.text, tokens, train)?, validation })
    }
}

/// Distinct captions as tokens.
struct CaptionTokens {
    /// One caption's after the other's, without padding.
    ids: Vec<i32>,
    /// Where each caption begins; the last entry is the end.
    starts: Vec<usize>,
    padding: i32,
    context: usize,
}

/// The captions of samples.
#[derive(Clone)]
pub(crate) struct Captions {
    tower: TextTower,
    tokens: Arc<CaptionTokens>,
    of_sample: Arc<[u32]>,
}

impl Captions {
    fn new(tower: &TextTower, tokens: Arc<CaptionTokens>, samples: &dyn Samples) -> Result<Self, TrainError> {
        let caption = |index: usize| match samples.labels(index) {
            [one] => Ok(*one),
            labels => Err(TrainError::Unsuitable(format!(
                "{} has {} captions; each image needs one",
                samples.name(index),
                labels.len()
            ))),
        };
        let of_sample = (0..samples.len()).map(caption).collect::<Result<_, _>>()?;
        Ok(Captions { tower: tower.clone(), tokens, of_sample })
    }

    /// The number of the caption of a sample.
    pub fn of(&self, sample: usize) -> u32 {
        self.of_sample[sample]
    }

    /// The input `ids` of samples, and `ends` where the model reads it.
    pub fn texts(&self, samples: &[usize]) -> Texts {
        let CaptionTokens { ids: all, starts, padding, context } = &*self.tokens;
        let mut ids = Vec::with_capacity(samples.len() * context);
        for (at, &sample) in samples.iter().enumerate() {
            let caption = self.of(sample) as usize;
            ids.extend(&all[starts[caption]..starts[caption + 1]]);
            ids.resize((at + 1) * context, *padding);
        }
        let ends = self.tower.pooling.reads_ids().then(|| self.tower.ends(&ids));
        Texts { ids, ends }
    }

    /// The texts of a process's share of a training batch, which has so many parts.
    pub fn of_batch(&self, samples: &[usize], parts: usize) -> BatchCaptions {
        let captions: Vec<u32> = samples.iter().map(|&sample| self.of(sample)).collect();
        let parts = samples.chunks(samples.len().div_ceil(parts.max(1)).max(1));
        BatchCaptions { parts: parts.map(|part| self.texts(part)).collect(), codes: caption_codes(&captions) }
    }
}

/// Texts as a text tower reads them.
pub(crate) struct Texts {
    pub ids: Vec<i32>,
    pub ends: Option<Vec<i32>>,
}

/// The inputs of a step for the captions of its batch.
pub(crate) struct BatchCaptions {
    parts: Vec<Texts>,
    codes: Vec<f32>,
}

impl BatchCaptions {
    /// The inputs by name.
    pub fn inputs(&self) -> Vec<(String, Elements<'_>)> {
        let mut inputs = vec![("captions".to_string(), Elements::F32(&self.codes))];
        for (part, Texts { ids, ends }) in self.parts.iter().enumerate() {
            inputs.push((input_of_part("ids", part), Elements::I32(ids)));
            inputs.extend(ends.iter().map(|ends| (input_of_part("ends", part), Elements::I32(ends))));
        }
        inputs
    }
}
