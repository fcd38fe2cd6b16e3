//! A frozen teacher: a checkpoint that answers for every batch, so that a student can follow it.

use std::path::Path;

use vit_graph::device::{Device, Elements, Executable};
use vit_graph::rewrite::dead_code;
use vit_models::{Changes, Checkpoint, Config, Mode, OpenOptions};

use crate::error::TrainError;

/// A model that only answers.
pub(crate) struct Teacher {
    executable: Box<dyn Executable>,
    /// What brings the student's pictures to the teacher's colours, per channel: factor and addend.
    colours: Vec<(f32, f32)>,
    images: Vec<f32>,
    /// Pixels of one channel of one picture.
    plane: usize,
    /// Its answers to the last batch.
    pub logits: Vec<f32>,
}

impl Teacher {
    /// Opens a checkpoint as the teacher of a student, for batches of this size.
    pub fn open(path: &Path, student: &Config, batch: usize, device: &dyn Device) -> Result<Teacher, TrainError> {
        let mut checkpoint = Checkpoint::open(path, OpenOptions::default())?;
        let size = student.architecture.image_size();
        checkpoint.change(Changes { image_size: Some(size), ..Changes::default() })?;
        let Checkpoint { config, mut weights, .. } = checkpoint;
        let classes = student.architecture.classes();
        if config.architecture.classes() != classes || (!config.labels.is_empty() && config.labels != student.labels) {
            return Err(TrainError::Unsuitable(format!(
                "{}: the teacher knows {} classes, and they are not the {classes} of the data set in the same order",
                path.display(),
                config.architecture.classes()
            )));
        }
        let mut graph = config.architecture.build(batch, Mode::Inference)?;
        graph.retain_outputs(|name| name == "logits");
        let executable = device.compile(&dead_code(&graph)?, &mut weights)?;
        let (own, given) = (&config.preprocessing, &student.preprocessing);
        let channels = own.mean.iter().zip(&own.std).zip(given.mean.iter().zip(&given.std));
        let colours = channels.map(|((mean, std), (m, s))| (s / std, (m - mean) / std)).collect();
        let plane = size[0] * size[1];
        let images = vec![0.0; batch * config.architecture.channels() * plane];
        Ok(Teacher { executable, colours, images, plane, logits: vec![0.0; batch * classes] })
    }

    /// Answers for a batch in the student's colours.
    pub fn answer(&mut self, images: &[f32]) -> Result<(), TrainError> {
        let planes = self.images.chunks_mut(self.plane).zip(images.chunks(self.plane));
        for ((into, from), (factor, addend)) in planes.zip(self.colours.iter().cycle()) {
            into.iter_mut().zip(from).for_each(|(into, from)| *into = from * factor + addend);
        }
        self.executable.write("image", Elements::F32(&self.images))?;
        self.executable.run()?;
        Ok(self.executable.read("logits", &mut self.logits)?)
    }
}
