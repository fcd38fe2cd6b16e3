//! Any bytes as a tar archive: as they are, and with the checksums of its headers put right, plain, gzip and zstd.
#![no_main]

#[path = "../exercise.rs"]
mod exercise;

use flate2::{Compression, write::GzEncoder};
use libfuzzer_sys::fuzz_target;
use std::io::Write;

const BLOCK: usize = 512;

/// The archive with a right checksum in every header that its sizes lead to.
fn with_checksums(archive: &[u8]) -> Vec<u8> {
    let mut archive = archive.to_vec();
    let mut position = 0;
    while let Some(header) = archive.get_mut(position..position + BLOCK) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let digits = header[124..136].iter().filter(|byte| (b'0'..b'8').contains(*byte));
        let size = digits.fold(0usize, |size, digit| size.wrapping_mul(8) + usize::from(digit - b'0'));
        let Some(next) = position.checked_add(BLOCK).and_then(|next| next.checked_add(size)) else { break };
        position = next.div_ceil(BLOCK).saturating_mul(BLOCK);
    }
    archive
}

fuzz_target!(|data: &[u8]| {
    exercise::exercise(&[("a.tar", data)], "a.tar");
    let archive = with_checksums(data);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&archive).expect("memory");
    let gzip = gzip.finish().expect("memory");
    let zstd = zstd::encode_all(&archive[..], 1).expect("memory");
    // A pattern, a folder with two shards, and one file.
    exercise::exercise(&[("train-1.tar", &archive), ("classes.txt", b"a\nb\nc\n")], "train-*.tar");
    exercise::exercise(&[("a.tar.gz", &gzip), ("b.tar.zst", &zstd)], "");
});
