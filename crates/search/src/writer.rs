//! Keeps an index equal to a folder of files.
//!
//! A change writes new segments beside the old ones, then replaces `index.json`, then removes what that no longer names. A
//! process that is killed in between leaves the index as it was before or after the change.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::manifest::{IndexManifest, SegmentName};
use crate::segment::{ENDINGS, VectorSegment, is_number, path};
use crate::vectors::{StoredRows, normalised};
use crate::{FileStamp, IndexSettings, IndexedFile, SearchError};

/// The least time between commits.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// The time between commits in units of what the last one took: they cost a tenth of the time.
const COMMIT_SHARE: u32 = 10;
/// The most bytes of vectors in a segment, which bounds the cost of removing a file.
const SEGMENT_BYTES: usize = 64 << 20;
/// The name of the file that a writer locks.
const LOCK: &str = "lock";

/// The difference between an index and a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderChanges {
    /// Files that are new or changed.
    pub to_read: Vec<FileStamp>,
    /// How many files are as the index has them.
    pub unchanged: usize,
    /// How many files of the index are missing.
    pub missing: usize,
}

/// A segment of the index, with the files of its rows.
struct WrittenSegment {
    name: SegmentName,
    segment: Arc<VectorSegment>,
    files: Vec<IndexedFile>,
}

/// A segment after a change: one that stays, by its index, or rows to write.
enum NextSegment {
    Same(usize),
    New(StoredRows, Vec<IndexedFile>),
}

/// The only writer of an index.
pub struct IndexWriter {
    path: PathBuf,
    /// The system unlocks it when the process ends, however it does.
    _lock: File,
    manifest: IndexManifest,
    segments: Vec<WrittenSegment>,
    stamps: HashMap<String, FileStamp>,
    /// Where a vector of a content is. Maps of replaced segments stay readable.
    contents: HashMap<u128, (Arc<VectorSegment>, usize)>,
    added: StoredRows,
    added_files: Vec<IndexedFile>,
    committed: Instant,
    /// How long the last commit took.
    commit_time: Duration,
}

impl IndexSettings {
    /// The settings of an index; `None` if there is none.
    pub fn read(index: &Path) -> Result<Option<IndexSettings>, SearchError> {
        Ok(IndexManifest::read(index)?.map(|manifest| manifest.settings))
    }
}

impl IndexWriter {
    /// Opens an index of these files, model and type of vectors, or begins one in a folder that is missing or empty.
    pub fn open(path: &Path, settings: IndexSettings) -> Result<IndexWriter, SearchError> {
        let found = IndexManifest::read(path)?;
        if found.is_none() && holds_other_files(path)? {
            return Err(SearchError::Occupied { path: path.into() });
        }
        fs::create_dir_all(path).map_err(SearchError::file(path))?;
        let lock = lock(path)?;
        // Read again: another writer may have ended between.
        let mut manifest = match IndexManifest::read(path)? {
            Some(manifest) => manifest,
            None => {
                let manifest = IndexManifest::new(settings.clone());
                manifest.write(path)?;
                manifest
            }
        };
        check(path, &manifest.settings, &settings)?;
        manifest.settings = settings;
        let mut writer = IndexWriter {
            path: path.into(),
            _lock: lock,
            segments: Vec::new(),
            stamps: HashMap::new(),
            contents: HashMap::new(),
            added: StoredRows::default(),
            added_files: Vec::new(),
            committed: Instant::now(),
            commit_time: Duration::ZERO,
            manifest,
        };
        for name in writer.manifest.segments.clone() {
            let segment = writer.open_segment(name)?;
            writer.segments.push(segment);
        }
        for WrittenSegment { segment, files, .. } in &writer.segments {
            for (row, file) in files.iter().enumerate() {
                writer.stamps.insert(file.stamp.file.clone(), file.stamp.clone());
                writer.contents.insert(file.hash, (segment.clone(), row));
            }
        }
        writer.remove_leftovers()?;
        Ok(writer)
    }

    fn open_segment(&self, name: SegmentName) -> Result<WrittenSegment, SearchError> {
        let segment = VectorSegment::open(&self.path, &name, &self.manifest.settings)?;
        let files = (0..segment.rows).map(|row| segment.file(row)).collect::<Result<_, _>>()?;
        Ok(WrittenSegment { name, segment: Arc::new(segment), files })
    }

    /// The number of files that are committed.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.files.len()).sum()
    }

    /// Whether no file is committed.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Compares the files of a folder with those of the index by size and time of modification.
    pub fn compare(&self, listing: &[FileStamp]) -> FolderChanges {
        let is_unchanged = |file: &&FileStamp| self.stamps.get(&file.file) == Some(*file);
        let to_read: Vec<FileStamp> = listing.iter().filter(|file| !is_unchanged(file)).cloned().collect();
        let known = listing.iter().filter(|file| self.stamps.contains_key(&file.file)).count();
        FolderChanges {
            unchanged: listing.len() - to_read.len(),
            to_read,
            missing: self.stamps.len().saturating_sub(known),
        }
    }

    /// The hashes of all contents whose vectors are in the index.
    pub fn contents(&self) -> HashSet<u128> {
        self.contents.keys().copied().collect()
    }

    /// Adds a file whose content is already in the index, perhaps under another path or with another time of modification.
    /// Returns whether it is.
    pub fn add_known(&mut self, stamp: FileStamp, hash: u128) -> Result<bool, SearchError> {
        let Some((segment, row)) = self.contents.get(&hash) else { return Ok(false) };
        let (bytes, scales) = segment.stored(*row..row + 1);
        self.added.extend(bytes, scales);
        self.added_files.push(IndexedFile { stamp, hash });
        self.commit_in_time()?;
        Ok(true)
    }

    /// Adds or replaces a file. `hash` is that of its content. Additions are committed now and then, see [`IndexWriter::commit`].
    pub fn add(&mut self, stamp: FileStamp, hash: u128, vector: &[f32]) -> Result<(), SearchError> {
        let IndexSettings { dim, vectors, .. } = self.manifest.settings;
        if vector.len() != dim {
            return Err(SearchError::Dimension { found: vector.len(), expected: dim });
        }
        self.added.push(vectors, &normalised(vector)?);
        self.added_files.push(IndexedFile { stamp, hash });
        self.commit_in_time()
    }

    fn commit_in_time(&mut self) -> Result<(), SearchError> {
        let full = self.added_files.len() >= self.segment_rows();
        let interval = COMMIT_INTERVAL.max(COMMIT_SHARE * self.commit_time);
        if full || self.committed.elapsed() >= interval { self.commit() } else { Ok(()) }
    }

    /// Makes all additions durable.
    pub fn commit(&mut self) -> Result<(), SearchError> {
        if self.added_files.is_empty() { Ok(()) } else { self.change(|_| true) }
    }

    /// Commits, and removes the files that are not kept. Returns how many files the index holds.
    pub fn finish(mut self, keep: impl Fn(&str) -> bool) -> Result<usize, SearchError> {
        self.change(keep)?;
        Ok(self.len())
    }

    fn segment_rows(&self) -> usize {
        let settings = &self.manifest.settings;
        (SEGMENT_BYTES / (settings.dim * settings.vectors.bytes())).max(1)
    }

    /// Commits the additions and removes files: those that are not kept, and the former rows of those that were added.
    fn change(&mut self, keep: impl Fn(&str) -> bool) -> Result<(), SearchError> {
        let start = Instant::now();
        let added: HashSet<&str> = self.added_files.iter().map(|file| file.stamp.file.as_str()).collect();
        let stays = |file: &IndexedFile| keep(&file.stamp.file) && !added.contains(file.stamp.file.as_str());
        let (mut next, mut removed) = (Vec::new(), Vec::new());
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.files.iter().all(stays) {
                next.push(NextSegment::Same(index));
                continue;
            }
            let (mut rows, mut files) = (StoredRows::default(), Vec::new());
            for (row, file) in segment.files.iter().enumerate() {
                if stays(file) {
                    let (bytes, scales) = segment.segment.stored(row..row + 1);
                    rows.extend(bytes, scales);
                    files.push(file.clone());
                } else {
                    removed.push(file.stamp.file.clone());
                }
            }
            if !files.is_empty() {
                next.push(NextSegment::New(rows, files));
            }
        }
        if !self.added_files.is_empty() {
            self.append(&mut next);
        }
        self.write(next)?;
        removed.iter().for_each(|file| drop(self.stamps.remove(file)));
        for file in self.added_files.drain(..) {
            self.stamps.insert(file.stamp.file.clone(), file.stamp);
        }
        self.added = StoredRows::default();
        self.committed = Instant::now();
        self.commit_time = start.elapsed();
        Ok(())
    }

    /// Adds a segment of the additions, together with the rows of segments before it that are not larger: a row is copied
    /// as often as the logarithm of their number, and few segments remain.
    fn append(&self, next: &mut Vec<NextSegment>) {
        let (mut rows, mut files) = (self.added.clone(), self.added_files.clone());
        while let Some(last) = next.pop() {
            let count = match &last {
                NextSegment::Same(index) => self.segments[*index].files.len(),
                NextSegment::New(_, files) => files.len(),
            };
            if count > files.len() || count + files.len() > self.segment_rows() {
                next.push(last);
                break;
            }
            let (mut before, mut files_before) = match last {
                NextSegment::Same(index) => {
                    let segment = &self.segments[index];
                    let (bytes, scales) = segment.segment.stored(0..count);
                    (StoredRows { bytes: bytes.to_vec(), scales: scales.to_vec() }, segment.files.clone())
                }
                NextSegment::New(rows, files) => (rows, files),
            };
            before.extend(&rows.bytes, &rows.scales);
            files_before.append(&mut files);
            (rows, files) = (before, files_before);
        }
        next.push(NextSegment::New(rows, files));
    }

    /// Writes the new segments, commits, and removes the files of the others.
    fn write(&mut self, next: Vec<NextSegment>) -> Result<(), SearchError> {
        let mut manifest = self.manifest.clone();
        manifest.segments.clear();
        let mut new = HashMap::new();
        for segment in &next {
            match segment {
                NextSegment::Same(index) => manifest.segments.push(self.segments[*index].name.clone()),
                NextSegment::New(rows, files) => {
                    let name = SegmentName { name: format!("{:06}", manifest.next_segment), rows: files.len() };
                    manifest.next_segment += 1;
                    VectorSegment::write(&self.path, &name.name, &manifest.settings, rows, files)?;
                    let segment = Arc::new(VectorSegment::open(&self.path, &name, &manifest.settings)?);
                    new.insert(manifest.segments.len(), (name.clone(), segment));
                    manifest.segments.push(name);
                }
            }
        }
        manifest.write(&self.path)?;
        self.manifest = manifest;
        let mut before: Vec<Option<WrittenSegment>> = self.segments.drain(..).map(Some).collect();
        for (index, segment) in next.into_iter().enumerate() {
            match segment {
                NextSegment::Same(before_index) => self.segments.extend(before[before_index].take()),
                NextSegment::New(_, files) => {
                    let Some((name, segment)) = new.remove(&index) else { continue };
                    for (row, file) in files.iter().enumerate() {
                        self.contents.insert(file.hash, (segment.clone(), row));
                    }
                    self.segments.push(WrittenSegment { name, segment, files });
                }
            }
        }
        for WrittenSegment { name, .. } in before.into_iter().flatten() {
            for ending in ENDINGS {
                // If the system keeps a file that is mapped, the next writer removes it.
                let _ = fs::remove_file(path(&self.path, &name.name, ending));
            }
        }
        Ok(())
    }

    /// Removes the files of segments that `index.json` does not name, and unfinished files.
    fn remove_leftovers(&self) -> Result<(), SearchError> {
        let used: HashSet<&str> = self.manifest.segments.iter().map(|segment| segment.name.as_str()).collect();
        for entry in fs::read_dir(&self.path).map_err(SearchError::file(&self.path))?.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let segment = name.split_once('.').filter(|(number, ending)| is_number(number) && ENDINGS.contains(ending));
            if is_unfinished(name) || segment.is_some_and(|(number, _)| !used.contains(number)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Whether a file is one that [`vit_system::atomic_file`] was writing for an index when its process ended.
fn is_unfinished(name: &str) -> bool {
    let stem = name.strip_prefix('.').filter(|_| name.ends_with(".part")).and_then(|name| name.split('.').next());
    stem.is_some_and(|stem| stem == "index" || is_number(stem))
}

/// Whether a folder without an index has files that no writer has left.
fn holds_other_files(path: &Path) -> Result<bool, SearchError> {
    match fs::read_dir(path) {
        Ok(entries) => Ok(entries.flatten().any(|entry| {
            let name = entry.file_name();
            name != LOCK && !name.to_str().is_some_and(is_unfinished)
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(SearchError::File { path: path.into(), error }),
    }
}

fn lock(index: &Path) -> Result<File, SearchError> {
    let path = index.join(LOCK);
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(SearchError::file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SearchError::Locked { path: index.into() }),
        Err(TryLockError::Error(error)) => Err(SearchError::File { path, error }),
    }
}

/// Fails unless an index is of the given files, model and type of vectors.
fn check(path: &Path, found: &IndexSettings, given: &IndexSettings) -> Result<(), SearchError> {
    let path = PathBuf::from(path);
    if found.model.fingerprint != given.model.fingerprint || found.dim != given.dim {
        return Err(SearchError::OtherModel {
            path,
            indexed: found.model.path.clone(),
            given: given.model.path.clone(),
        });
    }
    if found.vectors != given.vectors {
        return Err(SearchError::OtherVectors { path, indexed: found.vectors, given: given.vectors });
    }
    // A folder that was moved is the same; one beside another is not.
    if found.files != given.files && found.files.exists() {
        return Err(SearchError::OtherFiles { path, indexed: found.files.clone(), given: given.files.clone() });
    }
    Ok(())
}
