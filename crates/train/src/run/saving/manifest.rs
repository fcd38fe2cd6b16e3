//! The list of a checkpoint's files with their lengths and checksums (XXH3, 64 bits). It is written last, so a checkpoint
//! without it, or that differs from it, is incomplete.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use vit_system::hash::Xxh3;
use vit_system::regular_file;

use super::{CONFIG, STATE, WEIGHTS};

pub(super) const NAME: &str = "manifest.json";

/// One file's length and checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileDigest {
    bytes: u64,
    xxh3: String,
}

/// All files but the manifest itself.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    files: BTreeMap<String, FileDigest>,
}

impl Manifest {
    pub(super) fn add(&mut self, name: &str, entry: FileDigest) {
        self.files.insert(name.into(), entry);
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    pub(super) fn to_json(&self) -> String {
        format!("{:#}\n", serde_json::json!(self))
    }

    /// The manifest of a folder, if all files agree with it, or what is wrong.
    pub(super) fn verify(folder: &Path) -> Result<Manifest, String> {
        if !folder.exists() {
            return Err("it does not exist".into());
        }
        let text = match regular_file::read_to_string(&folder.join(NAME)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("it is incomplete ({NAME} is missing)"));
            }
            Err(error) => return Err(format!("{NAME}: {error}")),
        };
        let manifest: Manifest = serde_json::from_str(&text).map_err(|error| format!("{NAME} is damaged: {error}"))?;
        if let Some(name) = [WEIGHTS, CONFIG, STATE].into_iter().find(|name| !manifest.contains(name)) {
            return Err(format!("{NAME} does not list {name}"));
        }
        for (name, expected) in &manifest.files {
            if name.contains(['/', '\\', ':']) || name.starts_with('.') {
                return Err(format!("{NAME} lists `{name}`, which is not a plain file name"));
            }
            let found = FileDigest::of_file(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
            if found.bytes != expected.bytes {
                return Err(format!("{name} has {} bytes instead of {}", found.bytes, expected.bytes));
            }
            if found.xxh3 != expected.xxh3 {
                return Err(format!("{name} is damaged (its checksum differs)"));
            }
        }
        Ok(manifest)
    }
}

impl FileDigest {
    fn of_file(path: &Path) -> io::Result<FileDigest> {
        let mut file = regular_file::open(path)?;
        let mut hashed = Hashed::new(io::sink());
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hashed.finish().1),
                count => hashed.write_all(&buffer[..count])?,
            }
        }
    }
}

/// A writer that counts and hashes its bytes.
pub(super) struct Hashed<W> {
    out: W,
    hash: Xxh3,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, hash: Xxh3::new(), bytes: 0 }
    }

    pub(super) fn finish(self) -> (W, FileDigest) {
        (self.out, FileDigest { bytes: self.bytes, xxh3: format!("{:016x}", self.hash.digest()) })
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
