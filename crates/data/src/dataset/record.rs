//! The training and validation samples of a run, recorded with their sizes and labels. A resumed run compares its data
//! with this record and restores its split, even if samples were added or removed.
//!
//! On disk it is a table, compressed with zstd: a line per sample, in the order of the dataset.

use super::samples::Dataset;
use super::{Splits, ValidationFrom, count};
use crate::samples::Samples;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use vit_system::hash::Xxh3;

/// The columns of the table.
const HEADER: &str = "part\tlabels\tbytes\tname";

/// Sample names in a message.
const LISTED: usize = 3;

/// The use of a sample in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Training.
    Train,
    /// Validation.
    Validation,
    /// A training sample outside of the run's fraction.
    Unused,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Train => "train",
            Part::Validation => "validation",
            Part::Unused => "unused",
        }
    }
}

/// The mark of validation samples from another dataset.
const OTHER_SET: &str = "validation-set";

/// The samples of one dataset, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SampleList {
    /// All names, concatenated.
    names: String,
    ends: Vec<usize>,
    parts: Vec<Part>,
    /// The size of each sample's file or range, if known.
    bytes: Vec<Option<u64>>,
    /// Indices into the label texts.
    labels: Vec<u32>,
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl SampleList {
    fn of(datasets: &[(&Dataset, Part)]) -> Self {
        // The splits of a dataset are interleaved.
        let mut samples: Vec<(u32, usize, usize)> = Vec::new();
        for (number, (dataset, _)) in datasets.iter().enumerate() {
            samples.extend(dataset.chosen().iter().enumerate().map(|(index, sample)| (*sample, number, index)));
        }
        samples.sort_unstable();
        let sizes: Vec<Vec<Option<u64>>> = datasets.iter().map(|(dataset, _)| dataset.sizes()).collect();
        let mut list = SampleList::default();
        for (_, number, index) in samples {
            let (dataset, part) = datasets[number];
            list.push(part, &labels(dataset, index), sizes[number][index], &dataset.key(index));
        }
        list
    }

    fn push(&mut self, part: Part, labels: &str, bytes: Option<u64>, name: &str) {
        let number = match self.numbers.get(labels) {
            Some(number) => *number,
            None => {
                let number = self.texts.len() as u32;
                self.texts.push(labels.to_owned());
                self.numbers.insert(labels.to_owned(), number);
                number
            }
        };
        self.names.push_str(name);
        self.ends.push(self.names.len());
        self.parts.push(part);
        self.bytes.push(bytes);
        self.labels.push(number);
    }

    fn len(&self) -> usize {
        self.parts.len()
    }

    fn name(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.names[start..self.ends[index]]
    }

    fn labels(&self, index: usize) -> &str {
        &self.texts[self.labels[index] as usize]
    }

    fn line(&self, index: usize, part: &str) -> String {
        let bytes = self.bytes[index].map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        format!("{part}\t{}\t{bytes}\t{}\n", self.labels(index), escaped(self.name(index)))
    }

    /// The index here of every sample of `now`, by name; equal names match in order.
    fn places_of(&self, now: &SampleList) -> Vec<Option<usize>> {
        let mut same = Vec::with_capacity(now.len());
        same.extend((0..now.len().min(self.len())).take_while(|index| now.name(*index) == self.name(*index)).map(Some));
        let begun = same.len();
        let mut next = vec![u32::MAX; self.len()];
        let mut first: HashMap<&str, u32> = HashMap::with_capacity(self.len() - begun);
        for index in (begun..self.len()).rev() {
            next[index] = first.insert(self.name(index), index as u32).unwrap_or(u32::MAX);
        }
        for index in begun..now.len() {
            let place = first.get_mut(now.name(index)).filter(|place| **place != u32::MAX);
            same.push(place.map(|place| std::mem::replace(place, next[*place as usize]) as usize));
        }
        same
    }

    /// The differences of `now`. A `divided` dataset defines its splits itself.
    fn changes(&self, now: &SampleList, places: &[Option<usize>], divided: bool) -> SampleChanges {
        let mut changes = SampleChanges::default();
        let mut found = vec![false; self.len()];
        for (index, place) in places.iter().enumerate() {
            let name = now.name(index);
            let Some(place) = *place else {
                changes.added.add(name);
                continue;
            };
            found[place] = true;
            let held_out = |part: Part| part == Part::Validation;
            if now.labels(index) == self.labels(place) && now.bytes[index] == self.bytes[place] {
                changes.same += 1;
            }
            if now.labels(index) != self.labels(place) {
                changes.relabelled.add(name);
            } else if now.bytes[index] != self.bytes[place] {
                changes.resized.add(name);
            } else if divided && held_out(now.parts[index]) != held_out(self.parts[place]) {
                changes.moved.add(name);
            }
        }
        for (place, _) in found.iter().enumerate().filter(|(_, found)| !**found) {
            changes.removed.add(self.name(place));
        }
        changes
    }
}

/// Class indices as written in the table: `3`, `3|7`, or `3:0.75|7:0.25` for soft labels.
fn labels(dataset: &Dataset, index: usize) -> String {
    let texts: Vec<String> = match dataset.shares(index) {
        Some((classes, shares)) => {
            classes.iter().zip(shares).map(|(class, share)| format!("{class}:{share}")).collect()
        }
        None => dataset.labels(index).iter().map(u32::to_string).collect(),
    };
    texts.join("|")
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescaped(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut name = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        name.push(match (letter, letter == '\\') {
            (_, true) => match letters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            },
            (letter, false) => letter,
        });
    }
    name
}

/// Hashes of the names, sizes and labels of the training and the validation samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of the training samples.
    pub train: String,
    /// Of the validation samples.
    pub validation: String,
}

/// The recorded samples of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleRecord {
    own: SampleList,
    /// The validation dataset, if it is another one.
    other: Option<SampleList>,
}

impl SampleRecord {
    /// Records these splits. Queries the size of every file and reads none.
    pub fn of(train: &Dataset, validation: Option<&Dataset>, unused: &Dataset) -> Self {
        let own = |part: &&Dataset| part.is_of_the_same_set(train);
        let mut parts = vec![(train, Part::Train), (unused, Part::Unused)];
        parts.extend(validation.filter(own).map(|part| (part, Part::Validation)));
        let other = validation.filter(|part| !own(part));
        Self { own: SampleList::of(&parts), other: other.map(|part| SampleList::of(&[(part, Part::Validation)])) }
    }

    /// The number of recorded samples of the run's dataset.
    pub fn len(&self) -> usize {
        self.own.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of validation samples.
    pub fn validation_len(&self) -> usize {
        let held_out = self.own.parts.iter().filter(|part| **part == Part::Validation).count();
        held_out + self.other.as_ref().map_or(0, SampleList::len)
    }

    /// Hashes of the samples.
    pub fn fingerprint(&self) -> Fingerprint {
        let of = |wanted: Part| {
            let mut hash = Xxh3::new();
            for list in std::iter::once(&self.own).chain(&self.other) {
                for index in (0..list.len()).filter(|index| list.parts[*index] == wanted) {
                    hash.update(list.line(index, wanted.name()).as_bytes());
                }
            }
            format!("{:032x}", hash.digest128())
        };
        Fingerprint { train: of(Part::Train), validation: of(Part::Validation) }
    }

    /// Writes the compressed table.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut out = zstd::Encoder::new(out, 3)?;
        writeln!(out, "{HEADER}")?;
        for index in 0..self.own.len() {
            out.write_all(self.own.line(index, self.own.parts[index].name()).as_bytes())?;
        }
        if let Some(other) = &self.other {
            for index in 0..other.len() {
                out.write_all(other.line(index, OTHER_SET).as_bytes())?;
            }
        }
        out.finish()?.flush()
    }

    /// Reads the compressed table.
    pub fn read(from: impl Read) -> io::Result<Self> {
        let wrong = |line: usize| io::Error::other(format!("line {} of the table is not as vit writes it", line + 1));
        let mut record = Self::default();
        for (number, line) in BufReader::new(zstd::Decoder::new(from)?).lines().enumerate() {
            let line = line?;
            if number == 0 {
                if line != HEADER {
                    return Err(wrong(number));
                }
                continue;
            }
            let mut fields = line.splitn(4, '\t');
            let mut field = || fields.next().ok_or_else(|| wrong(number));
            let (part, labels, bytes, name) = (field()?, field()?, field()?, field()?);
            let bytes = match bytes {
                "-" => None,
                bytes => Some(bytes.parse().map_err(|_| wrong(number))?),
            };
            let (list, part) = match part {
                "train" => (&mut record.own, Part::Train),
                "validation" => (&mut record.own, Part::Validation),
                "unused" => (&mut record.own, Part::Unused),
                OTHER_SET => (record.other.get_or_insert_default(), Part::Validation),
                _ => return Err(wrong(number)),
            };
            list.push(part, labels, bytes, &unescaped(name));
        }
        Ok(record)
    }

    /// Restores the recorded splits as far as their samples still exist, and returns the differences. New samples
    /// become training samples, unless the dataset itself assigns them to validation.
    pub fn restore(&self, splits: &mut Splits) -> SampleChanges {
        let now = SampleRecord::of(&splits.train, splits.validation.as_deref(), &splits.unused);
        let divided = !matches!(splits.report.validation, ValidationFrom::HeldOut { .. });
        let places = self.own.places_of(&now.own);
        let mut changes = self.own.changes(&now.own, &places, divided);
        let part = |index: usize| match places[index] {
            Some(place) => self.own.parts[place],
            None if now.own.parts[index] == Part::Validation && !divided => Part::Train,
            None => now.own.parts[index],
        };
        let (part, listed) = (&part, now.own.len());
        let members = |wanted: Part| (0..listed).filter(move |index| part(*index) == wanted);
        let new = |wanted: Part| members(wanted).filter(|index| places[*index].is_none()).count();
        (changes.new_in_training, changes.new_in_validation) = (new(Part::Train), new(Part::Validation));
        changes.held_out = members(Part::Validation).count() - changes.new_in_validation;

        // The samples of the whole dataset that `now` lists, in the same order.
        let of_own_set = splits.validation.as_ref().filter(|part| part.is_of_the_same_set(&splits.train));
        let parts = [Some(&splits.train), Some(&splits.unused), of_own_set];
        let mut samples: Vec<u32> = parts.into_iter().flatten().flat_map(|part| part.chosen().to_vec()).collect();
        samples.sort_unstable();
        let chosen = |wanted: Part| splits.train.part(members(wanted).map(|index| samples[index]).collect());
        let [train, unused, held_out] =
            [Part::Train, Part::Unused, Part::Validation].map(|wanted| Arc::new(chosen(wanted)));
        match (&self.other, &now.other) {
            // A validation dataset of its own cannot leak into the training samples.
            (Some(before), Some(now)) => {
                let places = before.places_of(now);
                let set = before.changes(now, &places, false);
                changes.held_out = places.iter().flatten().count();
                changes.new_in_validation = set.added.count;
                changes.validation_set = Some(Box::new(set));
            }
            _ => splits.validation = Some(held_out),
        }
        splits.validation = splits.validation.take().filter(|validation| !validation.is_empty());
        (splits.train, splits.unused) = (train, unused);
        let counted = [Some(&splits.train), splits.validation.as_ref(), splits.test.as_ref()];
        (splits.report.samples, splits.report.classes) = count(counted);
        splits.report.unused = splits.unused.len();
        changes
    }
}

/// Samples with the same kind of change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Their number.
    pub count: usize,
    /// The names of the first ones.
    pub examples: Vec<String>,
}

impl Change {
    fn add(&mut self, name: &str) {
        self.count += 1;
        if self.examples.len() < LISTED {
            self.examples.push(name.to_owned());
        }
    }
}

/// The differences between a dataset and its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleChanges {
    /// New samples.
    pub added: Change,
    /// Missing samples.
    pub removed: Change,
    /// Samples with other labels.
    pub relabelled: Change,
    /// Samples with another size.
    pub resized: Change,
    /// Samples that moved between training and validation.
    pub moved: Change,
    /// The differences of the validation dataset, if it is another one.
    pub validation_set: Option<Box<SampleChanges>>,
    /// Samples with the same name, size and labels.
    pub same: usize,
    /// Recorded validation samples that still exist.
    pub held_out: usize,
    /// New samples used for training.
    pub new_in_training: usize,
    /// New samples used for validation.
    pub new_in_validation: usize,
}

impl SampleChanges {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        let kinds = [&self.added, &self.removed, &self.relabelled, &self.resized, &self.moved];
        kinds.iter().all(|kind| kind.count == 0) && self.validation_set.as_ref().is_none_or(|set| set.is_empty())
    }
}

impl fmt::Display for SampleChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (&self.added, "added"),
            (&self.removed, "removed"),
            (&self.relabelled, "with other labels"),
            (&self.resized, "of another size in bytes"),
            (&self.moved, "moved between the training and the validation split"),
        ];
        let mut texts = Vec::new();
        for (Change { count, examples }, what) in kinds {
            if *count > 0 {
                let more = if *count > examples.len() { ", …" } else { "" };
                texts.push(format!("{count} {what} ({}{more})", examples.join(", ")));
            }
        }
        if let Some(set) = self.validation_set.as_ref().filter(|set| !set.is_empty()) {
            texts.push(format!("in the validation dataset {set}"));
        }
        f.write_str(&texts.join("; "))
    }
}
