//! `vit search index`: embeds the new and changed images of a folder.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use vit::{Embed, Pool};
use vit_data::{ApplyPreprocess, FilesError, ImageError, find_images_each};
use vit_models::builtin;
use vit_search::{FileStamp, FolderChanges, IndexSettings, IndexWriter, ModelId, SearchError};
use vit_system::hash::xxh3_128;

use super::IndexArguments;
use crate::checkpoints::report_changes;
use crate::hints::describe;
use crate::images::report_failures;
use crate::table::thousands;
use crate::{Outcome, terminal};

/// An image as it comes from the disk.
enum ReadImage {
    /// Its content is in the index already, perhaps under another name.
    Known(u128),
    /// Its hash and the model's input.
    New(u128, Vec<f32>),
}

pub fn run(arguments: &IndexArguments) -> anyhow::Result<Outcome> {
    let IndexArguments { out, how, .. } = arguments;
    let folder = existing_folder(&arguments.folder)?;
    let (listing, unlisted) = listing(&folder)?;
    let before = IndexSettings::read(out)?;
    let model = arguments.model.clone().or_else(|| before.as_ref().map(|settings| settings.model.path.clone()));
    let model = model.unwrap_or_else(|| builtin::NAME.into());
    let checkpoint = how.checkpoint(&model)?;
    let id = ModelId { path: model_path(&model), fingerprint: checkpoint.fingerprint() };
    let mut embed = Embed::new(checkpoint, Pool::Features, &how.options(listing.len()))?.normalised();
    report_changes(&model, embed.model().report());
    let vectors = arguments.dtype.or(before.map(|settings| settings.vectors)).unwrap_or_default();
    let settings = IndexSettings { files: folder.clone(), model: id, dim: embed.shape()[0], vectors };
    let mut writer = IndexWriter::open(out, settings)?;

    let FolderChanges { to_read, unchanged, missing } = writer.compare(&listing);
    let (contents, options) = (writer.contents(), how.decode_options());
    let (preprocess, batch) = (embed.model().preprocess().clone(), embed.model().batch());
    let read = |stamp: &FileStamp| -> anyhow::Result<ReadImage> {
        let path = folder.join(&stamp.file);
        let named = |error| ImageError::File { path: path.clone(), error: Box::new(error) };
        let bytes = vit_data::decode::read(&path).map_err(named)?;
        let hash = xxh3_128(&bytes);
        if contents.contains(&hash) {
            return Ok(ReadImage::Known(hash));
        }
        Ok(ReadImage::New(hash, preprocess.apply(&vit_data::decode(&bytes, &options).map_err(named)?)?))
    };
    let (mut embedded, mut known, mut failed) = (0, 0, Vec::new());
    how.for_each_batch(
        &to_read,
        |stamp| stamp.file.clone(),
        read,
        batch,
        |group, progress| {
            let (mut images, mut new) = (Vec::new(), Vec::new());
            let mut fail = |stamp: &FileStamp, error: anyhow::Error| {
                progress.suspend(|| terminal::error(describe(&error)));
                failed.push(stamp.file.clone());
            };
            for (stamp, image) in group {
                match image {
                    Ok(ReadImage::Known(hash)) => known += usize::from(writer.add_known(stamp.clone(), hash)?),
                    Ok(ReadImage::New(hash, input)) => {
                        images.push(input);
                        new.push((stamp, hash));
                    }
                    Err(error) => fail(stamp, error),
                }
            }
            let embeddings = if images.is_empty() { Vec::new() } else { embed.run_prepared(&images)? };
            for ((stamp, hash), embedding) in new.into_iter().zip(embeddings) {
                let place = || folder.join(&stamp.file).display().to_string();
                match embedding.with_context(place).map(|embedding| writer.add(stamp.clone(), hash, &embedding)) {
                    Ok(Ok(())) => embedded += 1,
                    Ok(Err(error @ SearchError::NoDirection)) => {
                        fail(stamp, anyhow::Error::from(error).context(place()))
                    }
                    Ok(Err(error)) => return Err(error.into()),
                    Err(error) => fail(stamp, error),
                }
            }
            Ok(())
        },
    )?;
    ensure!(failed.len() < listing.len(), "no image could be read, so {} holds none", out.display());
    let unreadable: HashSet<&str> = failed.iter().map(String::as_str).collect();
    let listed: HashSet<&str> = listing.iter().map(|stamp| stamp.file.as_str()).collect();
    let in_unlisted_folder = |file: &str| {
        let path = folder.join(file);
        unlisted.iter().any(|place| path.starts_with(place) && path != *place)
    };
    let keep = |file: &str| if listed.contains(file) { !unreadable.contains(file) } else { in_unlisted_folder(file) };
    let images = writer.finish(keep)?;
    let unlisted_names = unlisted.iter().map(|place| place.display().to_string());
    let all_failed: Vec<String> = unlisted_names.chain(failed.iter().cloned()).collect();
    if arguments.json {
        let report = json!({
            "index": out, "images": images, "embedded": embedded, "known": known, "unchanged": unchanged,
            "removed": missing, "failed": all_failed,
        });
        writeln!(std::io::stdout(), "{report:#}")?;
    } else {
        let count = |count: usize, what: &str| (count > 0).then(|| format!("{} {what}", thousands(count as u64)));
        let parts = [
            count(embedded, "embedded"),
            count(known, "with known content"),
            count(unchanged, "unchanged"),
            count(missing, "removed"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let images = thousands(images as u64);
        terminal::note(format_args!("{}: {images} images ({})", out.display(), parts.join(", ")));
    }
    Ok(report_failures(all_failed.len(), unlisted.len() + listing.len()))
}

/// The absolute path of a folder.
fn existing_folder(path: &Path) -> anyhow::Result<PathBuf> {
    if vit_storage::is_url(path) {
        bail!("{}: an index is of a folder on this machine; copy the images first", path.display());
    }
    let folder = path.canonicalize().with_context(|| format!("{}: cannot be indexed", path.display()))?;
    ensure!(folder.is_dir(), "{}: this is a file; name the folder of the images", path.display());
    Ok(folder)
}

/// A model's path as the index remembers it.
fn model_path(model: &Path) -> PathBuf {
    if builtin::is_meant(model) || vit_storage::is_url(model) {
        return model.into();
    }
    model.canonicalize().unwrap_or_else(|_| model.into())
}

/// The images of a folder, and the files and subfolders that cannot be listed, which are reported.
fn listing(folder: &Path) -> anyhow::Result<(Vec<FileStamp>, Vec<PathBuf>)> {
    let _busy = terminal::busy(format!("listing {}", folder.display()));
    let (mut listing, mut unlisted) = (Vec::new(), Vec::new());
    for found in find_images_each(&[folder], true) {
        let place = found.as_ref().map_or_else(FilesError::place, PathBuf::as_path).to_path_buf();
        match found.map_err(anyhow::Error::from).and_then(|path| stamp(folder, &path)) {
            Ok(stamp) => listing.push(stamp),
            // A folder that is empty, as one whose disk is not mounted, does not empty the index.
            Err(error) if matches!(error.downcast_ref(), Some(FilesError::NoImages { .. })) => return Err(error),
            Err(error) => {
                terminal::error(describe(&error));
                unlisted.push(place);
            }
        }
    }
    Ok((listing, unlisted))
}

fn stamp(folder: &Path, path: &Path) -> anyhow::Result<FileStamp> {
    let inside = path.strip_prefix(folder).unwrap_or(path);
    let parts = inside.iter().map(|part| part.to_str()).collect::<Option<Vec<&str>>>();
    let file = parts.with_context(|| format!("{}: its name is not UTF-8; rename it", path.display()))?.join("/");
    let state = path.metadata().with_context(|| path.display().to_string())?;
    let modified = state.modified().with_context(|| path.display().to_string())?;
    let modified = match modified.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanoseconds| -nanoseconds),
    };
    Ok(FileStamp { file, size: state.len(), modified })
}
