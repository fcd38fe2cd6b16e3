//! What in a picture a model looks at, and what speaks for a class: maps by attention rollout, by gradient-weighted
//! attention, by Grad-CAM (Selvaraju et al., 2017), or of a single layer's attention.

mod contributions;
mod graphs;

use std::fmt;
use std::str::FromStr;

use vit_graph::device::Device;
use vit_models::weights::Weights;
use vit_models::{Architecture, Config, Mode, ProblemType};

use crate::layers::{Layer, attention_layers, covered};
use crate::runner::Runner;
use crate::{InsightError, Map, rollout_of};
use graphs::{Evidence, Start};

/// How a map is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Attention rollout: what the answer can have seen, whatever the class.
    Rollout,
    /// Attention rollout weighted by a class's gradients (Chefer et al., 2021). Where the mean of the patches answers, it
    /// starts from what each of them adds to the class's logit.
    Gradient,
    /// The last feature map weighted by a class's gradients.
    GradCam,
    /// The attention of one layer.
    Attention {
        /// Which layer, from 0; `None` for the last.
        layer: Option<usize>,
        /// Which head, from 0; `None` for the mean of all.
        head: Option<usize>,
    },
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

/// What to explain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExplainOptions {
    /// How; `None` for what suits the model: rollout and gradient where all layers attend over the same tokens, Grad-CAM
    /// elsewhere.
    pub method: Option<Method>,
    /// How many of the likeliest classes get a map of their own; 0 means 1.
    pub top: usize,
    /// Classes that get a map instead of the likeliest; empty for those.
    pub classes: Vec<usize>,
    /// Pictures that are run at once; 0 means 1.
    pub batch: usize,
}

impl ExplainOptions {
    /// Classes are asked for only where they are there and some method shows them.
    fn check_classes(&self, classes: usize, methods: &[Method]) -> Result<(), InsightError> {
        if self.classes.is_empty() {
            return Ok(());
        }
        let reason = match self.classes.iter().find(|&&class| class >= classes) {
            _ if classes == 0 => "this model has no classification head, so it has no classes".to_string(),
            Some(class) => format!("there is no class {class}; there are 0 to {}", classes - 1),
            None if methods.iter().any(|method| matches!(method, Method::Gradient | Method::GradCam)) => return Ok(()),
            None => "maps of chosen classes are made by --method gradient or gradcam".to_string(),
        };
        Err(InsightError::Unsuitable(reason))
    }
}

/// What a map is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// The whole answer.
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

/// What was found out about one picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Every class's logit; empty where there is no head.
    pub logits: Vec<f32>,
    /// Every class's probability: all together 1, or each by itself where an image may have several labels.
    pub probabilities: Vec<f32>,
    /// The maps: what is not about a class first, then the likeliest classes, or those asked for.
    pub maps: Vec<(Subject, Map)>,
}

/// A model that explains itself.
pub struct Explainer {
    architecture: Architecture,
    problem_type: ProblemType,
    top: usize,
    classes: Vec<usize>,
    forward: Runner,
    attention: Option<Layers>,
    by_class: Option<(Runner, Evidence)>,
}

/// What the forward pass says about attention.
enum Layers {
    /// All of them, for rollout.
    All(usize, Start),
    /// One of them.
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
        let is_vit = matches!(architecture, Architecture::Vit(_));
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
        for method in methods {
            match method {
                Method::Rollout => {
                    let start = graphs::rollout(&mut forward, architecture, &layers)?;
                    attention = Some(Layers::All(layers.len(), start));
                }
                Method::Attention { layer, head } => {
                    let layer = chosen(&layers, layer, head)?;
                    graphs::one_layer(&mut forward, &layer, head)?;
                    attention = Some(Layers::One(layer, head));
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
            top: options.top.max(1),
            classes: options.classes.clone(),
            forward,
            attention,
            by_class,
        })
    }

    /// How many pictures are run at once.
    pub fn batch(&self) -> usize {
        self.forward.batch()
    }

    /// What the first, second, … map of every explanation is, in a few words, given the classes' names.
    pub fn maps(&self, name: impl Fn(usize) -> String) -> Vec<String> {
        let attention = match &self.attention {
            None => None,
            Some(Layers::All(..)) => Some(Subject::Answer.to_string()),
            Some(Layers::One(layer, head)) => Some(Subject::Layer(layer.name.clone(), *head).to_string()),
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

    /// Explains prepared pictures, `[channels, height, width]` each, at most a batch.
    pub fn explain(&mut self, images: &[&[f32]]) -> Result<Vec<Explanation>, InsightError> {
        if images.len() > self.batch() {
            let (found, most) = (images.len(), self.batch());
            return Err(InsightError::Unsuitable(format!("{found} pictures do not fit into a batch of {most}")));
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
            Some(Layers::One(layer, head)) => {
                let weights = self.forward.read(graphs::ONE)?;
                for (explanation, weights) in found.iter_mut().zip(weights.chunks(weights.len() / batch)) {
                    let subject = Subject::Layer(layer.name.clone(), *head);
                    explanation.maps.push((subject, layer.received(&self.architecture, weights)?));
                }
            }
            Some(Layers::All(count, start)) => {
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

    /// Runs pairs of picture and class, as many at once as fit.
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

/// The classes with the largest logits, the largest first.
fn likeliest(logits: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

fn chosen(layers: &[Layer], layer: Option<usize>, head: Option<usize>) -> Result<Layer, InsightError> {
    let Some(last) = layers.last() else {
        return Err(InsightError::Unsuitable(
            "this model has no attention to show; use --method gradcam, which works with every model".into(),
        ));
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

/// The layers of one picture of a batch.
fn flows_of(flows: &[Vec<f32>], batch: usize, index: usize) -> Vec<&[f32]> {
    flows.iter().map(|flow| &flow[index * flow.len() / batch..(index + 1) * flow.len() / batch]).collect()
}

/// The patches among all tokens, as a map.
fn patches(architecture: &Architecture, tokens: Vec<f32>) -> Result<Map, InsightError> {
    let Architecture::Vit(vit) = architecture else {
        return Err(InsightError::Unsuitable(
            "this needs patch tokens, which only Vision Transformers have; use gradcam".into(),
        ));
    };
    let values = tokens[vit.prefix_tokens().min(tokens.len())..].to_vec();
    Map::new(vit.grid(), values, vit.image_size, covered(architecture, vit.grid()))
}
