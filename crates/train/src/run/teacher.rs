//! A teacher for distillation: a compiled checkpoint whose logits are an input of the step.

use std::path::Path;

use vit_graph::device::{Device, Elements, Executable};
use vit_graph::rewrite::eliminate_dead_code;
use vit_models::{Changes, Checkpoint, Config, Mode, OpenOptions, ProblemType};

use crate::error::TrainError;

/// A model that only runs inference.
pub(crate) struct Teacher {
    executable: Box<dyn Executable>,
    /// Factor and addend per channel that turn the student's normalisation of images into the teacher's.
    colours: Vec<(f32, f32)>,
    images: Vec<f32>,
    /// Pixels of one channel of an image.
    plane: usize,
    /// The number of logits of a batch.
    outputs: usize,
}

impl Teacher {
    /// Opens a checkpoint, or the best model of a run, as the teacher of a student, for batches of this size.
    pub fn open(path: &Path, student: &Config, batch: usize, device: &dyn Device) -> Result<Teacher, TrainError> {
        let unfit = |what: String| TrainError::Teacher { path: path.into(), what };
        let mut checkpoint = Checkpoint::open(path, OpenOptions::default()).map_err(|e| unfit(e.to_string()))?;
        let (classes, channels) = (student.architecture.classes(), student.architecture.channels());
        let found = &checkpoint.config;
        if found.architecture.classes() != classes {
            let known = found.architecture.classes();
            return Err(unfit(format!("it knows {known} classes, and the dataset has {classes}")));
        }
        if !found.labels.is_empty() && found.labels != student.labels {
            let different = found.labels.iter().zip(&student.labels).position(|(own, given)| own != given).unwrap_or(0);
            return Err(unfit(format!(
                "its classes are not those of the dataset in the same order: class {different} is {:?} there and {:?} here",
                found.labels[different], student.labels[different]
            )));
        }
        if found.problem_type == ProblemType::MultiLabel {
            let what = "it gives images several labels (`problem_type` of its config.json), and a teacher gives one";
            return Err(unfit(what.into()));
        }
        if found.architecture.channels() != channels {
            let own = found.architecture.channels();
            return Err(unfit(format!("it sees {own} colour channels, and the student {channels}")));
        }
        let size = student.architecture.image_size();
        let resized = Changes { image_size: Some(size), ..Changes::default() };
        checkpoint.change(resized).map_err(|e| unfit(format!("it cannot take the student's images: {e}")))?;
        let Checkpoint { config, mut weights, .. } = checkpoint;
        let mut graph = config.architecture.build(batch, Mode::Inference)?;
        graph.retain_outputs(|name| name == "logits");
        let executable = device.compile(&eliminate_dead_code(&graph)?, &mut weights)?;
        let (own, given) = (&config.preprocessing, &student.preprocessing);
        let colours = own.mean.iter().zip(&own.std).zip(given.mean.iter().zip(&given.std));
        let colours: Vec<(f32, f32)> = colours.map(|((mean, std), (m, s))| (s / std, (m - mean) / std)).collect();
        let plane = size[0] * size[1];
        let images = vec![0.0; batch * channels * plane];
        Ok(Teacher { executable, colours, images, plane, outputs: batch * classes })
    }

    /// Its logits for any number of batches with the student's normalisation.
    pub fn answer(&mut self, images: &[f32]) -> Result<Vec<f32>, TrainError> {
        let batch = self.images.len();
        let mut logits = vec![0.0; images.len() / batch * self.outputs];
        for (images, logits) in images.chunks_exact(batch).zip(logits.chunks_exact_mut(self.outputs)) {
            let planes = self.images.chunks_mut(self.plane).zip(images.chunks(self.plane));
            for ((into, from), (factor, addend)) in planes.zip(self.colours.iter().cycle()) {
                into.iter_mut().zip(from).for_each(|(into, from)| *into = from * factor + addend);
            }
            self.executable.write("image", Elements::F32(&self.images))?;
            self.executable.run()?;
            self.executable.read("logits", logits)?;
        }
        Ok(logits)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use vit_cpu::Cpu;
    use vit_graph::Init;
    use vit_models::weights::safetensors::Dtype;
    use vit_models::weights::{Tensor, Weights};
    use vit_models::{Layout, Preprocess, Variant, variant};

    use super::*;

    /// A checkpoint of a small ResNet with random weights and running statistics.
    fn resnet() -> Checkpoint {
        let mut config = config("resnet18_cifar");
        let net = config.architecture.downcast_mut::<vit_models::resnet::ResNet>().unwrap();
        (net.depths, net.widths) = (vec![1, 1], vec![8, 16]);
        let mut weights = Weights::default();
        for (_, p) in config.architecture.build(1, Mode::Inference).unwrap().parameters() {
            let mut data = vec![0.0; p.shape.elements()];
            Init::Normal { std: 0.3 }.fill(7, &p.name, &mut data);
            if p.name.ends_with("running_var") {
                data.iter_mut().for_each(|v| *v = 0.5 + v.abs());
            }
            weights.insert(&p.name, Tensor { shape: p.shape.to_vec(), data }).unwrap();
        }
        let scheme = vit_models::weights::Scheme::Timm;
        Checkpoint { config, weights, scheme, source: PathBuf::new(), report: vec![], tokenizer: None }
    }

    fn config(name: &str) -> Config {
        let labels = vec!["a".to_string(), "b".to_string()];
        let Variant { architecture, preprocessing, .. } = variant(name).unwrap();
        let problem_type = ProblemType::default();
        let mut config = Config { name: None, architecture, preprocessing, labels, problem_type };
        config.architecture.set_classes(2);
        config
    }

    #[test]
    fn a_teacher_answers_as_in_evaluation_and_in_its_own_colours() {
        let device = Cpu::new(Some(1));
        let checkpoint = resnet();
        let folder = tempfile::tempdir().unwrap();
        checkpoint.save(folder.path(), Layout::Timm, Dtype::F32).unwrap();
        let student = config("deit_pico_distilled_patch8_32");
        assert_ne!(student.preprocessing.mean, checkpoint.config.preprocessing.mean);

        // The same two images, of values from 0 to 1, in the normalisation of both.
        let plain: Vec<f32> = (0..2 * 3 * 1024).map(|i| ((i * 37) % 256) as f32 / 255.0).collect();
        let coloured = |p: &Preprocess| -> Vec<f32> {
            let channel = |i: usize| i / 1024 % 3;
            plain.iter().enumerate().map(|(i, v)| (v - p.mean[channel(i)]) / p.std[channel(i)]).collect()
        };
        let mut teacher = Teacher::open(folder.path(), &student, 2, &device).unwrap();
        let logits = teacher.answer(&coloured(&student.preprocessing)).unwrap();

        let mut graph = checkpoint.config.architecture.build(2, Mode::Inference).unwrap();
        graph.retain_outputs(|name| name == "logits");
        let mut weights = checkpoint.weights.clone();
        let mut alone = device.compile(&eliminate_dead_code(&graph).unwrap(), &mut weights).unwrap();
        alone.write("image", Elements::F32(&coloured(&checkpoint.config.preprocessing))).unwrap();
        alone.run().unwrap();
        let mut expected = vec![0.0; 4];
        alone.read("logits", &mut expected).unwrap();
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (found, expected) in logits.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * largest, "{logits:?} and {expected:?}");
        }
        // Running statistics do not change.
        assert_ne!(teacher.answer(&vec![3.0; 2 * 3 * 1024]).unwrap(), logits);
        assert_eq!(teacher.answer(&coloured(&student.preprocessing)).unwrap(), logits);
    }
}
