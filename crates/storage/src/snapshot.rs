//! A local folder that is mirrored to a bucket, so that other processes see it whole or as it was before.
//!
//! ```text
//! URL/metrics.jsonl                 files of the folder itself, under their names
//! URL/checkpoints/3f…a1/model.…     files of an inner folder (`checkpoints/last`), under a hash of its content
//! URL/snapshot.json                 the list of all files with their objects, written last
//! ```
//!
//! Inner folders appear all at once when the list names them. Files of the folder itself are only ever extended or
//! replaced by newer ones, so they need no versions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use vit_system::hash::{Xxh3, fingerprint};

use crate::error::StorageError;
use crate::{cache, remote};

/// The list of files.
const NAME: &str = "snapshot.json";

/// Chooses files of a snapshot by their names.
pub type SnapshotSelection<'a> = &'a dyn Fn(&[&str]) -> Vec<String>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SnapshotIndex {
    files: BTreeMap<String, SnapshotEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SnapshotEntry {
    /// The object's name after the folder's URL.
    object: String,
    bytes: u64,
    xxh3: String,
}

impl SnapshotEntry {
    fn is_versioned(&self) -> bool {
        self.object.contains('/')
    }
}

impl SnapshotIndex {
    fn parse(bytes: &[u8]) -> Result<SnapshotIndex, StorageError> {
        let damaged = |what: String| StorageError::Snapshot(format!("{NAME} is damaged: {what}"));
        let index: SnapshotIndex = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        let is_inside = |name: &&String| {
            !name.contains('\\') && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
        };
        match index.files.keys().find(|name| !is_inside(name)) {
            Some(name) => Err(damaged(format!("it names the file `{name}`"))),
            None => Ok(index),
        }
    }

    fn objects(&self) -> BTreeSet<&str> {
        self.files.values().filter(|entry| entry.is_versioned()).map(|entry| entry.object.as_str()).collect()
    }
}

/// The state of an object: S3 and Azure compare its ETag before a write, Google Cloud its generation.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only `remote` reads the fields"))]
pub(crate) struct ObjectVersion {
    pub(crate) etag: Option<String>,
    pub(crate) generation: Option<String>,
}

/// A snapshot in a bucket, opened for reading.
#[derive(Debug)]
pub(crate) struct RemoteSnapshot {
    url: PathBuf,
    index: SnapshotIndex,
    version: ObjectVersion,
}

impl RemoteSnapshot {
    fn open(url: &Path) -> Result<Option<RemoteSnapshot>, StorageError> {
        match remote::read_versioned(&url.join(NAME)) {
            Ok((bytes, version)) => {
                Ok(Some(RemoteSnapshot { url: url.to_owned(), index: SnapshotIndex::parse(&bytes)?, version }))
            }
            // Web servers deny access to files that they do not have.
            Err(StorageError::Missing | StorageError::Denied(_) | StorageError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies the selected files below `inner` to a local folder.
    pub(crate) fn download(&self, local: &Path, inner: &str, selection: SnapshotSelection) -> io::Result<()> {
        let below = |name: &'_ str| match inner {
            "" => Some(name.to_owned()),
            inner => name.strip_prefix(inner)?.strip_prefix('/').map(str::to_owned),
        };
        let files: BTreeMap<String, &SnapshotEntry> =
            self.index.files.iter().filter_map(|(name, entry)| Some((below(name)?, entry))).collect();
        if files.is_empty() {
            return Err(StorageError::Missing.into());
        }
        fs::create_dir_all(local)?;
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        for name in selection(&names) {
            let (Some(entry), path) = (files.get(&name), local.join(&name)) else { continue };
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            remote::download(&self.url.join(&entry.object), &path)?;
            let (bytes, xxh3) = digest(&path)?;
            if entry.is_versioned() && (bytes, &xxh3) != (entry.bytes, &entry.xxh3) {
                return Err(StorageError::Snapshot(format!("{name} is damaged (its checksum differs)")).into());
            }
        }
        Ok(())
    }
}

/// The snapshot that a URL belongs to, and the URL's path inside of it.
pub(crate) fn of(url: &Path) -> io::Result<Option<(RemoteSnapshot, String)>> {
    let mut inner = String::new();
    let mut folder = url.to_owned();
    // The folder itself, a checkpoint in it (`checkpoints/best`), or a file of one.
    for _ in 0..4 {
        if let Some(found) = RemoteSnapshot::open(&folder)? {
            return Ok(Some((found, inner)));
        }
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        inner = if inner.is_empty() { name } else { format!("{name}/{inner}") };
        if !folder.pop() || crate::location::Location::of(&folder).is_none() {
            break;
        }
    }
    Ok(None)
}

/// A local folder and its mirror in a bucket.
#[derive(Debug)]
pub struct MirroredFolder {
    url: PathBuf,
    local: TempDir,
    published: Mutex<PublishedState>,
}

#[derive(Debug, Default)]
struct PublishedState {
    index: SnapshotIndex,
    /// The version of the list in the bucket, which no other process may have replaced.
    version: Option<ObjectVersion>,
    /// Digests of local files by name, with the size and time for which they hold.
    digests: HashMap<String, (u64, SystemTime, String)>,
    /// Objects of the snapshot before, which a reader may still be downloading.
    retiring: Vec<PathBuf>,
}

impl MirroredFolder {
    /// An empty local folder whose content will be published at `url`. `None` if there is a snapshot already, unless it is to
    /// be replaced.
    pub fn create(url: &Path, replace: bool) -> io::Result<Option<MirroredFolder>> {
        let existing = RemoteSnapshot::open(url)?;
        if existing.is_some() && !replace {
            return Ok(None);
        }
        let (index, version) = existing.map_or_else(Default::default, |found| (found.index, Some(found.version)));
        let published = PublishedState { index, version, ..PublishedState::default() };
        Ok(Some(Self::with(url, published)?))
    }

    /// A local copy of the snapshot at `url`. `None` if there is none.
    pub fn open(url: &Path, selection: SnapshotSelection) -> io::Result<Option<MirroredFolder>> {
        let Some(found) = RemoteSnapshot::open(url)? else { return Ok(None) };
        let folder = Self::with(url, PublishedState::default())?;
        found.download(folder.local(), "", selection)?;
        let RemoteSnapshot { index, version, .. } = found;
        *folder.published.lock().unwrap_or_else(PoisonError::into_inner) =
            PublishedState { index, version: Some(version), ..PublishedState::default() };
        Ok(Some(folder))
    }

    fn with(url: &Path, published: PublishedState) -> io::Result<MirroredFolder> {
        Ok(MirroredFolder { url: url.to_owned(), local: cache::temporary_folder()?, published: Mutex::new(published) })
    }

    /// The local folder.
    pub fn local(&self) -> &Path {
        self.local.path()
    }

    /// The URL.
    pub fn url(&self) -> &Path {
        &self.url
    }

    /// Uploads what has changed, then the list. After an error or a kill, readers see the snapshot before.
    pub fn publish(&self) -> io::Result<()> {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.index(&mut published.digests)?;
        let before = published.index.clone();
        let held = before.objects();
        for (name, entry) in &index.files {
            let is_there = match entry.is_versioned() {
                true => held.contains(entry.object.as_str()),
                false => before.files.get(name) == Some(entry),
            };
            if !is_there {
                remote::upload(&self.local().join(name), &self.url.join(&entry.object))?;
            }
        }
        let json = format!("{:#}\n", serde_json::json!(index));
        let version = remote::replace(&self.url.join(NAME), json.into_bytes(), published.version.clone())?;
        published.version = Some(version);
        let current = index.objects();
        let unused = held.iter().filter(|object| !current.contains(*object)).map(|object| self.url.join(object));
        let retired = std::mem::replace(&mut published.retiring, unused.collect());
        let retired: Vec<PathBuf> =
            retired.into_iter().filter(|url| !current.iter().any(|object| self.url.join(object) == *url)).collect();
        // The snapshot is complete; an object that stays costs only space.
        let _ = remote::remove(&retired);
        published.index = index;
        Ok(())
    }

    /// The files of the local folder with their objects.
    fn index(&self, digests: &mut HashMap<String, (u64, SystemTime, String)>) -> io::Result<SnapshotIndex> {
        let mut files = BTreeMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.local().join(&folder))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with('.') || [".lock", ".partial"].iter().any(|ending| name.ends_with(ending)) {
                    continue;
                }
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let found = entry.metadata()?;
                if found.is_dir() {
                    folders.push(path);
                    continue;
                }
                let (bytes, time) = (found.len(), found.modified()?);
                let known =
                    digests.get(&path).filter(|(b, t, _)| (*b, *t) == (bytes, time)).map(|known| known.2.clone());
                let (bytes, xxh3) = known.map_or_else(|| digest(&entry.path()), |known| Ok((bytes, known)))?;
                digests.insert(path.clone(), (bytes, time, xxh3.clone()));
                names.push((path, bytes, xxh3));
            }
            names.sort();
            let version = version(&folder, &names);
            for (path, bytes, xxh3) in names {
                let object = match &version {
                    Some(version) => format!("{version}/{}", path.rsplit('/').next().unwrap_or(&path)),
                    None => path.clone(),
                };
                files.insert(path, SnapshotEntry { object, bytes, xxh3 });
            }
        }
        Ok(SnapshotIndex { files })
    }
}

/// The folder of the objects of an inner folder: named by a hash of the content, so a renamed folder is not uploaded again.
fn version(folder: &str, files: &[(String, u64, String)]) -> Option<String> {
    if folder.is_empty() {
        return None;
    }
    let parent = folder.rsplit_once('/').map_or(folder, |(parent, _)| parent);
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let lines: Vec<String> = files.iter().map(|(path, bytes, xxh3)| format!("{} {bytes} {xxh3}", name(path))).collect();
    let parts: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    Some(format!("{parent}/{}", &fingerprint(&parts)[..16]))
}

/// Length and checksum of a local file.
fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut hash, mut bytes) = (Xxh3::new(), 0);
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, format!("{:016x}", hash.digest()))),
            count => {
                hash.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_cannot_name_files_outside() {
        for name in ["../x", "/etc/passwd", "a/../../b", "a\\b"] {
            let entry = serde_json::json!({"object": "o", "bytes": 1, "xxh3": ""});
            let json = serde_json::json!({"files": {name: entry}}).to_string();
            assert!(matches!(SnapshotIndex::parse(json.as_bytes()), Err(StorageError::Snapshot(_))), "{name}");
        }
    }

    #[test]
    fn a_renamed_folder_keeps_its_objects() {
        let files = |folder: &str| vec![(format!("{folder}/model"), 3, "aa".to_owned())];
        let last = version("checkpoints/last", &files("checkpoints/last"));
        assert_eq!(last, version("checkpoints/last.previous", &files("checkpoints/last.previous")));
        assert!(last.unwrap().starts_with("checkpoints/"));
        assert_eq!(version("", &files("")), None);
    }
}
