//! A model compiled for evaluation. It stays compiled while a run trains: each evaluation only replaces its parameters.

use std::ops::ControlFlow;

use vit_data::loader::Unreadable;
use vit_data::{ApplyPreprocess, Pipeline, Preprocess, PreprocessError, Samples};
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Elements, Executable, Parameters};
use vit_models::{Config, ProblemType};

use super::features::FeatureRun;
use super::metrics::{Evaluation, MultiLabelEvaluation};
use super::neighbours::Neighbours;
use super::pairs::{EvaluatedPairs, FACTORS};
use super::{EvaluationOutcome, Prediction, TaskEvaluation, inference};
use crate::error::TrainError;
use crate::processes::Processes;

pub(crate) struct Evaluator {
    executable: Box<dyn Executable>,
    preprocess: Preprocess,
    problem_type: ProblemType,
    classes: usize,
    batch: usize,
    /// What is read of each sample, unless it is its neighbours' votes.
    output: &'static str,
    /// Of a model that is trained without labels.
    neighbours: Option<Neighbours>,
    /// Of an image-text model; `classes` is then the width of both factors.
    pairs: Option<EvaluatedPairs>,
    /// The width of its features.
    width: usize,
}

impl Evaluator {
    /// Compiles a model for batches of this size.
    pub fn new(
        device: &dyn Device,
        config: &Config,
        parameters: &mut dyn Parameters,
        batch: usize,
    ) -> Result<Evaluator, TrainError> {
        Self::compiled(device, config, parameters, batch, None)
    }

    /// Compiles an image-text model, which is evaluated on pairs.
    pub fn of_pairs(
        device: &dyn Device,
        config: &Config,
        parameters: &mut dyn Parameters,
        batch: usize,
        pairs: EvaluatedPairs,
    ) -> Result<Evaluator, TrainError> {
        let evaluator = Self::compiled(device, config, parameters, batch, None)?;
        Ok(Evaluator { pairs: Some(pairs), ..evaluator })
    }

    /// Compiles a model without classes, whose features are compared with those of labelled training images.
    pub fn of_features(
        device: &dyn Device,
        config: &Config,
        parameters: &mut dyn Parameters,
        batch: usize,
        neighbours: Neighbours,
    ) -> Result<Evaluator, TrainError> {
        Self::compiled(device, config, parameters, batch, Some(neighbours))
    }

    fn compiled(
        device: &dyn Device,
        config: &Config,
        parameters: &mut dyn Parameters,
        batch: usize,
        neighbours: Option<Neighbours>,
    ) -> Result<Evaluator, TrainError> {
        let build = |batch: usize| {
            let mut graph = inference(config, batch)?;
            neighbours.as_ref().map_or(Ok(()), |neighbours| neighbours.append(&mut graph))?;
            Ok(graph)
        };
        let graph = build(batch)?;
        let output = if graph.output(FACTORS).is_ok() { FACTORS } else { "logits" };
        let (classes, width) = match &neighbours {
            Some(neighbours) => (neighbours.classes(), graph.shape(graph.output("features")?).last()),
            None => (graph.shape(graph.output(output)?).elements() / batch, 0),
        };
        let held = parameters.held_bytes();
        let executable =
            device.compile(&graph, parameters).map_err(|error| suggest_batch(error, device, batch, held, build))?;
        let preprocess = config.preprocessing.clone();
        preprocess.validate()?;
        Ok(Evaluator {
            executable,
            preprocess,
            problem_type: config.problem_type,
            classes,
            batch,
            output,
            neighbours,
            pairs: None,
            width,
        })
    }

    /// Computes the features of the references with the present parameters.
    fn refer(&mut self, threads: usize) -> Result<(), TrainError> {
        let Evaluator { executable, preprocess, batch, neighbours: Some(neighbours), width, .. } = self else {
            return Ok(());
        };
        let (batch, width) = (*batch, *width);
        let (samples, references) = neighbours.references();
        let zeros = vec![0.0; references.len() * width];
        executable.write("references", Elements::F32(&zeros))?;
        let executable = &mut **executable;
        let mut run = FeatureRun { executable, output: "features", width, preprocess, batch, threads };
        let Some((features, _)) = run.of(samples, references, |_| true)? else { return Ok(()) };
        Ok(executable.write("references", Elements::F32(&features))?)
    }

    /// Replaces the model's parameters.
    pub fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), TrainError> {
        Ok(self.executable.set_parameters(parameters)?)
    }

    /// Evaluates the model on all samples; see [`super::evaluate`]. Batches are dealt to the processes in turn, and rank 0
    /// adds their logits in the order of the samples, so that the metrics do not depend on the number of processes.
    pub fn run(
        &mut self,
        samples: &dyn Samples,
        effort: &EvaluationEffort,
        mut progress: impl FnMut(usize, usize) -> bool,
    ) -> Result<Evaluated, TrainError> {
        let &EvaluationEffort { threads, worst, processes } = effort;
        self.refer(threads)?;
        let Evaluator { executable, preprocess, classes, batch, output, neighbours, pairs, .. } = self;
        let compared = neighbours.as_ref().map_or(0, |neighbours| neighbours.references().1.len());
        let mut similarities = vec![0.0; *batch * compared];
        let (classes, batch, output) = (*classes, *batch, *output);
        let by_class = || Box::new(Evaluation::new(classes, worst));
        let evaluation = match (&*pairs, self.problem_type) {
            (Some(pairs), _) => TaskEvaluation::Pairs(Box::new(pairs.evaluation(classes / 2))),
            _ if compared > 0 => TaskEvaluation::Neighbours(by_class()),
            (None, ProblemType::SingleLabel) => TaskEvaluation::Single(by_class()),
            (None, ProblemType::MultiLabel) => TaskEvaluation::Multi(MultiLabelEvaluation::new(classes)),
        };
        let mut outcome =
            EvaluationOutcome { evaluation, unreadable: Vec::new(), predictions: Vec::new(), non_finite: Vec::new() };
        let size = preprocess.output_len();
        let (mut images, mut logits) = (vec![0.0; batch * size], vec![0.0; batch * classes]);
        let mut own = EvaluatedBatch::default();
        let dealt = DealtBatches { samples: samples.len(), batch, rank: processes.rank(), processes: processes.size() };
        let prepare = |index: usize| {
            samples.announce_after(index);
            let image = samples
                .image_for(index, preprocess.source_side())
                .map_err(|error| Unreadable::new(index, samples.name(index), &error))?;
            let failed = |error: PreprocessError| Unreadable {
                sample: index,
                name: samples.name(index),
                reason: error.to_string(),
            };
            preprocess.apply(&image).map_err(failed)
        };
        let name = |at: usize| samples.name(dealt.sample(at));
        let pipeline = Pipeline { threads, look_ahead: 2 * batch.max(threads), name: &name };
        // Adds the batches of all processes, and decides whether to go on.
        let mut finish_round = |round: usize, own: EvaluatedBatch| {
            let wanted = match processes.size() {
                1 => {
                    outcome.add(samples, classes, own)?;
                    progress(dealt.done(round), samples.len())
                }
                _ => {
                    let gathered = processes.gather(own.to_bytes())?;
                    for batch in gathered.iter().flatten() {
                        outcome.add(samples, classes, EvaluatedBatch::from_bytes(batch)?)?;
                    }
                    let wanted = processes.broadcast(vec![u8::from(progress(dealt.done(round), samples.len()))])?;
                    wanted == [1]
                }
            };
            Ok::<_, TrainError>(if wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        };
        let end = pipeline.run(
            dealt.len(),
            |at| prepare(dealt.sample(at)),
            |at, image| {
                match image {
                    Ok(pixels) => {
                        images[own.present.len() * size..][..size].copy_from_slice(&pixels);
                        own.present.push(dealt.sample(at));
                    }
                    Err(sample) => own.unreadable.push(sample),
                }
                if (at + 1) % batch != 0 && at + 1 != dealt.len() {
                    return Ok(ControlFlow::Continue(()));
                }
                if !own.present.is_empty() {
                    executable.write("image", Elements::F32(&images))?;
                    if let Some(pairs) = &*pairs {
                        pairs.write_texts(executable.as_mut(), &own.present, batch)?;
                    }
                    executable.run()?;
                    match &*neighbours {
                        None => executable.read(output, &mut logits)?,
                        Some(neighbours) => {
                            executable.read("similarities", &mut similarities)?;
                            let rows = similarities.chunks_exact(compared).zip(logits.chunks_exact_mut(classes));
                            rows.for_each(|(similarities, scores)| neighbours.vote(similarities, scores));
                        }
                    }
                }
                own.logits = logits[..own.present.len() * classes].to_vec();
                finish_round(at / batch, std::mem::take(&mut own))
            },
        )?;
        if end.is_break() {
            return Ok(Evaluated::Interrupted);
        }
        // A process may have no batch in the last round.
        let missing = dealt.len().div_ceil(batch)..dealt.rounds();
        for round in missing {
            if finish_round(round, EvaluatedBatch::default())?.is_break() {
                return Ok(Evaluated::Interrupted);
            }
        }
        Ok(if processes.is_root() { Evaluated::Here(Box::new(outcome)) } else { Evaluated::Elsewhere })
    }
}

/// How an evaluation is carried out.
pub(crate) struct EvaluationEffort<'a> {
    /// Threads that prepare images.
    pub threads: usize,
    /// How many of the most confident mistakes are kept.
    pub worst: usize,
    /// The processes that share the samples.
    pub processes: &'a Processes,
}

/// The end of an evaluation.
pub(crate) enum Evaluated {
    /// `progress` ended it.
    Interrupted,
    /// Rank 0 has the outcome.
    Elsewhere,
    /// The outcome.
    Here(Box<EvaluationOutcome>),
}

/// The samples of one process: of consecutive batches, process `rank` has every `processes`th.
#[derive(Clone, Copy)]
struct DealtBatches {
    samples: usize,
    batch: usize,
    rank: usize,
    processes: usize,
}

impl DealtBatches {
    /// The number of samples.
    fn len(&self) -> usize {
        let whole = self.samples / (self.batch * self.processes);
        let rest = self.samples - whole * self.batch * self.processes;
        whole * self.batch + rest.saturating_sub(self.rank * self.batch).min(self.batch)
    }

    /// The index of one of them in the dataset.
    fn sample(&self, at: usize) -> usize {
        (at / self.batch * self.processes + self.rank) * self.batch + at % self.batch
    }

    /// How often each process evaluates a batch, the last time perhaps an empty one.
    fn rounds(&self) -> usize {
        self.samples.div_ceil(self.batch * self.processes)
    }

    /// The samples that all processes have evaluated after a round.
    fn done(&self, round: usize) -> usize {
        ((round + 1) * self.batch * self.processes).min(self.samples)
    }
}

/// The logits of a batch.
#[derive(Default)]
struct EvaluatedBatch {
    /// The samples that could be read.
    present: Vec<usize>,
    unreadable: Vec<Unreadable>,
    /// A row per sample.
    logits: Vec<f32>,
}

impl EvaluatedBatch {
    /// The length of the header, the header as JSON, the logits.
    fn to_bytes(&self) -> Vec<u8> {
        let unreadable: Vec<_> = self.unreadable.iter().map(|one| (one.sample, &one.name, &one.reason)).collect();
        let header = serde_json::to_vec(&(&self.present, unreadable)).unwrap_or_default();
        let logits = self.logits.iter().flat_map(|logit| logit.to_le_bytes());
        (header.len() as u64).to_le_bytes().into_iter().chain(header).chain(logits).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Result<EvaluatedBatch, TrainError> {
        let wrong = || TrainError::Unsuitable("another process sent logits that cannot be read".into());
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (header, logits) = rest.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or_else(wrong)?;
        type Header = (Vec<usize>, Vec<(usize, String, String)>);
        let (present, unreadable): Header = serde_json::from_slice(header).map_err(|_| wrong())?;
        let unreadable = unreadable.into_iter().map(|(sample, name, reason)| Unreadable { sample, name, reason });
        let (logits, _) = logits.as_chunks::<4>();
        Ok(EvaluatedBatch {
            present,
            unreadable: unreadable.collect(),
            logits: logits.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        })
    }
}

impl EvaluationOutcome {
    /// Adds the next batch.
    fn add(&mut self, samples: &dyn Samples, classes: usize, batch: EvaluatedBatch) -> Result<(), TrainError> {
        let EvaluatedBatch { present, unreadable, logits } = batch;
        self.unreadable.extend(unreadable);
        if present.is_empty() {
            return Ok(());
        }
        let finite = |row: &[f32]| row.iter().all(|logit| logit.is_finite());
        let named = present.iter().zip(logits.chunks(classes.max(1))).filter(|(_, row)| !finite(row));
        self.non_finite.extend(named.map(|(&index, _)| samples.name(index)));
        match &mut self.evaluation {
            TaskEvaluation::Single(evaluation) | TaskEvaluation::Neighbours(evaluation) => {
                let label = |&index: &usize| samples.labels(index).first().copied().unwrap_or(u32::MAX);
                let labels: Vec<u32> = present.iter().map(label).collect();
                evaluation.add(&logits, &labels, &present)?;
                let rows = present.iter().zip(logits.chunks(classes.max(1)));
                let predicted = rows.map(|(&sample, row)| Prediction { sample, class: largest(row) });
                self.predictions.extend(predicted);
            }
            TaskEvaluation::Pairs(evaluation) => {
                let caption = |&index: &usize| samples.labels(index).first().copied().unwrap_or(u32::MAX);
                evaluation.add(&logits, &present.iter().map(caption).collect::<Vec<u32>>());
            }
            TaskEvaluation::Multi(evaluation) => {
                let labels: Vec<&[u32]> = present.iter().map(|&index| samples.labels(index)).collect();
                evaluation.add(&logits, &labels)?;
            }
        }
        Ok(())
    }
}

/// The first of the largest logits.
fn largest(logits: &[f32]) -> u32 {
    let greater = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, greater) as u32
}

#[cfg(test)]
mod tests {
    use vit_data::loader::LoaderError;
    use vit_data::{Image, ImageError};
    use vit_graph::device::Initial;

    use super::*;

    /// Samples of which one panics when it is decoded.
    struct Panicking;

    impl Samples for Panicking {
        fn len(&self) -> usize {
            5
        }

        fn classes(&self) -> &[String] {
            &[]
        }

        fn labels(&self, _: usize) -> &[u32] {
            &[0]
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn image(&self, index: usize) -> Result<Image, ImageError> {
            assert_ne!(index, 3, "a broken decoder");
            Ok(Image::from_rgb(32, 32, vec![7; 32 * 32 * 3]).unwrap())
        }
    }

    #[test]
    fn a_panic_in_a_thread_is_an_error_of_the_evaluation() {
        let vit_models::Variant { architecture, mut preprocessing, .. } = vit_models::variant("Ti/16@32").unwrap();
        preprocessing.image_size = architecture.image_size();
        let config =
            Config { name: None, architecture, preprocessing, labels: vec![], problem_type: Default::default() };
        let device = vit_cpu::Cpu::new(Some(1));
        let mut evaluator = Evaluator::new(&device, &config, &mut Initial { seed: 1 }, 2).unwrap();
        let effort = EvaluationEffort { threads: 2, worst: 0, processes: &Processes::default() };
        let error = evaluator.run(&Panicking, &effort, |_, _| true).err().unwrap();
        let TrainError::Loader(LoaderError::Panic { name, message }) = &error else { panic!("{error}") };
        assert!(name == "3" && message.contains("a broken decoder"), "{error}");
    }
}
