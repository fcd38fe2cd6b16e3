//! The table of contents of a tar archive, read from header to header; members are then read in place. Nothing is ever
//! written under the names in an archive.

use super::error::DatasetError;
use super::store::{Store, check_entries};
use crate::files::has_image_extension;
use ::tar::{Header, PaxExtensions};
use std::borrow::Cow;
use std::io;
use std::path::Path;

const BLOCK: u64 = 512;

/// No path is longer; a longer one could exhaust the memory.
const MAX_NAME_BYTES: u64 = 1 << 16;

/// Label files are smaller.
const MAX_CONTENT_BYTES: u64 = 1 << 12;

/// A file or folder in an archive.
pub(super) struct TarMember {
    /// Its path with `/` as separator.
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) is_folder: bool,
    /// The content of a label file of an object: a request for each of them would take hours.
    content: Option<Box<[u8]>>,
}

impl TarMember {
    /// The content of a small member.
    pub(super) fn read<'a>(&'a self, store: &'a Store) -> io::Result<Cow<'a, [u8]>> {
        match &self.content {
            Some(content) => Ok(Cow::Borrowed(content)),
            None => store.read(self.offset, self.length),
        }
    }
}

/// Whether a file starts with the header of a tar archive.
pub(super) fn is_tar(start: &[u8]) -> bool {
    start.get(..BLOCK as usize).is_some_and(|block| block.iter().any(|byte| *byte != 0) && has_checksum(&header(block)))
}

/// Whether a file name has the extension of a tar archive.
pub(super) fn has_ending(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst"].iter().any(|ending| name.ends_with(ending))
}

fn header(block: &[u8]) -> Header {
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    header
}

fn has_checksum(header: &Header) -> bool {
    let bytes = header.as_bytes();
    // The checksum field itself counts as blanks.
    let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum();
    header.cksum().is_ok_and(|claimed| claimed == sum + 8 * u32::from(b' '))
}

/// The files and folders of an archive in order, without hidden ones.
pub(super) fn members(store: &Store) -> Result<Vec<TarMember>, DatasetError> {
    // The size on disk counts: a few compressed bytes expand to any number of empty members.
    let on_disk = vit_storage::size(&store.path).map_err(DatasetError::io(&store.path))?;
    let window = store.windowed().map_err(DatasetError::io(&store.path))?;
    let read = |offset, length| match &window {
        Some(window) => window.read_at(offset, length).map(Cow::Owned),
        None => store.read(offset, length),
    };
    let damaged = |reason: &str| DatasetError::damaged(&store.path, format!("tar archive is damaged: {reason}"));
    let cut_short = || damaged("it is cut short; copy or download it again");
    let mut members = Vec::new();
    let mut position = 0;
    let mut described = MemberAttributes::default();
    // Some writers omit the empty blocks at the end.
    while position < store.len() {
        let block = read(position, BLOCK).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => cut_short(),
            _ => DatasetError::io(&store.path)(error),
        })?;
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let header = header(&block);
        if !has_checksum(&header) {
            return Err(damaged("a header has the wrong checksum"));
        }
        let kind = header.entry_type();
        let is_description = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        let offset = position + BLOCK;
        let claimed = header.entry_size().map_err(|_| damaged("a header has no valid size"))?;
        let length = if is_description { claimed } else { described.size.unwrap_or(claimed) };
        let end = offset.checked_add(length).filter(|end| *end <= store.len()).ok_or_else(cut_short)?;
        position = end.div_ceil(BLOCK) * BLOCK;

        if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
            if length > MAX_NAME_BYTES {
                return Err(damaged("a name is longer than any path"));
            }
            let bytes = read(offset, length).map_err(DatasetError::io(&store.path))?;
            match kind.is_gnu_longname() {
                true => described.name = Some(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()),
                false => described.read(&bytes),
            }
            continue;
        }
        if is_description {
            continue;
        }
        let MemberAttributes { name, sparse, .. } = std::mem::take(&mut described);
        let name = name.unwrap_or_else(|| header.path_bytes().into_owned());
        let is_folder = kind.is_dir() || name.ends_with(b"/");
        // Links, devices and sparse files hold no contiguous image.
        if sparse || !(is_folder || kind.is_file() || kind.is_contiguous()) {
            continue;
        }
        if let Some(name) = visible(&String::from_utf8_lossy(&name)) {
            let is_small = window.is_some() && !is_folder && length <= MAX_CONTENT_BYTES;
            let content = (is_small && !has_image_extension(Path::new(&name)))
                .then(|| read(offset, length).map(|bytes| bytes.into()))
                .transpose()
                .map_err(DatasetError::io(&store.path))?;
            members.push(TarMember { name, offset, length, is_folder, content });
            check_entries(&store.path, "members", members.len() as u64, on_disk)?;
        }
    }
    Ok(members)
}

/// Attributes of the next member from the entries before it.
#[derive(Default)]
struct MemberAttributes {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl MemberAttributes {
    fn read(&mut self, pax: &[u8]) {
        for extension in PaxExtensions::new(pax).flatten() {
            match extension.key() {
                Ok("path") => self.name = Some(extension.value_bytes().to_vec()),
                Ok("size") => self.size = extension.value().ok().and_then(|size| size.parse().ok()),
                Ok(key) if key.starts_with("GNU.sparse.") => self.sparse = true,
                _ => {}
            }
        }
    }
}

/// A name without empty parts; `None` if a part is hidden, which includes `..`.
fn visible(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    (!parts.is_empty() && parts.iter().all(|part| !part.starts_with('.'))).then(|| parts.join("/"))
}
