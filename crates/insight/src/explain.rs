//! Relevance maps: attention rollout, gradient-weighted attention rollout, Grad-CAM (Selvaraju et al., 2017), or the attention
//! of a single layer.

mod contributions;
mod graphs;

use std::fmt;
use std::str::FromStr;

use vit_graph::device::Device;
use vit_models::vit::Vit;
use vit_models::weights::Weights;
use vit_models::{Architecture, Config, Mode, ProblemType};

use crate::layers::{Layer, attention_layers, covered};
use crate::runner::Runner;
use crate::{InsightError, Map, rollout_of};
use graphs::{Evidence, InitialRelevance};

/// How a map is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Attention rollout, independent of the class.
    Rollout,
    /// Attention rollout weighted by a class's gradients (Chefer et al., 2021). With mean pooling, the initial relevance of
    /// a patch is its contribution to the class's logit.
    Gradient,
    /// Grad-CAM: the last feature map weighted by a class's gradients.
    GradCam,
    /// The attention of one layer.
    Attention {
        /// Index of the layer; `None` for the last.
        layer: Option<usize>,
        /// Index of the head; `None` for the mean over heads.
        head: Option<usize>,
    },
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Rollout => "rollout",
            Method::Gradient => "gradient",
            Method::GradCam => "gradcam",
            Method::Attention { .. } => "attention",
        })
    }
}

impl FromStr for Method {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "rollout" => Ok(Method::Rollout),
            "gradient" => Ok(Method::Gradient),
            "gradcam" => Ok(Method::GradCam),
            "attention" => Ok(Method::Attention { layer: None, head: None }),
            other => Err(format!("`{other}` is not a method; use rollout, gradient, gradcam or attention")),
        }
    }
}

/// What to compute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExplainOptions {
    /// The method; `None` for what suits the model: rollout and gradient if all layers attend over the same tokens, else
    /// Grad-CAM.
    pub method: Option<Method>,
    /// Number of top classes that get a map each; 0 means 1.
    pub top: usize,
    /// Classes that get a map each; empty for the top ones.
    pub classes: Vec<usize>,
    /// Images per batch; 0 means 1.
    pub batch: usize,
}

impl ExplainOptions {
    /// Checks that chosen classes exist and that the methods depend on the class.
    fn check_classes(&self, classes: usize, methods: &[Method]) -> Result<(), InsightError> {
        if self.classes.is_empty() {
            return Ok(());
        }
        let reason = match self.classes.iter().find(|&&class| class >= classes) {
            _ if classes == 0 => "this model has no classification head, so it has no classes".to_string(),
            Some(class) => format!("there is no class {class}; there are 0 to {}", classes - 1),
            None if methods.iter().any(|method| matches!(method, Method::Gradient | Method::GradCam)) => return Ok(()),
            None => {
                let instead = &[Method::Gradient, Method::GradCam];
                return Err(InsightError::ClassIndependent { method: methods[0], instead });
            }
        };
        Err(InsightError::Unsuitable(reason))
    }
}

/// What a map is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// The output as a whole.
    Answer,
    /// A layer, all heads of it or one.
    Layer(String, Option<usize>),
    /// A class.
    Class(usize),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Answer => write!(f, "attention rollout"),
            Subject::Layer(name, None) => write!(f, "{name}, all heads"),
            Subject::Layer(name, Some(head)) => write!(f, "{name}, head {head}"),
            Subject::Class(class) => write!(f, "class {class}"),
        }
    }
}

/// The explanation of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Every class's logit; empty without a classification head.
    pub logits: Vec<f32>,
    /// Every class's probability, by softmax or, for several labels per image, by sigmoid.
    pub probabilities: Vec<f32>,
    /// The maps: class-independent ones first, then the top or chosen classes.
    pub maps: Vec<(Subject, Map)>,
}

/// A model compiled for explanations.
pub struct Explainer {
    architecture: Architecture,
    problem_type: ProblemType,
    methods: Vec<Method>,
    top: usize,
    classes: Vec<usize>,
    forward: Runner,
    attention: Option<AttentionSource>,
    by_class: Option<(Runner, Evidence)>,
}

/// Which attention weights the forward pass outputs.
enum AttentionSource {
    /// Those of all layers, for rollout.
    All(usize, InitialRelevance),
    /// Those of one layer.
    One(Layer, Option<usize>),
}

impl Explainer {
    /// Prepares a model on a device.
    pub fn new(
        config: &Config,
        weights: &Weights,
        device: &dyn Device,
        options: &ExplainOptions,
    ) -> Result<Explainer, InsightError> {
        let Config { architecture, problem_type, .. } = config;
        let batch = options.batch.max(1);
        let plain = architecture.build(batch, Mode::Inference)?;
        let layers = attention_layers(architecture, &plain);
        let is_vit = architecture.downcast_ref::<Vit>().is_some();
        let classes = architecture.classes();
        let methods = match options.method {
            Some(method) => vec![method],
            None if is_vit && !layers.is_empty() && classes == 0 => vec![Method::Rollout],
            None if is_vit && !layers.is_empty() => vec![Method::Rollout, Method::Gradient],
            None => vec![Method::GradCam],
        };
        options.check_classes(classes, &methods)?;
        let (mut attention, mut by_class) = (None, None);
        let mut forward = plain;
        forward.retain_outputs(|name| name == "logits");
        for &method in &methods {
            match method {
                Method::Rollout => {
                    let start = graphs::rollout(&mut forward, architecture, &layers)?;
                    attention = Some(AttentionSource::All(layers.len(), start));
                }
                Method::Attention { layer, head } => {
                    let layer = chosen(&layers, layer, head)?;
                    graphs::one_layer(&mut forward, &layer, head)?;
                    attention = Some(AttentionSource::One(layer, head));
                }
                Method::Gradient | Method::GradCam => {
                    let (graph, evidence) = graphs::by_class(architecture, batch, method)?;
                    by_class = Some((Runner::new(&graph, weights, device)?, evidence));
                }
            }
        }
        let forward = Runner::new(&forward, weights, device)?;
        Ok(Explainer {
            architecture: architecture.clone(),
            problem_type: *problem_type,
            methods,
            top: options.top.max(1),
            classes: options.classes.clone(),
            forward,
            attention,
            by_class,
        })
    }

    /// Images per batch.
    pub fn batch(&self) -> usize {
        self.forward.batch()
    }

    /// Chooses other classes, as [`ExplainOptions`] does.
    pub fn choose_classes(&mut self, top: usize, classes: &[usize]) -> Result<(), InsightError> {
        let options = ExplainOptions { top, classes: classes.to_vec(), ..ExplainOptions::default() };
        options.check_classes(self.architecture.classes(), &self.methods)?;
        (self.top, self.classes) = (top.max(1), options.classes);
        Ok(())
    }

    /// Names of the first, second, … map of every explanation; `name` gives the name of a class.
    pub fn maps(&self, name: impl Fn(usize) -> String) -> Vec<String> {
        let attention = match &self.attention {
            None => None,
            Some(AttentionSource::All(..)) => Some(Subject::Answer.to_string()),
            Some(AttentionSource::One(layer, head)) => Some(Subject::Layer(layer.name.clone(), *head).to_string()),
        };
        let rank = |rank: usize| match rank {
            1 => "likeliest class".to_string(),
            2 => "second class".to_string(),
            3 => "third class".to_string(),
            _ => format!("{rank}th class"),
        };
        let classes: Vec<String> = match self.by_class {
            None => Vec::new(),
            Some(_) if self.classes.is_empty() => (1..=self.top.min(self.architecture.classes())).map(rank).collect(),
            Some(_) => self.classes.iter().map(|&class| name(class)).collect(),
        };
        attention.into_iter().chain(classes).collect()
    }

    /// Explains at most a batch of preprocessed images, `[channels, height, width]` each.
    pub fn explain(&mut self, images: &[&[f32]]) -> Result<Vec<Explanation>, InsightError> {
        if images.len() > self.batch() {
            let (found, most) = (images.len(), self.batch());
            return Err(InsightError::Unsuitable(format!("{found} images do not fit into a batch of {most}")));
        }
        self.forward.run(images.iter().copied(), &[])?;
        let classes = self.architecture.classes();
        let logits = if classes > 0 { self.forward.read("logits")? } else { Vec::new() };
        let explanation = |i: usize| {
            let logits = logits.chunks(classes.max(1)).nth(i).unwrap_or(&[]).to_vec();
            Explanation { probabilities: self.problem_type.probabilities(&logits), logits, maps: vec![] }
        };
        let mut found: Vec<Explanation> = (0..images.len()).map(explanation).collect();
        self.add_attention(&mut found)?;
        self.add_classes(images, &mut found)?;
        Ok(found)
    }

    fn add_attention(&self, found: &mut [Explanation]) -> Result<(), InsightError> {
        let batch = self.batch();
        match &self.attention {
            None => {}
            Some(AttentionSource::One(layer, head)) => {
                let weights = self.forward.read(graphs::ONE)?;
                for (explanation, weights) in found.iter_mut().zip(weights.chunks(weights.len() / batch)) {
                    let subject = Subject::Layer(layer.name.clone(), *head);
                    explanation.maps.push((subject, layer.received(&self.architecture, weights)?));
                }
            }
            Some(AttentionSource::All(count, start)) => {
                let flows = read_flows(&self.forward, *count)?;
                let start = start.read(&self.forward, &self.architecture)?;
                for (i, explanation) in found.iter_mut().enumerate() {
                    let layers = flows_of(&flows, batch, i);
                    let row = rollout_of(&start[i], &layers)?;
                    explanation.maps.push((Subject::Answer, patches(&self.architecture, row)?));
                }
            }
        }
        Ok(())
    }

    /// Runs all pairs of image and class, a batch of pairs at a time.
    fn add_classes(&mut self, images: &[&[f32]], found: &mut [Explanation]) -> Result<(), InsightError> {
        let Some((runner, evidence)) = &mut self.by_class else { return Ok(()) };
        let classes = self.architecture.classes();
        let chosen = |logits: &[f32]| match self.classes.is_empty() {
            true => likeliest(logits, self.top),
            false => self.classes.clone(),
        };
        let pairs: Vec<(usize, usize)> = (found.iter().enumerate())
            .flat_map(|(i, e)| chosen(&e.logits).into_iter().map(move |class| (i, class)))
            .collect();
        for pairs in pairs.chunks(runner.batch()) {
            let mut one_hot = vec![0.0; runner.batch() * classes];
            pairs.iter().enumerate().for_each(|(row, (_, class))| one_hot[row * classes + class] = 1.0);
            runner.run(pairs.iter().map(|(image, _)| images[*image]), &[(graphs::CLASS, &one_hot)])?;
            let maps = evidence.maps(runner, &self.architecture, pairs.len())?;
            for (&(image, class), map) in pairs.iter().zip(maps) {
                found[image].maps.push((Subject::Class(class), map));
            }
        }
        Ok(())
    }
}

/// The methods that suit a model.
pub fn suitable_methods(architecture: &Architecture) -> Result<Vec<Method>, InsightError> {
    let layers = attention_layers(architecture, &architecture.build(1, Mode::Inference)?);
    let same_tokens = architecture.downcast_ref::<Vit>().is_some() && !layers.is_empty();
    let has_classes = architecture.classes() > 0;
    let methods = [
        (Method::Rollout, same_tokens),
        (Method::Gradient, same_tokens && has_classes),
        (Method::GradCam, has_classes),
        (Method::Attention { layer: None, head: None }, !layers.is_empty()),
    ];
    Ok(methods.into_iter().filter(|(_, suits)| *suits).map(|(method, _)| method).collect())
}

/// The classes with the largest logits, in descending order.
fn likeliest(logits: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

fn chosen(layers: &[Layer], layer: Option<usize>, head: Option<usize>) -> Result<Layer, InsightError> {
    let Some(last) = layers.last() else {
        return Err(InsightError::Method {
            method: Method::Attention { layer, head },
            reason: "this model has no attention",
            instead: &[Method::GradCam],
        });
    };
    let chosen = match layer {
        None => last,
        Some(index) => layers.get(index).ok_or_else(|| {
            let names = format!("0 ({}) to {} ({})", layers[0].name, layers.len() - 1, last.name);
            InsightError::Unsuitable(format!("there is no layer {index}; there are {names}"))
        })?,
    };
    match head {
        Some(head) if head >= chosen.heads => Err(InsightError::Unsuitable(format!(
            "there is no head {head} in {}; there are 0 to {}",
            chosen.name,
            chosen.heads - 1
        ))),
        _ => Ok(chosen.clone()),
    }
}

/// Every layer's `[batch, tokens, tokens]`.
fn read_flows(runner: &Runner, count: usize) -> Result<Vec<Vec<f32>>, InsightError> {
    (0..count).map(|layer| runner.read(&graphs::flow(layer))).collect()
}

/// One image of the batch, in every layer.
fn flows_of(flows: &[Vec<f32>], batch: usize, index: usize) -> Vec<&[f32]> {
    flows.iter().map(|flow| &flow[index * flow.len() / batch..(index + 1) * flow.len() / batch]).collect()
}

/// The patch tokens as a map.
fn patches(architecture: &Architecture, tokens: Vec<f32>) -> Result<Map, InsightError> {
    let Some(sequence) = architecture.tokens() else {
        return Err(InsightError::Unsuitable("only Vision Transformers have patch tokens".into()));
    };
    let values = tokens[sequence.prefix.min(tokens.len())..].to_vec();
    Map::new(sequence.grid, values, architecture.image_size(), covered(architecture, sequence.grid))
}
