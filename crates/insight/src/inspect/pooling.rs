//! Class token against mean pooling: the same head applied to the class token and to the mean of the patch tokens. The
//! paper's appendix compares models trained with one or the other; this compares both poolings of one model.

use vit_graph::device::Device;
use vit_models::vit::{FinalNorm, Pooling, Vit};
use vit_models::weights::Weights;
use vit_models::{Architecture, Config, Mode, Network, ProblemType};
use vit_plot::axis::Axis;
use vit_plot::palette::{BLUE, FRAME, GRID, INK, MUTED, RED, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};
use vit_system::csv_line;

use super::Sample;
use super::figure::{Figure, FigureData};
use crate::InsightError;
use crate::runner::Runner;

/// The predictions for one image: from the class token, then from the mean.
struct PairedPrediction {
    name: String,
    label: Option<usize>,
    classes: [usize; 2],
    probabilities: [f32; 2],
    cosine: f64,
}

/// The two models and their predictions.
pub(super) struct PoolingComparison {
    runners: [Runner; 2],
    trained_with: Pooling,
    problem_type: ProblemType,
    labels: Vec<String>,
    predictions: Vec<PairedPrediction>,
}

/// Why a model cannot be evaluated with both poolings.
pub(super) fn impossible(architecture: &Architecture) -> String {
    let why = match architecture.downcast_ref::<Vit>() {
        Some(vit) if !vit.class_token => "this model has no class token",
        Some(vit) if vit.classes == 0 => "this model has no classification head",
        Some(vit) if !matches!(vit.pooling, Pooling::Token | Pooling::Mean) => "this model pools in another way",
        Some(vit) if vit.distillation_head => "this model has two heads, on the class and distillation tokens",
        Some(_) => "this model's last norm belongs to one kind of pooling",
        _ => "this model is not made of tokens",
    };
    format!("Class token against mean pooling: {why}.")
}

impl PoolingComparison {
    /// `None` if the model cannot be evaluated with both poolings.
    pub fn new(
        config: &Config,
        weights: &Weights,
        device: &dyn Device,
        batch: usize,
    ) -> Result<Option<Self>, InsightError> {
        let Some(vit) = config.architecture.downcast_ref::<Vit>() else { return Ok(None) };
        let both = vit.class_token
            && vit.classes > 0
            && matches!(vit.pooling, Pooling::Token | Pooling::Mean)
            && !vit.distillation_head
            && vit.final_norm == FinalNorm::BeforePooling;
        if !both {
            return Ok(None);
        }
        let runner = |pooling| {
            let mut graph = Vit { pooling, ..vit.clone() }.build(batch, Mode::Inference)?;
            graph.retain_outputs(|name| name == "logits" || name == "features");
            Runner::new(&graph, weights, device)
        };
        Ok(Some(PoolingComparison {
            runners: [runner(Pooling::Token)?, runner(Pooling::Mean)?],
            trained_with: vit.pooling,
            problem_type: config.problem_type,
            labels: config.labels.clone(),
            predictions: Vec::new(),
        }))
    }

    pub fn add(&mut self, samples: &[Sample]) -> Result<(), InsightError> {
        let mut outputs = Vec::new();
        for runner in &mut self.runners {
            runner.run(samples.iter().map(|sample| sample.input), &[])?;
            let split = |name: &str| -> Result<Vec<Vec<f32>>, InsightError> {
                let values = runner.read(name)?;
                Ok(values.chunks(values.len() / runner.batch()).map(<[f32]>::to_vec).collect())
            };
            outputs.push((split("logits")?, split("features")?));
        }
        for (i, sample) in samples.iter().enumerate() {
            let [first, second] = [0, 1].map(|way| top_class(self.problem_type, &outputs[way].0[i]));
            self.predictions.push(PairedPrediction {
                name: sample.name.into(),
                label: sample.label,
                classes: [first.0, second.0],
                probabilities: [first.1, second.1],
                cosine: cosine(&outputs[0].1[i], &outputs[1].1[i]),
            });
        }
        Ok(())
    }

    pub fn figure(&self) -> Figure {
        let count = self.predictions.len().max(1) as f64;
        let share = |test: &dyn Fn(&PairedPrediction) -> bool| {
            self.predictions.iter().filter(|a| test(a)).count() as f64 / count
        };
        let agree = 100.0 * share(&|a| a.classes[0] == a.classes[1]);
        let cosine = self.predictions.iter().map(|a| a.cosine).sum::<f64>() / count;
        let mean =
            |way: usize| 100.0 * self.predictions.iter().map(|a| f64::from(a.probabilities[way])).sum::<f64>() / count;
        let mut lines = vec![
            format!("same class for {agree:.1} % of {} images", self.predictions.len()),
            format!("mean confidence {:.1} % from the class token, {:.1} % from the mean", mean(0), mean(1)),
            format!("mean cosine of the two vectors {cosine:.3}"),
        ];
        let known = self.predictions.iter().filter(|a| a.label.is_some()).count();
        if known > 0 {
            let right = |way: usize| {
                let right = self.predictions.iter().filter(|a| a.label == Some(a.classes[way])).count();
                100.0 * right as f64 / known as f64
            };
            lines.push(format!("right {:.1} % from the class token, {:.1} % from the mean", right(0), right(1)));
        }
        let trained = match self.trained_with {
            Pooling::Mean => "the mean of the patch tokens",
            _ => "the class token",
        };
        Figure {
            name: "pooling",
            title: "Class token against mean pooling".into(),
            text: format!(
                "This model was trained to classify from {trained}. Here its head is also applied to the other: every dot is \
                 an image at the two confidences, red where the predicted classes differ. The closer the two, the more of \
                 the class token's information is in the patch tokens themselves."
            ),
            scene: self.draw(&lines),
            data: vec![FigureData::Csv(self.table())],
        }
    }

    fn table(&self) -> String {
        let name = |class: usize| self.labels.get(class).cloned().unwrap_or_else(|| class.to_string());
        let mut table = String::from(
            "file,label,class_token_answer,class_token_probability,mean_answer,mean_probability,cosine_of_features\n",
        );
        for a in &self.predictions {
            let label = a.label.map_or(String::new(), name);
            let [class_token, mean] = a.classes.map(name);
            let [class_token_probability, mean_probability] = a.probabilities.map(|p| p.to_string());
            let cosine = format!("{:.6}", a.cosine);
            let answers = [class_token, class_token_probability, mean, mean_probability];
            table += &csv_line([a.name.clone(), label].into_iter().chain(answers).chain([cosine]));
        }
        table
    }

    fn draw(&self, lines: &[String]) -> Scene {
        let mut scene = Scene::new(560.0, 540.0 + 20.0 * lines.len() as f32);
        scene.text(Text::new("Confidence from the class token and from the mean", [24.0, 28.0], 16.0).bold());
        for (index, line) in lines.iter().enumerate() {
            let at = [24.0, 54.0 + 20.0 * index as f32];
            scene.text(Text::new(line, at, 12.5).colour(MUTED).within(512.0));
        }
        let top = 66.0 + 20.0 * lines.len() as f32;
        let area = Area { x: 84.0, y: top, width: 400.0, height: 400.0 };
        let across = Axis { from: 0.0, to: 1.0, pixels: [area.x, area.right()] };
        let up = Axis { from: 0.0, to: 1.0, pixels: [area.bottom(), area.y] };
        for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let (x, y) = (across.place(tick), up.place(tick));
            scene.line(vec![[area.x, y], [area.right(), y]], 1.0, GRID);
            scene.line(vec![[x, area.y], [x, area.bottom()]], 1.0, GRID);
            let label = format!("{:.0} %", 100.0 * tick);
            scene.text(Text::new(&label, [area.x - 8.0, y], 11.5).colour(MUTED).anchor(Anchor::Right));
            scene.text(Text::new(label, [x, area.bottom() + 14.0], 11.5).colour(MUTED).anchor(Anchor::Middle));
        }
        scene.frame(area, FRAME);
        scene.dashes(vec![[area.x, area.bottom()], [area.right(), area.y]], 1.0, INK);
        for a in &self.predictions {
            let place = [across.place(f64::from(a.probabilities[0])), up.place(f64::from(a.probabilities[1]))];
            scene.dot(place, 4.2, WHITE);
            scene.dot(place, 3.2, if a.classes[0] == a.classes[1] { BLUE } else { RED });
        }
        let under = [area.x + 200.0, area.bottom() + 40.0];
        scene.text(Text::new("from the class token", under, 12.5).bold().anchor(Anchor::Middle));
        let beside = [26.0, area.y + 200.0];
        scene.text(Text::new("from the mean of the patches", beside, 12.5).bold().anchor(Anchor::Middle).turned());
        scene
    }
}

/// The top class and its probability.
fn top_class(problem_type: ProblemType, logits: &[f32]) -> (usize, f32) {
    let (mut best, mut largest) = (0, f32::NEG_INFINITY);
    for (class, &logit) in logits.iter().enumerate() {
        if logit > largest {
            (best, largest) = (class, logit);
        }
    }
    (best, problem_type.probabilities(logits)[best])
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE)
}
