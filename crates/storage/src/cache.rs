//! What was read from remote storage, kept on disk within a limit: one file per range, named by a hash of the object's
//! URL, its version and the range, so that an object that changes is never served from the cache. A file holds the bytes and
//! their checksum, is renamed into place when it is complete, and is removed when it was unused for longest. Several
//! processes may use one folder.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use vit_system::hash::{fingerprint, xxh3_128};

use crate::file::{WINDOW, read_range};

const LOCK: &str = "vit-cache.lock";

/// Cached files have this extension; nothing else in the folder is ever removed.
const EXTENSION: &str = "range";

const CHECKSUM_BYTES: usize = 16;

/// The share of the limit that remains after files were removed, so that this happens rarely.
const KEPT: f64 = 0.9;

static CACHE: OnceLock<DiskCache> = OnceLock::new();

/// Keeps what is read from remote storage in `folder`, at most about `limit` bytes. Called once, before anything is read.
pub fn use_cache(folder: &Path, limit: u64) -> io::Result<()> {
    let cache = DiskCache::open(folder, limit)?;
    // A second call has no effect: reads of the first may be under way.
    let _ = CACHE.set(cache);
    Ok(())
}

/// The cache of this process, if it has one.
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only remote storage is cached"))]
pub(crate) fn cache() -> Option<&'static DiskCache> {
    CACHE.get()
}

/// A new folder for large temporary files: in that of the cache, in `TMPDIR`, or where a disk is likely. `/tmp` is in
/// memory on many systems.
pub(crate) fn temporary_folder() -> io::Result<tempfile::TempDir> {
    let disk = Path::new("/var/tmp");
    let parent = match CACHE.get() {
        Some(cache) => cache.folder.clone(),
        None if std::env::var_os("TMPDIR").is_none() && disk.is_dir() => disk.to_owned(),
        None => std::env::temp_dir(),
    };
    tempfile::Builder::new().prefix("vit-").tempdir_in(parent)
}

#[derive(Debug)]
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only remote storage is cached"))]
pub(crate) struct DiskCache {
    folder: PathBuf,
    limit: u64,
    /// Bytes in the folder as far as this process knows; exact after [`DiskCache::shrink`].
    used: AtomicU64,
    /// Files whose checksum this process has verified.
    verified: Mutex<HashSet<String>>,
}

#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only remote storage is cached"))]
impl DiskCache {
    fn open(folder: &Path, limit: u64) -> io::Result<DiskCache> {
        fs::create_dir_all(folder)?;
        let cache = DiskCache { folder: folder.to_owned(), limit, used: AtomicU64::new(0), verified: Mutex::default() };
        cache.shrink()?;
        Ok(cache)
    }

    /// The name of a range in the cache.
    pub(crate) fn key(url: &str, version: &str, (offset, length): (u64, u64)) -> String {
        fingerprint(&[url.as_bytes(), version.as_bytes(), &offset.to_le_bytes(), &length.to_le_bytes()])
    }

    fn path(&self, key: &str) -> PathBuf {
        // A folder with a million files is slow on some file systems.
        self.folder.join(&key[..2]).join(format!("{key}.{EXTENSION}"))
    }

    /// A range, if it is here and intact.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut bytes = fs::read(&path).ok()?;
        let content = bytes.len().checked_sub(CHECKSUM_BYTES)?;
        if xxh3_128(&bytes[..content]).to_le_bytes() != bytes[content..] {
            let _ = fs::remove_file(&path);
            return None;
        }
        // The time of the last use decides which files are removed. Access times are often switched off.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        bytes.truncate(content);
        Some(bytes)
    }

    /// A part of a range. The checksum of the whole is verified at the first use.
    pub(crate) fn get_part(&self, key: &str, offset: u64, length: u64) -> Option<Vec<u8>> {
        let is_verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner).contains(key);
        if is_verified {
            let file = File::options().append(true).read(true).open(self.path(key)).ok()?;
            let _ = file.set_modified(SystemTime::now());
            return read_range(&file, offset, length).ok();
        }
        let whole = self.get(key)?;
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        let start = usize::try_from(offset).ok()?;
        whole.get(start..start.checked_add(length as usize)?).map(<[u8]>::to_vec)
    }

    /// A range, put together from cached windows of a file that was read from one end to the other.
    pub(crate) fn get_from_windows(&self, url: &str, version: &str, size: u64, range: (u64, u64)) -> Option<Vec<u8>> {
        let (start, end) = (range.0, range.0.checked_add(range.1).filter(|end| *end <= size)?);
        let mut bytes = Vec::new();
        let mut at = start;
        while at < end {
            let window = at / WINDOW * WINDOW;
            let length = WINDOW.min(size.checked_sub(window)?);
            let stop = end.min(window + length);
            bytes.extend(self.get_part(&Self::key(url, version, (window, length)), at - window, stop - at)?);
            at = stop;
        }
        Some(bytes)
    }

    /// Adds a range. A full disk or a missing permission is no error: the cache only saves time.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        if bytes.len() as u64 > self.limit / 2 || self.write(key, bytes).is_err() {
            return;
        }
        let used = self.used.fetch_add((bytes.len() + CHECKSUM_BYTES) as u64, Ordering::Relaxed);
        if used > self.limit {
            let _ = self.shrink();
        }
    }

    fn write(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder)?;
        // Not flushed to the disk: after a power cut, the checksum reveals an incomplete file.
        let mut file = tempfile::Builder::new().prefix(".").suffix(".part").tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.write_all(&xxh3_128(bytes).to_le_bytes())?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Counts the files, and removes those unused for longest if there are too many bytes.
    fn shrink(&self) -> io::Result<()> {
        let lock = File::create(self.folder.join(LOCK))?;
        // Another process is removing files; without locks on this file system, both do.
        if let Err(fs::TryLockError::WouldBlock) = lock.try_lock() {
            self.used.store(0, Ordering::Relaxed);
            return Ok(());
        }
        let mut files = Vec::new();
        for folder in fs::read_dir(&self.folder)?.flatten().filter(|entry| entry.file_name().len() == 2) {
            for entry in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == EXTENSION)
                    && let Ok(found) = entry.metadata()
                {
                    files.push((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.len(), path));
                }
            }
        }
        let mut used: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        if used > self.limit {
            files.sort_unstable();
            let kept = (self.limit as f64 * KEPT) as u64;
            for (_, bytes, path) in files {
                if used <= kept {
                    break;
                }
                if fs::remove_file(&path).is_ok() {
                    used -= bytes;
                }
            }
        }
        self.used.store(used, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn cache(folder: &Path, limit: u64) -> DiskCache {
        DiskCache::open(folder, limit).unwrap()
    }

    #[test]
    fn the_longest_unused_ranges_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 4096);
        let keys: Vec<String> = (0..4).map(|n| DiskCache::key("s3://b/k", "v1", (n, 1000))).collect();
        for (age, key) in keys.iter().enumerate().take(3) {
            cache.put(key, &[age as u8; 1000]);
            let file = File::options().append(true).open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(100 - age as u64)).unwrap();
        }
        assert_eq!(cache.get(&keys[0]).unwrap(), [0; 1000]);
        cache.put(&keys[3], &[3; 1500]);
        cache.shrink().unwrap();
        let found: Vec<bool> = keys.iter().map(|key| cache.get(key).is_some()).collect();
        assert_eq!(found, [true, false, true, true], "the first was used again, so the second went");
    }

    #[test]
    fn a_damaged_file_is_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 20);
        let key = DiskCache::key("s3://b/k", "v1", (0, 4));
        assert_ne!(key, DiskCache::key("s3://b/k", "v2", (0, 4)));
        cache.put(&key, b"data");
        assert_eq!(cache.get(&key).unwrap(), b"data");
        fs::write(cache.path(&key), b"dat").unwrap();
        assert_eq!(cache.get(&key), None);
        let mut bytes = b"dota".to_vec();
        bytes.extend(xxh3_128(b"data").to_le_bytes());
        fs::write(cache.path(&key), bytes).unwrap();
        assert_eq!(cache.get(&key), None);
    }

    #[test]
    fn windows_serve_the_ranges_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 30);
        let size = WINDOW + 1000;
        let object: Vec<u8> = (0..size).map(|index| (index % 253) as u8).collect();
        let range = |offset, length| cache.get_from_windows("s3://b/k", "v1", size, (offset, length));
        cache.put(&DiskCache::key("s3://b/k", "v1", (0, WINDOW)), &object[..WINDOW as usize]);
        assert_eq!(range(WINDOW - 10, 20), None, "the second window is missing");
        cache.put(&DiskCache::key("s3://b/k", "v1", (WINDOW, 1000)), &object[WINDOW as usize..]);
        for _ in 0..2 {
            assert_eq!(range(WINDOW - 10, 20).unwrap(), object[WINDOW as usize - 10..][..20]);
        }
        assert_eq!(range(size - 1, 2), None);
    }

    #[test]
    fn files_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("ab")).unwrap();
        fs::write(folder.path().join("ab/photo.jpg"), [0; 5000]).unwrap();
        let cache = cache(folder.path(), 100);
        cache.shrink().unwrap();
        assert!(folder.path().join("ab/photo.jpg").exists());
    }
}
