//! Hostile files give an error or an image, never a panic, and allocate no memory for a size that they only claim.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use vit_data::{DecodeOptions, ImageError, decode, open};

/// Records the largest single allocation of each thread, so that tests can run in parallel.
struct Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    LARGEST.with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: all calls are forwarded to the system's allocator; `note` does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn largest_allocation<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.with(|largest| largest.set(0));
    let result = work();
    (result, LARGEST.with(Cell::get))
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| vit_data::files::has_image_extension(path))
        .collect();
    files.sort();
    files
}

/// The messages of decoders' panics. `decode` turns a panic into an error, but each prints a message and should be
/// known.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn record_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if place.contains("tests/hostile.rs") {
            eprintln!("{info}");
        }
        let mut panics = PANICS.lock().unwrap_or_else(|broken| broken.into_inner());
        if !panics.contains(&place) {
            eprintln!("panic behind the guard: {info}");
            panics.push(place);
        }
    }));
}

#[test]
fn no_hostile_file_takes_memory_for_what_it_claims() {
    record_panics();
    let files = files("hostile");
    assert!(files.len() > 50);
    for path in files {
        let (result, largest) = largest_allocation(|| open(&path, &DecodeOptions::default()));
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let said = match &result {
            Ok(image) => format!("{image:?}"),
            Err(error) => error.to_string().split("hostile/").last().unwrap().to_owned(),
        };
        println!("{largest:9} {said}");
        assert!(largest <= 4 << 20, "{name} took {largest} bytes at once");
        if let Err(error) = &result {
            assert!(error.to_string().contains(&name), "{error} does not name {name}");
        }
        if name.starts_with("huge.") || name.starts_with("zero.") {
            assert!(result.is_err(), "{name} was read");
        }
    }
}

#[test]
fn an_image_over_the_limit_is_named_with_its_size() {
    for extension in ["png", "gif", "bmp", "tiff", "jpg"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hostile/huge.{extension}"));
        let error = open(&path, &DecodeOptions::default()).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("50000 x 50000"), "{message}");
        assert!(message.contains("over the limit of") && message.contains("make it smaller"), "{message}");
        assert!(
            matches!(&error, ImageError::File { error, .. } if matches!(**error, ImageError::TooLarge { .. })),
            "{error}"
        );
    }
}

/// Found by fuzzing. A newer zune-jpeg may decode it; a panic must not escape.
#[test]
fn a_panic_inside_a_decoder_is_an_error_about_the_file() {
    record_panics();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/decoder_panics.jpg");
    if let Err(error) = open(&path, &DecodeOptions::default()) {
        assert!(error.to_string().contains("decoder_panics.jpg: JPEG is damaged"), "{error}");
    }
}

#[test]
fn text_called_jpg_is_called_text() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/notes.jpg");
    let message = open(&path, &DecodeOptions::default()).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "notes.jpg: not an image that vit can read (it starts with text); \
             supported: JPEG, PNG, WebP, GIF, BMP, TIFF"
        ),
        "{message}"
    );
}

#[test]
fn a_missing_file_and_a_folder_are_errors_that_name_them() {
    for name in ["no-such-file.jpg", "."] {
        let message = open(Path::new(name), &DecodeOptions::default()).unwrap_err().to_string();
        assert!(message.starts_with(name), "{message}");
    }
}

fn small() -> DecodeOptions {
    DecodeOptions { max_pixels: 1 << 16, ..DecodeOptions::default() }
}

/// The maximum memory of decoding `1 << 16` pixels. Most formats need far less; the partitions of a lossy WebP have
/// 24-bit lengths, which its decoder trusts.
const SMALL_BOUND: usize = 17 << 20;

#[test]
fn every_truncation_is_an_error_or_an_image() {
    record_panics();
    for path in files("fixtures/formats") {
        let bytes = std::fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            let (result, largest) = largest_allocation(|| decode(&bytes[..length], &small()));
            assert!(largest <= SMALL_BOUND, "{} cut to {length}: {largest} bytes", path.display());
            let is_jpeg = path.extension().unwrap() == "jpg";
            assert!(!is_jpeg || result.is_err(), "{} cut to {length}", path.display());
        }
    }
}

/// Writes the right CRC after every chunk of a PNG; does not change other files.
fn fix_png_sums(bytes: &mut [u8]) {
    if !bytes.starts_with(b"\x89PNG") {
        return;
    }
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let Some(content) = bytes.get(at + 4..at + 8 + length) else {
            return;
        };
        let sum = !content.iter().fold(!0u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(sum & 1)))
        });
        let Some(place) = bytes.get_mut(at + 8 + length..at + 12 + length) else {
            return;
        };
        place.copy_from_slice(&sum.to_be_bytes());
        at += 12 + length;
    }
}

#[test]
fn random_damage_is_an_error_or_an_image() {
    record_panics();
    // xorshift: the same damage in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let rounds: usize = std::env::var("VIT_DAMAGE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let folders = ["fixtures/formats", "fixtures/orientation", "hostile"];
    for path in folders.into_iter().flat_map(files) {
        let bytes = std::fs::read(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        for round in 0..rounds {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random(4) {
                // Half of the damage goes to the headers, where it has most effect.
                let reach = if random(2) == 0 { bytes.len().min(128) } else { bytes.len() };
                let at = random(reach);
                match random(3) {
                    0 => damaged[at] ^= 1 << random(8),
                    1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xfe, 0xff][random(6)],
                    _ => damaged[at] = random(256) as u8,
                }
            }
            // Half of the time the checksums are corrected, or little damage would get past them.
            if random(2) == 0 {
                fix_png_sums(&mut damaged);
            }
            let (_, largest) = largest_allocation(|| decode(&damaged, &small()));
            assert!(largest <= SMALL_BOUND, "{} damaged in round {round}: {largest} bytes", path.display());
        }
    }
}

/// With any pixel limit, an image that does not fit into memory is an error and does not end the process.
#[test]
fn an_image_beyond_the_memory_is_refused_whatever_the_limit() {
    // Headers alone, of a million pixels per side.
    let side = 1_000_000u32;
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    png.extend([side.to_be_bytes(), side.to_be_bytes()].concat());
    png.extend([8, 2, 0, 0, 0]);
    // The CRC of that chunk.
    png.extend(0xd30f_af2a_u32.to_be_bytes());
    let mut bmp = b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bmp.extend([side.to_le_bytes(), side.to_le_bytes()].concat());
    bmp.extend([1, 0, 24, 0]);
    bmp.extend([0; 24]);
    let options = DecodeOptions { max_pixels: u64::MAX, ..DecodeOptions::default() };
    for file in [png, bmp] {
        let error = decode(&file, &options).unwrap_err().to_string();
        assert!(error.contains("1000000 x 1000000 pixels takes up to 8000000000000 bytes"), "{error}");
    }
}
