//! Batches of images, prepared on worker threads: the files of a caller for a model, and datasets for any training loop.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use vit_data::dataset::{Dataset, ReadOptions, Split, open_split, open_train};
use vit_data::loader::{LabelCount, Unreadable};
use vit_data::{
    Augmentation, Batch, BatchPosition, LastBatch, Loader, LoaderError, LoaderSettings, Pipeline, Preprocess, Samples,
    TrainTransform,
};

use crate::Error;

/// Prepares images on worker threads, while `each` gets the ones before in order, `batch` at a time: so decoding and the
/// model run at the same time.
///
/// ```
/// use vit::data::{ApplyPreprocess, in_batches};
/// use vit::{Error, Image, Model, ModelOptions};
///
/// let mut model = Model::open_with("cifar10", &ModelOptions::new().batch(2))?;
/// let (preprocess, mut classes) = (model.preprocess().clone(), Vec::new());
/// let prepare = |side: &usize| {
///     let image = Image::from_rgb(*side, *side, vec![127; 3 * side * side]).unwrap(); // or Image::open(path)?
///     Ok(preprocess.apply(&image)?)
/// };
/// in_batches(&[32, 48, 64], 2, 2, prepare, |images| {
///     for predictions in model.classify_prepared(images)? {
///         classes.push(predictions?[0].class);
///     }
///     Ok::<(), Error>(())
/// })?;
/// assert_eq!(classes.len(), 3);
/// # Ok::<(), Error>(())
/// ```
pub fn in_batches<S: Sync, E: From<Error>>(
    images: &[S],
    batch: usize,
    threads: usize,
    prepare: impl Fn(&S) -> Result<Vec<f32>, Error> + Sync,
    mut each: impl FnMut(&[Vec<f32>]) -> Result<(), E>,
) -> Result<(), E> {
    // A thread takes longer to start than a single image is worth.
    if let [image] = images {
        return each(&[prepare(image)?]);
    }
    let (batch, threads) = (batch.max(1), threads.max(1));
    let name = |index: usize| format!("image {index}");
    let pipeline = Pipeline { threads, look_ahead: 2 * batch.max(threads), name: &name };
    let mut ready = Vec::with_capacity(batch);
    let finished = pipeline.run(
        images.len(),
        |index| prepare(&images[index]),
        |index, prepared| {
            ready.push(prepared.map_err(|error| Failure(error.into()))?);
            if ready.len() == batch || index + 1 == images.len() {
                each(&ready).map_err(Failure)?;
                ready.clear();
            }
            Ok(ControlFlow::Continue(()))
        },
    );
    finished.map(drop).map_err(|Failure(error)| error)
}

/// An error of the caller's type, which the pipeline can add its own to.
struct Failure<E>(E);

impl<E: From<Error>> From<LoaderError> for Failure<E> {
    fn from(error: LoaderError) -> Self {
        Failure(Error::from(error).into())
    }
}

/// How a dataset becomes batches.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BatchOptions {
    /// Samples per batch.
    pub batch: usize,
    /// The split; `None` for the training split, or all samples of a dataset that is not divided into splits.
    pub split: Option<Split>,
    /// The size and the normalisation of images.
    pub preprocess: Preprocess,
    /// Random changes of images; by default none.
    pub augmentation: Augmentation,
    /// Another order of the samples in every epoch.
    pub shuffle: bool,
    /// The seed of order and augmentation.
    pub seed: u64,
    /// Leave out the last batch of an epoch where it has fewer samples than the others.
    pub drop_last: bool,
    /// Threads that decode and transform; 0 for one per core.
    pub threads: usize,
}

impl BatchOptions {
    /// Shuffled batches of the training split, without augmentation.
    pub fn new(batch: usize) -> Self {
        BatchOptions {
            batch,
            split: None,
            preprocess: Preprocess::default(),
            augmentation: Augmentation::default(),
            shuffle: true,
            seed: 0,
            drop_last: false,
            threads: 0,
        }
    }
}

/// A dataset as batches. What is in a batch follows from the options, the epoch and the number of the batch alone.
///
/// ```
/// use vit::data::{BatchOptions, Batches};
///
/// let dataset = Batches::open("fractals:3x4", &BatchOptions::new(5))?; // or a folder, tar shards, Parquet, …
/// let mut labels = Vec::new();
/// for batch in dataset.epochs(0, Some(1))? {
///     labels.extend(dataset.labels(&batch?));
/// }
/// labels.sort();
/// assert_eq!(labels, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
/// # Ok::<(), vit::Error>(())
/// ```
pub struct Batches {
    samples: Arc<Dataset>,
    settings: LoaderSettings,
}

impl Batches {
    /// Opens a dataset: class folders, tar shards, Parquet, a manifest, CIFAR or MNIST files, images by formula.
    pub fn open(path: impl AsRef<Path>, options: &BatchOptions) -> Result<Batches, Error> {
        let (path, read) = (path.as_ref(), ReadOptions::default());
        let opened = match options.split {
            Some(split) => open_split(path, Some(split), None, &read)?,
            None => open_train(path, None, &read)?,
        };
        let samples = opened.samples;
        let transform = TrainTransform::new(&options.preprocess, &options.augmentation).map_err(LoaderError::from)?;
        let settings = LoaderSettings {
            threads: options.threads,
            shuffle: options.shuffle,
            last: if options.drop_last { LastBatch::Drop } else { LastBatch::Short },
            labels: if samples.is_multi_label() { LabelCount::Multiple } else { LabelCount::Single },
            ..LoaderSettings::training(transform, options.batch, options.seed)
        };
        Ok(Batches { samples, settings })
    }

    /// The samples.
    pub fn samples(&self) -> &Dataset {
        &self.samples
    }

    /// The size and the normalisation of images.
    pub fn preprocess(&self) -> &Preprocess {
        self.settings.transform.preprocess()
    }

    /// Batches of an epoch.
    pub fn per_epoch(&self) -> u64 {
        match self.settings.batch {
            0 => 0,
            _ => self.settings.batches_per_epoch(self.samples.len()),
        }
    }

    /// Whether every sample has exactly one label and no shares of several.
    pub fn has_single_labels(&self) -> bool {
        !self.samples.is_multi_label() && self.samples.shares(0).is_none()
    }

    /// The class of each sample of a batch; of one with several labels the first, of one without any -1.
    pub fn labels(&self, batch: &Batch) -> Vec<i64> {
        let label = |sample: &usize| self.samples.labels(*sample).first().map_or(-1, |label| i64::from(*label));
        batch.samples.iter().map(label).collect()
    }

    /// The batches of so many epochs, or without end, from an epoch on. They are prepared ahead by worker threads.
    pub fn epochs(&self, first: u64, count: Option<u64>) -> Result<EpochBatches, Error> {
        let end = count.map(|count| first.saturating_add(count));
        let settings = LoaderSettings { epochs: end, ..self.settings.clone() };
        let start = BatchPosition { epoch: first, batch: 0 };
        Ok(EpochBatches { loader: Loader::new(self.samples.clone(), settings, start)?, end, failed: false })
    }
}

/// The batches of one or more epochs, in order. After an error there are no more.
pub struct EpochBatches {
    loader: Loader,
    end: Option<u64>,
    failed: bool,
}

impl EpochBatches {
    /// The images met so far that cannot be read; others took their places.
    pub fn unreadable(&self) -> impl Iterator<Item = &Unreadable> {
        self.loader.unreadable()
    }
}

impl Iterator for EpochBatches {
    type Item = Result<Batch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let over = self.end.is_some_and(|end| self.loader.position().epoch >= end);
        if over || self.failed {
            return None;
        }
        let batch = self.loader.next();
        self.failed = batch.is_err();
        Some(batch.map_err(Error::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn an_error_of_an_image_or_of_the_caller_ends_the_work() {
        let images: Vec<usize> = (0..100).collect();
        for threads in [1, 3] {
            let seen = Cell::new(0);
            let prepare = |image: &usize| match image {
                7 => Err(Error::NoImages),
                other => Ok(vec![*other as f32]),
            };
            let ended = in_batches(&images, 4, threads, prepare, |batch| {
                assert!(batch.iter().enumerate().all(|(place, image)| image[0] == (seen.get() + place) as f32));
                seen.set(seen.get() + batch.len());
                Ok::<(), Error>(())
            });
            assert!(matches!(ended, Err(Error::NoImages)));
            assert_eq!(seen.get(), 4);
            let prepare = |image: &usize| Ok(vec![*image as f32]);
            let ended = in_batches(&images, 4, threads, prepare, |_| Err(Error::NoHead));
            assert!(matches!(ended, Err(Error::NoHead)));
        }
        assert!(in_batches(&[0_usize; 0], 4, 1, |_| Ok(vec![]), |_| Err(Error::NoHead)).is_ok());
    }

    #[test]
    fn batches_follow_from_seed_and_epoch() {
        let options = BatchOptions {
            preprocess: Preprocess { image_size: [16, 16], ..Preprocess::default() },
            ..BatchOptions::new(4)
        };
        let read = |options: &BatchOptions, epoch: u64| {
            let dataset = Batches::open("contours:3x5", options).unwrap();
            let batches = dataset.epochs(epoch, Some(1)).unwrap().map(Result::unwrap);
            batches.map(|batch| (batch.samples.clone(), batch.images.clone())).collect::<Vec<_>>()
        };
        let first = read(&options, 0);
        assert_eq!(first.iter().map(|(samples, _)| samples.len()).collect::<Vec<_>>(), [4, 4, 4, 3]);
        assert_eq!(first, read(&BatchOptions { threads: 3, ..options.clone() }, 0));
        assert_ne!(first, read(&options, 1));
        assert_ne!(first, read(&BatchOptions { seed: 1, ..options.clone() }, 0));
        let dropped = BatchOptions { drop_last: true, ..options.clone() };
        assert_eq!(Batches::open("contours:3x5", &dropped).unwrap().per_epoch(), 3);
        assert_eq!(read(&dropped, 0), first[..3]);
        let endless = Batches::open("contours:3x5", &options).unwrap().epochs(2, None).unwrap();
        assert_eq!(endless.take(9).filter(Result::is_ok).count(), 9);
        assert!(Batches::open("contours:3x5", &BatchOptions::new(0)).unwrap().epochs(0, Some(1)).is_err());
    }
}
