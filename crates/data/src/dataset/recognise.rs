//! Recognises the format of the dataset at a path.

use super::error::DatasetError;
use super::folders::FolderTree;
use super::listing::slashed;
use super::split::Split;
use super::store::{Compression, start_of, unpack};
use super::{LabelRequirement, cifar, idx, manifest, tar};
use crate::files::{FilesError, is_pattern, natural};
use crate::objects;
use std::io;
use std::path::{Path, PathBuf};
use vit_storage::{PathKind, WindowedFile, is_url};
use vit_system::regular_file;

/// The file format; its reader interprets the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceKind {
    Tar,
    Parquet,
    Manifest,
    Cifar,
    Idx,
}

/// A file with samples.
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// Its path inside the dataset.
    pub(super) key: String,
    /// The split in its name.
    pub(super) split: Option<Split>,
}

/// Why pipes, sockets and devices are skipped: reading one may block for ever.
pub(super) const NOT_REGULAR: &str = "neither a regular file nor a folder";

pub(super) enum DatasetInput {
    Folders(FolderTree),
    Files(SourceKind, Vec<SourceFile>),
}

/// The dataset at `path`, and the skipped special files. Images in no folder are one only if they need no label.
pub(super) fn recognise(path: &Path, labels: LabelRequirement) -> Result<(DatasetInput, Vec<PathBuf>), DatasetError> {
    match vit_storage::kind(path) {
        Ok(PathKind::Folder) => folder(path, labels),
        Ok(PathKind::File) => {
            // A single file is read whole, whatever split its name contains.
            let source = SourceFile { path: path.to_owned(), key: file_name(path), split: None };
            Ok((DatasetInput::Files(kind_of(path)?, vec![source]), Vec::new()))
        }
        Err(_) if is_pattern(path) => pattern(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_url(path) => {
            Err(FilesError::Missing(path.to_owned()).into())
        }
        Err(error) => Err(DatasetError::Io { path: path.to_owned(), error }),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn pattern(path: &Path) -> Result<(DatasetInput, Vec<PathBuf>), DatasetError> {
    let pattern = path.to_string_lossy();
    if is_url(path) {
        let sources = sources_of(path, objects::matching(&pattern)?);
        let kind = kind_of(sources.first().map_or(path, |first| &first.path))?;
        return Ok((DatasetInput::Files(kind, sources), Vec::new()));
    }
    let matches = glob::glob(&pattern)
        .map_err(|error| FilesError::Pattern { pattern: pattern.to_string(), reason: error.msg })?;
    // A broken link is reported when it is opened.
    let matches = matches.filter_map(Result::ok).filter(|path| !path.is_dir());
    let (mut paths, special): (Vec<PathBuf>, Vec<PathBuf>) =
        matches.partition(|path| path.metadata().is_ok_and(|meta| regular_file::check(&meta).is_ok()));
    paths.sort_by(|a, b| natural(a.as_os_str(), b.as_os_str()));
    // If nothing else matches, opening reports the error.
    let first = paths.first().or(special.first());
    let kind = kind_of(first.ok_or_else(|| FilesError::NoMatch { pattern: pattern.to_string() })?)?;
    Ok((DatasetInput::Files(kind, sources_of(path, paths)), special))
}

/// The files that match a pattern. The path inside the dataset is the part that the pattern leaves open.
fn sources_of(pattern: &Path, paths: Vec<PathBuf>) -> Vec<SourceFile> {
    let fixed: PathBuf = pattern.components().take_while(|part| !is_pattern(Path::new(part))).collect();
    let sources = paths.into_iter().map(|path| {
        let inside = path.strip_prefix(&fixed).unwrap_or(&path);
        let (key, split) = (slashed(inside), Split::of_file(inside));
        SourceFile { path, key, split }
    });
    sources.collect()
}

/// The format of a single file, by its content.
fn kind_of(path: &Path) -> Result<SourceKind, DatasetError> {
    let mut file = WindowedFile::open(path).map_err(DatasetError::io(path))?;
    let outer = start_of(&mut file, 512).map_err(DatasetError::io(path))?;
    let packing = Compression::of(&outer);
    let start = match packing {
        Compression::Plain => outer,
        _ => start_of(&mut unpack(path)?, 512)
            .map_err(|error| DatasetError::damaged(path, format!("cannot be unpacked: {error}")))?,
    };
    if tar::is_tar(&start) {
        return Ok(SourceKind::Tar);
    }
    if idx::is_images(&start) {
        return Ok(SourceKind::Idx);
    }
    let unrecognised = |reason: &str| Err(DatasetError::unrecognised(path, reason));
    match packing {
        Compression::Plain if start.starts_with(b"PAR1") => Ok(SourceKind::Parquet),
        Compression::Plain if cifar::is_batch(path) => Ok(SourceKind::Cifar),
        Compression::Plain if start.is_empty() => unrecognised("the file is empty"),
        Compression::Plain if is_text(&start) => Ok(SourceKind::Manifest),
        Compression::Plain => unrecognised("its content is of no known kind"),
        _ => unrecognised("there is no tar archive and no IDX file inside of it"),
    }
}

/// Whether these bytes are UTF-8 text, possibly ending inside a character.
fn is_text(start: &[u8]) -> bool {
    let valid = std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    valid && !start.contains(&0)
}

/// A manifest takes precedence; then images in folders; then files that contain images.
fn folder(path: &Path, labels: LabelRequirement) -> Result<(DatasetInput, Vec<PathBuf>), DatasetError> {
    let mut tree = FolderTree::of(path)?;
    let special = std::mem::take(&mut tree.special);
    let all = |is_one: &dyn Fn(&Path) -> bool| -> Vec<SourceFile> {
        let chosen = tree.others.iter().filter(|other| is_one(other));
        chosen
            .map(|other| SourceFile { path: path.join(other), key: slashed(other), split: Split::of_file(other) })
            .collect()
    };
    let manifests =
        all(&|other| manifest::is_conventional(other) && manifest::describes_images(&path.join(other), labels));
    if !manifests.is_empty() {
        return Ok((DatasetInput::Files(SourceKind::Manifest, manifests), special));
    }
    if tree.images.iter().any(|image| image.components().count() > 1) {
        return Ok((DatasetInput::Folders(tree), special));
    }
    let kinds = [
        (
            SourceKind::Parquet,
            all(&|other| other.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))),
        ),
        (SourceKind::Cifar, all(&cifar::is_batch_name)),
        (SourceKind::Idx, all(&|other| idx::is_images_name(&path.join(other)))),
        (SourceKind::Tar, all(&tar::has_ending)),
    ];
    if let Some((kind, sources)) = kinds.into_iter().find(|(_, sources)| !sources.is_empty()) {
        return Ok((DatasetInput::Files(kind, sources), special));
    }
    if !tree.images.is_empty() && labels == LabelRequirement::Optional {
        return Ok((DatasetInput::Folders(tree), special));
    }
    let hint = match (tree.images.first(), special.first()) {
        (Some(_), _) => {
            "; there are images, but in no class folders: put them into a folder for each class, or list them in a \
             manifest labels.csv with the columns path and label"
                .to_owned()
        }
        (None, Some(first)) => format!("; {} left out, {NOT_REGULAR}: {}", special.len(), first.display()),
        (None, None) => String::new(),
    };
    Err(DatasetError::Empty { path: path.to_owned(), hint })
}
