//! Reads the zip archives that NumPy and PyTorch write, from bytes in memory: stored members are borrowed, deflated ones
//! inflated. Sizes are checked against the bytes, and archives whose members claim many times the file's size are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::DeflateDecoder;

use super::WeightsError;

const FORMAT: &str = "zip";
const END: &[u8] = b"PK\x05\x06";
const END_LENGTH: usize = 22;
const END64: &[u8] = b"PK\x06\x06";
const LOCATOR64: &[u8] = b"PK\x06\x07";
const LOCATOR64_LENGTH: usize = 20;
const CENTRAL: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

/// All members together may claim this many times the file's size, and some more in small files. Trained weights hardly
/// compress; only members of nearly all zeros exceed the ratio.
const MAX_RATIO: usize = 32;
const ALWAYS_ALLOWED: usize = 4 << 20;

/// An archive whose directory has been read and checked.
pub(super) struct Archive<'a> {
    bytes: &'a [u8],
    members: BTreeMap<String, ZipMember>,
}

struct ZipMember {
    deflated: bool,
    crc: u32,
    /// Length in the file and once inflated.
    packed: usize,
    size: usize,
    /// Where the local header starts.
    local: usize,
}

impl<'a> Archive<'a> {
    /// Reads the directory at the end of `bytes`.
    pub fn open(bytes: &'a [u8]) -> Result<Self, WeightsError> {
        let (count, start) = find_directory(bytes)?;
        let mut entries = ZipFields { bytes, at: start };
        let mut members = BTreeMap::new();
        let mut claimed = 0usize;
        let allowed = bytes.len().saturating_mul(MAX_RATIO).saturating_add(ALWAYS_ALLOWED);
        for _ in 0..count {
            let (name, member) = entries.member()?;
            claimed = claimed.saturating_add(member.size);
            if claimed > allowed {
                return Err(damaged(format!("members claim more than {allowed} bytes, in a file of {}", bytes.len())));
            }
            if members.insert(name.clone(), member).is_some() {
                return Err(damaged(format!("member `{name}` appears twice")));
            }
        }
        Ok(Self { bytes, members })
    }

    /// The names of all members, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// The content of a member, checked against its checksum; `None` if there is no such member.
    pub fn member(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, WeightsError> {
        let Some(member) = self.members.get(name) else {
            return Ok(None);
        };
        let packed = self.packed(member).ok_or_else(|| damaged(format!("member `{name}` reaches past the file")))?;
        let content = if member.deflated {
            let mut inflated = Vec::new();
            // One byte more than claimed shows a member that is longer.
            DeflateDecoder::new(packed)
                .take(member.size as u64 + 1)
                .read_to_end(&mut inflated)
                .map_err(|error| damaged(format!("member `{name}`: {error}")))?;
            Cow::Owned(inflated)
        } else {
            Cow::Borrowed(packed)
        };
        if content.len() != member.size {
            return Err(damaged(format!("member `{name}` does not have the {} bytes it claims", member.size)));
        }
        if crc32fast::hash(&content) != member.crc {
            return Err(damaged(format!(
                "member `{name}` does not match its checksum (incomplete download, or saved with \
                 torch.serialization.set_crc32_options(False))"
            )));
        }
        Ok(Some(content))
    }

    /// The bytes of a member in the file, after its local header.
    fn packed(&self, member: &ZipMember) -> Option<&'a [u8]> {
        let mut header = ZipFields { bytes: self.bytes, at: member.local };
        if header.take(4)? != LOCAL {
            return None;
        }
        header.take(22)?;
        let name = usize::from(header.u16()?);
        let extra = usize::from(header.u16()?);
        header.take(name + extra)?;
        header.take(member.packed)
    }
}

/// The number of entries in the directory and where it starts.
fn find_directory(bytes: &[u8]) -> Result<(usize, usize), WeightsError> {
    let missing = || damaged("no directory at its end: the file is incomplete".to_string());
    // The end record is followed by a comment of at most 65535 bytes.
    let first = bytes.len().saturating_sub(END_LENGTH + 65535);
    let end = (first..bytes.len().saturating_sub(END_LENGTH - 1))
        .rev()
        .find(|&at| bytes[at..].starts_with(END))
        .ok_or_else(missing)?;
    let (count, start) = end_record(bytes, end).ok_or_else(missing)?;
    let directory = bytes.len().saturating_sub(start);
    // 46 bytes is the shortest entry.
    if count > directory / 46 {
        return Err(damaged(format!("the directory claims {count} members in {directory} bytes")));
    }
    Ok((count, start))
}

fn end_record(bytes: &[u8], end: usize) -> Option<(usize, usize)> {
    let mut fields = ZipFields { bytes, at: end };
    fields.take(10)?;
    let count = usize::from(fields.u16()?);
    fields.take(4)?;
    let start = fields.u32()? as usize;
    if count != 0xffff && start != 0xffff_ffff {
        return Some((count, start));
    }

    let mut locator = ZipFields { bytes, at: end.checked_sub(LOCATOR64_LENGTH)? };
    if locator.take(4)? != LOCATOR64 {
        return Some((count, start));
    }
    locator.take(4)?;
    let mut fields = ZipFields { bytes, at: locator.length()? };
    if fields.take(4)? != END64 {
        return None;
    }
    fields.take(28)?;
    let count = fields.length()?;
    fields.take(8)?;
    Some((count, fields.length()?))
}

/// Reads consecutive little-endian fields; `None` past the end.
struct ZipFields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ZipFields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// Eight bytes as a length in memory.
    fn length(&mut self) -> Option<usize> {
        let value = u64::from_le_bytes(self.take(8)?.try_into().ok()?);
        usize::try_from(value).ok()
    }

    /// One entry of the directory.
    fn member(&mut self) -> Result<(String, ZipMember), WeightsError> {
        let at = self.at;
        let entry = self.entry().ok_or_else(|| damaged(format!("the directory breaks off at byte {at}")))?;
        let name = std::str::from_utf8(entry.name)
            .map_err(|_| damaged(format!("a member's name at byte {at} is not UTF-8")))?;
        if entry.flags & 1 != 0 {
            return Err(WeightsError::unsupported(FORMAT, format!("member `{name}` is encrypted")));
        }
        let deflated = match entry.method {
            0 => false,
            8 => true,
            method => {
                return Err(WeightsError::unsupported(
                    FORMAT,
                    format!("member `{name}` uses compression {method}; save it stored or deflated"),
                ));
            }
        };
        if !deflated && entry.packed != entry.size {
            return Err(damaged(format!("stored member `{name}` has two lengths")));
        }
        let member = ZipMember { deflated, crc: entry.crc, packed: entry.packed, size: entry.size, local: entry.local };
        Ok((name.into(), member))
    }

    fn entry(&mut self) -> Option<DirectoryEntry<'a>> {
        if self.take(4)? != CENTRAL {
            return None;
        }
        self.take(4)?;
        let flags = self.u16()?;
        let method = self.u16()?;
        self.take(4)?;
        let crc = self.u32()?;
        let packed = self.u32()?;
        let size = self.u32()?;
        let name = self.u16()?;
        let extra = self.u16()?;
        let comment = self.u16()?;
        self.take(8)?;
        let local = self.u32()?;
        let name = self.take(name.into())?;
        let extra = self.take(extra.into())?;
        self.take(comment.into())?;

        // A field that exceeds 32 bits is all ones, and its value is in the zip64 extra field, in this order.
        let mut long = ZipFields { bytes: zip64_extra(extra), at: 0 };
        let mut widen = |short: u32| match short {
            u32::MAX => long.length(),
            short => Some(short as usize),
        };
        let size = widen(size)?;
        let packed = widen(packed)?;
        let local = widen(local)?;
        Some(DirectoryEntry { flags, method, crc, packed, size, local, name })
    }
}

struct DirectoryEntry<'a> {
    flags: u16,
    method: u16,
    crc: u32,
    packed: usize,
    size: usize,
    local: usize,
    name: &'a [u8],
}

/// The content of the extra field with id 1; empty where there is none.
fn zip64_extra(extra: &[u8]) -> &[u8] {
    let mut fields = ZipFields { bytes: extra, at: 0 };
    while let (Some(id), Some(length)) = (fields.u16(), fields.u16()) {
        match fields.take(length.into()) {
            Some(content) if id == 1 => return content,
            Some(_) => {}
            None => break,
        }
    }
    &[]
}

fn damaged(what: String) -> WeightsError {
    WeightsError::damaged(FORMAT, what)
}
