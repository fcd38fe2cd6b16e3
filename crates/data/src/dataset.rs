//! Datasets from disk: opened by path, whatever their format, and read as [`Samples`].
//!
//! ```no_run
//! use vit_data::Samples;
//! use vit_data::dataset::{DatasetOptions, open};
//!
//! let splits = open("flowers".as_ref(), &DatasetOptions::default())?;
//! println!("{}", splits.report);
//! let first = splits.train.image(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The format is recognised: class folders, tar shards, Parquet, manifests, CIFAR binaries, IDX, or images by formula (`fractals:1000`, `contours:1000`). Opening lists the
//! samples and their labels and decodes no image; a broken one is an error of [`Samples::image`]. Numeric labels get
//! names from `classes.txt` beside the files, one per line, if the format has no place for them.

mod archive;
mod choose;
mod cifar;
mod classes;
mod custom;
mod error;
mod folders;
mod generated;
mod idx;
mod labels;
mod layout;
mod listing;
mod manifest;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "dataset/no_parquet.rs"]
mod parquet;
mod recognise;
mod record;
mod report;
mod samples;
mod split;
mod store;
mod tar;
mod temporary;
mod webdataset;

use crate::decode::DecodeOptions;
use crate::samples::Samples;
use listing::{Listing, slashed};
use recognise::{DatasetInput, NOT_REGULAR, SourceFile, SourceKind, recognise};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use custom::from_samples;
pub use error::DatasetError;
pub use generated::{absolute, is_formula};
pub use listing::Skipped;
pub use record::{Change, Fingerprint, Part, SampleChanges, SampleRecord};
pub use report::{ClassCount, Report, ValidationFrom};
pub use samples::Dataset;
pub use split::Split;
pub use store::Limits;

/// The formats that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetFormat {
    /// Class folders.
    Folders,
    /// Tar archives with class folders.
    Tar,
    /// Tar archives with labels beside the images.
    WebDataset,
    /// Parquet with a column of images.
    Parquet,
    /// A table of paths and labels.
    Manifest,
    /// CIFAR-10, binary version.
    Cifar10,
    /// CIFAR-100, binary version.
    Cifar100,
    /// MNIST and similar datasets.
    Idx,
    /// Images of iterated function systems, drawn when they are read.
    Fractals,
    /// Images of radial contours, drawn when they are read.
    Contours,
    /// [`Samples`] of the caller.
    Custom,
}

impl fmt::Display for DatasetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DatasetFormat::Folders => "class folders",
            DatasetFormat::Tar => "tar with class folders",
            DatasetFormat::WebDataset => "WebDataset",
            DatasetFormat::Parquet => "Parquet",
            DatasetFormat::Manifest => "manifest",
            DatasetFormat::Cifar10 => "CIFAR-10 binary",
            DatasetFormat::Cifar100 => "CIFAR-100 binary",
            DatasetFormat::Idx => "IDX",
            DatasetFormat::Fractals => "fractals by formula",
            DatasetFormat::Contours => "contours by formula",
            DatasetFormat::Custom => "samples of the program",
        })
    }
}

/// The source of the validation samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// The validation split; without one the test split, which the report mentions; without that, a fraction of the
    /// training samples.
    #[default]
    Automatic,
    /// Another dataset, whose classes must be among those of the training set.
    Path(PathBuf),
    /// This split of the dataset.
    Split(Split),
    /// A fraction of the training samples, whatever other splits there are.
    HeldOut,
    /// None.
    Nowhere,
}

impl Validation {
    /// The argument that means [`Validation::HeldOut`].
    pub const HELD_OUT: &str = "held-out";

    /// The meaning of an argument: the name of a split, `held-out`, or else the path of a dataset.
    pub fn from_argument(argument: &Path) -> Self {
        if argument.to_str() == Some(Self::HELD_OUT) {
            return Validation::HeldOut;
        }
        match argument.to_str().and_then(Split::from_name) {
            Some(split) => Validation::Split(split),
            None => Validation::Path(argument.to_owned()),
        }
    }
}

/// Options of reading samples, for training and evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Options of decoding.
    pub decode: DecodeOptions,
    /// Limits on unpacked data.
    pub limits: Limits,
    /// Whether images need a label; without, those in no class folder and beside no label file are samples, too.
    pub labels: LabelRequirement,
}

/// Whether images need a label to be samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelRequirement {
    /// Images without a label are skipped.
    #[default]
    Required,
    /// They are samples without a label.
    Optional,
    /// Images without a label are skipped, and labels are captions: samples are drawn from all images and not from each
    /// class, and another dataset for validation has its own.
    Captions,
}

/// Options of opening a dataset for training.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetOptions {
    /// The source of the validation samples.
    pub validation: Validation,
    /// The fraction of each class that is held out for validation, if samples are held out; 0 for none.
    pub validation_fraction: f64,
    /// The fraction of the training samples of each class to use, at least one sample. A smaller fraction is a subset
    /// of a larger one.
    pub fraction: f64,
    /// The seed of the draws, which also depend on the names of the samples.
    pub seed: u64,
    /// The classes that labels index, by name; by default those of the dataset.
    pub classes: Option<Vec<String>>,
    /// An order of the classes, used if it has exactly the classes of the dataset.
    pub class_order: Option<Vec<String>>,
    /// Options of reading samples.
    pub read: ReadOptions,
}

impl Default for DatasetOptions {
    fn default() -> Self {
        Self {
            validation: Validation::Automatic,
            validation_fraction: 0.1,
            fraction: 1.0,
            seed: 0,
            classes: None,
            class_order: None,
            read: ReadOptions::default(),
        }
    }
}

/// A dataset for training. All splits have the same classes.
pub struct Splits {
    /// The training samples.
    pub train: Arc<Dataset>,
    /// The validation samples.
    pub validation: Option<Arc<Dataset>>,
    /// The test split, if there is one; it may equal the validation samples.
    pub test: Option<Arc<Dataset>>,
    /// The training samples that the fraction leaves out.
    pub unused: Arc<Dataset>,
    /// The report for the user.
    pub report: Report,
}

/// Opens the dataset at `path` (a folder, a file or a pattern such as `shards/*.tar`) for training.
pub fn open(path: &Path, options: &DatasetOptions) -> Result<Splits, DatasetError> {
    check_options(options)?;
    divide(read(path, OpenPurpose::Training, &options.read)?, options)
}

/// Divides the samples of a listing into splits.
fn divide(mut listing: Listing, options: &DatasetOptions) -> Result<Splits, DatasetError> {
    let all: Vec<u32> = (0..listing.len() as u32).collect();
    if let Some(classes) = &options.classes {
        classes::number_folders(&mut listing, Some(classes));
    }
    let target = match (&options.classes, &options.class_order) {
        (None, Some(order)) => classes::are_those_of(&listing, order)?.then_some(order),
        (classes, _) => classes.as_ref(),
    };
    let classes: Arc<[String]> = classes::resolve(&mut listing, target.map(Vec::as_slice), &all)?.into();

    let mut train = listing.members(Split::Train);
    if train.is_empty() {
        return Err(no_split(&listing, Split::Train));
    }
    let test = Some(listing.members(Split::Test)).filter(|test| !test.is_empty());
    let mut other_set = None;
    let mut validation = None;
    let from = validation_source(&listing, options)?;
    let captions = options.read.labels == LabelRequirement::Captions;
    let known = (!captions).then_some(&*classes);
    match &from {
        ValidationFrom::Path(path) => {
            other_set = Some(open_split(path, None, known, &options.read)?.samples);
        }
        ValidationFrom::Split(split) => validation = Some(listing.members(*split)),
        ValidationFrom::TestForLackOfValidation => validation = test.clone(),
        ValidationFrom::HeldOut { fraction } => {
            let (kept, held_out) = choose::hold_out(&listing, &train, *fraction, options.seed, captions);
            train = kept;
            validation = Some(held_out);
        }
        ValidationFrom::Nowhere => {}
    }
    let mut unused = Vec::new();
    if options.fraction < 1.0 {
        (train, unused) = choose::keep(&listing, &train, options.fraction, options.seed, captions);
    }

    let (format, empty, skipped) = (listing.format, listing.empty.clone(), listing.skipped.clone());
    let whole = Dataset::new(listing, classes, &options.read.decode);
    let part = |chosen: Option<Vec<u32>>| chosen.map(|chosen| Arc::new(whole.part(chosen)));
    let (train, unused, test) = (Arc::new(whole.part(train)), Arc::new(whole.part(unused)), part(test));
    let validation = other_set.or_else(|| part(validation)).filter(|validation| !validation.is_empty());
    let (samples, by_class) = count([Some(&train), validation.as_ref(), test.as_ref()]);
    let report =
        Report { format, samples, captions, classes: by_class, empty, skipped, validation: from, unused: unused.len() };
    Ok(Splits { train, validation, test, unused, report })
}

/// A dataset for evaluation.
pub struct OpenedSplit {
    /// The samples.
    pub samples: Arc<Dataset>,
    /// Their split; `None` if the dataset has no splits.
    pub split: Option<Split>,
    /// The dataset's format.
    pub format: DatasetFormat,
    /// Class folders without images.
    pub empty: Vec<String>,
    /// Skipped samples.
    pub skipped: Vec<Skipped>,
    /// Whether class folders are numbers that mean the classes of these indices, whatever their order as text.
    pub numbered: bool,
}

/// Opens one split of the dataset at `path`; by default the validation split, else the test split, else all samples.
/// With `classes`, labels are indices of those, by name, or by index if the dataset has only numbers; any other class
/// is an error.
pub fn open_split(
    path: &Path,
    split: Option<Split>,
    classes: Option<&[String]>,
    options: &ReadOptions,
) -> Result<OpenedSplit, DatasetError> {
    let listing = read(path, OpenPurpose::Evaluation(split), options)?;
    let split = evaluation_split(split, &listing.splits_found());
    select(listing, split, classes, options)
}

/// Opens all samples of the dataset at `path`, of all splits.
pub fn open_all(path: &Path, classes: Option<&[String]>, options: &ReadOptions) -> Result<OpenedSplit, DatasetError> {
    select(read(path, OpenPurpose::Training, options)?, None, classes, options)
}

/// Opens the samples to train on: the training split, or all samples if the dataset is not divided into splits.
pub fn open_train(path: &Path, classes: Option<&[String]>, options: &ReadOptions) -> Result<OpenedSplit, DatasetError> {
    let listing = read(path, OpenPurpose::Training, options)?;
    let split = (!listing.splits_found().is_empty()).then_some(Split::Train);
    select(listing, split, classes, options)
}

fn select(
    mut listing: Listing,
    split: Option<Split>,
    classes: Option<&[String]>,
    options: &ReadOptions,
) -> Result<OpenedSplit, DatasetError> {
    let chosen = match split {
        Some(split) if !listing.splits_found().contains(&split) => return Err(no_split(&listing, split)),
        Some(split) => listing.members(split),
        None => (0..listing.len() as u32).collect(),
    };
    let numbered = classes::number_folders(&mut listing, classes);
    let classes = classes::resolve(&mut listing, classes, &chosen)?.into();
    let (format, empty, skipped) = (listing.format, listing.empty.clone(), listing.skipped.clone());
    let samples = Arc::new(Dataset::new(listing, classes, &options.decode).part(chosen));
    Ok(OpenedSplit { samples, split, format, empty, skipped, numbered })
}

fn check_options(options: &DatasetOptions) -> Result<(), DatasetError> {
    let check = |option, value: f64, fits: bool, expected| match fits {
        true => Ok(()),
        false => Err(DatasetError::Option { option, value, expected }),
    };
    let (fraction, held_out) = (options.fraction, options.validation_fraction);
    check("fraction", fraction, fraction > 0.0 && fraction <= 1.0, "must be above 0 and at most 1")?;
    check("validation_fraction", held_out, (0.0..1.0).contains(&held_out), "must be at least 0 and below 1")
}

/// The rule of [`Validation`].
fn validation_source(listing: &Listing, options: &DatasetOptions) -> Result<ValidationFrom, DatasetError> {
    let found = listing.splits_found();
    let held_out = match options.validation_fraction {
        0.0 => ValidationFrom::Nowhere,
        fraction => ValidationFrom::HeldOut { fraction },
    };
    Ok(match &options.validation {
        Validation::Path(path) => ValidationFrom::Path(path.clone()),
        Validation::Split(split) if found.contains(split) => ValidationFrom::Split(*split),
        Validation::Split(split) => return Err(no_split(listing, *split)),
        Validation::Automatic if found.contains(&Split::Validation) => ValidationFrom::Split(Split::Validation),
        Validation::Automatic if found.contains(&Split::Test) => ValidationFrom::TestForLackOfValidation,
        Validation::Automatic | Validation::HeldOut => held_out,
        Validation::Nowhere => ValidationFrom::Nowhere,
    })
}

fn evaluation_split(asked: Option<Split>, found: &[Split]) -> Option<Split> {
    asked.or_else(|| [Split::Validation, Split::Test].into_iter().find(|split| found.contains(split)))
}

fn no_split(listing: &Listing, split: Split) -> DatasetError {
    DatasetError::NoSplit { path: listing.path.clone(), split, found: listing.splits_found() }
}

#[derive(Clone, Copy)]
enum OpenPurpose {
    Training,
    Evaluation(Option<Split>),
}

/// Lists the dataset at `path`, at least as far as the purpose requires.
fn read(path: &Path, purpose: OpenPurpose, options: &ReadOptions) -> Result<Listing, DatasetError> {
    if let Some(listing) = generated::read(path)? {
        return Ok(listing);
    }
    let mut budget = store::Budget::new(options.limits);
    let (input, special) = recognise(path, options.labels)?;
    let mut listing = match input {
        DatasetInput::Folders(tree) => folders::read(path, tree, options.labels),
        DatasetInput::Files(kind, mut sources) => {
            if let OpenPurpose::Evaluation(asked) = purpose {
                leave_out_other_splits(&mut sources, asked);
            }
            match kind {
                SourceKind::Tar => archive::read(path, &sources, &mut budget, options.labels)?,
                SourceKind::Parquet => parquet::read(path, &sources, &mut budget, options.labels)?,
                SourceKind::Manifest => manifest::read(path, &sources, options.labels)?,
                SourceKind::Cifar => cifar::read(path, &sources, &mut budget)?,
                SourceKind::Idx => idx::read(path, &sources, &mut budget)?,
            }
        }
    };
    for path in special {
        listing.skip(NOT_REGULAR, || slashed(&path));
    }
    if listing.len() == 0 {
        let hint = listing
            .skipped
            .first()
            .map(|Skipped { reason, count, example }| format!("; {count} left out, {reason}: {example}"));
        return Err(DatasetError::Empty { path: path.to_owned(), hint: hint.unwrap_or_default() });
    }
    if u32::try_from(listing.len()).is_err() {
        return Err(DatasetError::damaged(path, "more than 2^32 samples"));
    }
    Ok(listing)
}

/// Evaluation does not unpack the training samples.
fn leave_out_other_splits(sources: &mut Vec<SourceFile>, asked: Option<Split>) {
    let found: Option<Vec<Split>> = sources.iter().map(|source| source.split).collect();
    if let Some(found) = found
        && let Some(split) = evaluation_split(asked, &found)
        && found.contains(&split)
    {
        sources.retain(|source| source.split == Some(split));
    }
}

/// The number of samples in total and per class of the training set, in the order train, validation, test.
fn count(parts: [Option<&Arc<Dataset>>; 3]) -> (ClassCount, Vec<ClassCount>) {
    let [train, validation, test] = parts.map(|part| part.map_or(0, |part| part.len()));
    let [by_train, by_validation, by_test] = parts.map(|part| part.map(|part| part.class_counts()));
    let classes = parts[0].map_or(0, |train| train.classes().len());
    let of = |counts: &Option<Vec<usize>>, class: usize| {
        counts.as_ref().and_then(|counts| counts.get(class)).copied().unwrap_or(0)
    };
    let by_class = (0..classes).map(|class| ClassCount {
        train: of(&by_train, class),
        validation: of(&by_validation, class),
        test: of(&by_test, class),
    });
    (ClassCount { train, validation, test }, by_class.collect())
}
