//! TensorBoard's event files. A record is a length, its checksum, a protocol buffer and its checksum. Only scalars are
//! written; only the steps of events are read, in order to truncate a file where a run resumes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::row::{EPOCH, MetricsRow};

const PREFIX: &str = "events.out.tfevents.";

/// Every event file in a folder, oldest first.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The name of a new file: TensorBoard reads files in the order of their timestamps.
pub(super) fn new_name() -> String {
    format!("{PREFIX}{:010}.vit", now() as u64)
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The record that every file begins with.
pub(super) fn first_record(time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    fixed64(&mut event, 1, time.to_bits());
    bytes(&mut event, 3, b"brain.Event:2");
    record(&event)
}

/// One event with all metrics of a row.
pub(super) fn scalars(row: &MetricsRow, time: f64) -> Vec<u8> {
    let mut summary = Vec::new();
    let epoch = row.epoch.map(|epoch| (EPOCH, epoch));
    for (tag, value) in row.values.iter().map(|(name, value)| (name.as_str(), *value)).chain(epoch) {
        let mut scalar = Vec::new();
        bytes(&mut scalar, 1, tag.as_bytes());
        key(&mut scalar, 2, 5);
        scalar.extend((value as f32).to_le_bytes());
        bytes(&mut summary, 1, &scalar);
    }
    let mut event = Vec::new();
    fixed64(&mut event, 1, time.to_bits());
    key(&mut event, 2, 0);
    varint(&mut event, row.step);
    bytes(&mut event, 5, &summary);
    record(&event)
}

/// The records of a file that are complete and not after `step`.
pub(super) fn cut_after(file: &[u8], step: u64) -> Vec<u8> {
    let mut kept = Vec::with_capacity(file.len());
    let mut rest = file;
    while let Some((event, length)) = first_event(rest) {
        if step_of(event).is_none_or(|of_event| of_event <= step) {
            kept.extend_from_slice(&rest[..length]);
        }
        rest = &rest[length..];
    }
    kept
}

/// The first event and the length of its record, if the record is complete.
fn first_event(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (length_check, rest) = rest.split_first_chunk::<4>()?;
    let size = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    if masked_crc(length).to_le_bytes() != *length_check {
        return None;
    }
    let event = rest.get(..size)?;
    let check = rest.get(size..size.checked_add(4)?)?;
    (masked_crc(event).to_le_bytes() == check).then_some((event, size + 16))
}

/// The step of an event; the first record of a file has none.
fn step_of(mut event: &[u8]) -> Option<u64> {
    while !event.is_empty() {
        let key = read_varint(&mut event)?;
        match key & 7 {
            0 => {
                let value = read_varint(&mut event)?;
                if key >> 3 == 2 {
                    return Some(value);
                }
            }
            1 => event = event.get(8..)?,
            2 => {
                let length = usize::try_from(read_varint(&mut event)?).ok()?;
                event = event.get(length..)?;
            }
            5 => event = event.get(4..)?,
            _ => return None,
        }
    }
    None
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend_from_slice(event);
    record.extend(masked_crc(event).to_le_bytes());
    record
}

fn key(out: &mut Vec<u8>, field: u64, kind: u64) {
    varint(out, field << 3 | kind);
}

fn fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    key(out, field, 1);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A masked checksum, as the format requires: a plain CRC of data that contains CRCs is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), reflected.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut value = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0x82f6_3b78 } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, &byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of the CRC catalogue, and RFC 3720's 32 bytes of zeros.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn a_file_is_cut_after_a_step_and_before_damage() {
        let rows: Vec<MetricsRow> = (0..5).map(|i| MetricsRow::new(i * 100).with("loss", 0.5)).collect();
        let mut file = first_record(1.0);
        let mut expected = file.clone();
        for row in &rows {
            file.extend(scalars(row, 2.0));
            if row.step <= 200 {
                expected.extend(scalars(row, 2.0));
            }
        }
        assert_eq!(cut_after(&file, 200), expected);
        assert_eq!(cut_after(&file, 1000), file);
        let whole = file.len() - scalars(&rows[4], 2.0).len();
        assert_eq!(cut_after(&file[..file.len() - 1], 1000), file[..whole]);
        file[whole + 14] ^= 1;
        assert_eq!(cut_after(&file, 1000), file[..whole]);
        assert!(cut_after(&[0xff; 40], 1000).is_empty());
    }
}
