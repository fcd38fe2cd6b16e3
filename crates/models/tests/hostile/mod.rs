//! Builds hostile files, the same bytes each time, by the formats' specifications, and measures the memory of reading them.

pub mod memory;
pub mod pickles;

use std::io::Write;

/// A safetensors file with that header and data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// A .npy array with that header and data.
pub fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// The usual header of a float32 array.
pub fn npy_header(shape: &str) -> String {
    format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n")
}

/// One member of a zip archive, and what its directory entry claims.
pub struct Member {
    pub name: String,
    pub packed: Vec<u8>,
    pub method: u16,
    pub crc: u32,
    pub size: u32,
}

impl Member {
    pub fn stored(name: &str, content: &[u8]) -> Self {
        Self {
            name: name.into(),
            packed: content.into(),
            method: 0,
            crc: crc32fast::hash(content),
            size: content.len() as u32,
        }
    }

    pub fn deflated(name: &str, content: &[u8]) -> Self {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(content).unwrap();
        Self { packed: encoder.finish().unwrap(), method: 8, ..Self::stored(name, content) }
    }
}

/// A zip archive of these members.
pub fn zip(members: &[Member]) -> Vec<u8> {
    archive(members, false)
}

/// With `wide`, the directory has sizes and offsets in zip64 fields, as is required over 4 GiB.
fn archive(members: &[Member], wide: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for member in members {
        let local = bytes.len() as u32;
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0]);
        common.extend(member.method.to_le_bytes());
        common.extend([0; 4]);
        common.extend(member.crc.to_le_bytes());
        common.extend((member.packed.len() as u32).to_le_bytes());
        common.extend(member.size.to_le_bytes());
        common.extend((member.name.len() as u16).to_le_bytes());
        common.extend([0; 2]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(member.name.as_bytes());
        bytes.extend(&member.packed);
        let mut extra = Vec::new();
        let mut place = local.to_le_bytes();
        if wide {
            common[14..22].fill(0xff);
            place = [0xff; 4];
            // An unrelated field first.
            extra.extend([7, 0, 2, 0, 0, 0]);
            extra.extend([1, 0, 24, 0]);
            extra.extend(u64::from(member.size).to_le_bytes());
            extra.extend((member.packed.len() as u64).to_le_bytes());
            extra.extend(u64::from(local).to_le_bytes());
            let length = common.len();
            common[length - 2..].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        }
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(place);
        directory.extend(member.name.as_bytes());
        directory.extend(extra);
    }
    let start = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

/// The same archive with all zip64 records, and all ones in the 32-bit fields.
pub fn zip64(members: &[Member]) -> Vec<u8> {
    let mut bytes = archive(members, true);
    let end = bytes.split_off(bytes.len() - 22);
    let count = u64::from(u16::from_le_bytes([end[10], end[11]]));
    let length = u64::from(u32::from_le_bytes(end[12..16].try_into().unwrap()));
    let start = u64::from(u32::from_le_bytes(end[16..20].try_into().unwrap()));
    let record = bytes.len() as u64;
    bytes.extend(b"PK\x06\x06");
    bytes.extend(44u64.to_le_bytes());
    bytes.extend([45, 0, 45, 0]);
    bytes.extend([0; 8]);
    for value in [count, count, length, start] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(b"PK\x06\x07\x00\x00\x00\x00");
    bytes.extend(record.to_le_bytes());
    bytes.extend([1, 0, 0, 0]);
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend([0xff; 12]);
    bytes.extend([0, 0]);
    bytes
}

/// Deterministic noise (xorshift).
pub struct Noise(pub u64);

impl Noise {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
