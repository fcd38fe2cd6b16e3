//! The features of images: rows of an output of a compiled model, for nearest neighbours and probes.

use std::ops::ControlFlow;

use vit_data::loader::Unreadable;
use vit_data::{ApplyPreprocess, Pipeline, Preprocess, PreprocessError, Samples};
use vit_graph::device::{Elements, Executable};

use crate::error::TrainError;

/// A row for each image, and the images that could not be read.
type Features = (Vec<f32>, Vec<Unreadable>);

/// How a compiled model is run over images.
pub(crate) struct FeatureRun<'a> {
    pub executable: &'a mut dyn Executable,
    /// The output whose rows are the features.
    pub output: &'static str,
    /// The width of a row.
    pub width: usize,
    pub preprocess: &'a Preprocess,
    /// Images in a batch.
    pub batch: usize,
    /// Threads that prepare images.
    pub threads: usize,
}

impl FeatureRun<'_> {
    /// The features of some samples, a row each, and the samples that cannot be read, whose rows are those of an image of the
    /// mean colour. `progress` is called with the number of images done; `false` ends the run, without a result.
    pub fn of(
        &mut self,
        samples: &dyn Samples,
        chosen: &[usize],
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Option<Features>, TrainError> {
        let Self { executable, output, width, preprocess, batch, threads } = self;
        let (width, batch, size) = (*width, *batch, preprocess.output_len());
        let mut features = vec![0.0; chosen.len() * width];
        let mut unreadable = Vec::new();
        let (mut images, mut rows) = (vec![0.0; batch * size], vec![0.0; batch * width]);
        let prepare = |at: usize| {
            let index = chosen[at];
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
        let name = |at: usize| samples.name(chosen[at]);
        let pipeline = Pipeline { threads: *threads, look_ahead: 2 * batch.max(*threads), name: &name };
        let end = pipeline.run(chosen.len(), prepare, |at, image| {
            let place = at % batch;
            let pixels = &mut images[place * size..][..size];
            match image {
                Ok(image) => pixels.copy_from_slice(&image),
                Err(one) => {
                    pixels.fill(0.0);
                    unreadable.push(one);
                }
            }
            if place + 1 < batch && at + 1 < chosen.len() {
                return Ok(ControlFlow::Continue(()));
            }
            executable.write("image", Elements::F32(&images))?;
            executable.run()?;
            executable.read(output, &mut rows)?;
            features[(at - place) * width..(at + 1) * width].copy_from_slice(&rows[..(place + 1) * width]);
            Ok::<_, TrainError>(if progress(at + 1) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(end.is_continue().then_some((features, unreadable)))
    }
}
