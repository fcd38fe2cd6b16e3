//! The splits of a dataset and their usual names.

use std::fmt;
use std::path::Path;

/// A part of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Split {
    /// For training.
    Train,
    /// For validation during training.
    Validation,
    /// For the final test.
    Test,
}

impl Split {
    /// The split of this name, in any case: `train`, `training`, `val`, `valid`, `validation`, `eval`, `test`,
    /// `testing`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "train" | "training" => Split::Train,
            "val" | "valid" | "validation" | "eval" => Split::Validation,
            "test" | "testing" => Split::Test,
            _ => return None,
        })
    }

    /// The split of a file such as `data/train-00000-of-00002.parquet` or `t10k-images-idx3-ubyte`: the first folder or
    /// word of its name that is one.
    pub(super) fn of_file(path: &Path) -> Option<Self> {
        let folders = path.parent().into_iter().flat_map(Path::components);
        let by_folder = folders.filter_map(|part| part.as_os_str().to_str()).find_map(Split::from_name);
        by_folder.or_else(|| {
            let name = path.file_name()?.to_str()?;
            // MNIST's test set is named after its ten thousand samples.
            let word = |word: &str| if word == "t10k" { Some(Split::Test) } else { Split::from_name(word) };
            name.split(|c: char| !c.is_alphanumeric()).find_map(word)
        })
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        })
    }
}
