//! Runs the binary and collects its output.

#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The output and the exit status of a run.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// Asserts the exit status.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        for text in [&self.out, &self.err] {
            assert!(!text.contains('\x1b'), "colours without a terminal: {text:?}");
            assert!(!text.contains("panicked") && !text.contains("stack backtrace"), "{text}");
        }
        self
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }

    /// Standard output as one JSON value per line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
}

pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vit"));
    command.env_remove("VIT_MODEL").env("RUST_BACKTRACE", "1");
    command
}

/// Runs `vit` with these arguments and nothing on standard input.
#[track_caller]
pub fn vit<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Run {
    finished(command().args(arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs `vit` with this on standard input.
#[track_caller]
pub fn vit_with_input<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, input: &[u8]) -> Run {
    let mut command = command();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    finished(child.wait_with_output().unwrap())
}

#[track_caller]
pub fn finished(output: Output) -> Run {
    Run {
        code: output.status.code().expect("ended by a signal"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A small checkpoint of random weights, 32 x 32 pixels.
pub fn model(name: &str) -> PathBuf {
    crates().join("vit/tests/fixtures").join(name)
}

/// An image among the fixtures of the data crate, e.g. `preprocess/tiny.jpg`.
pub fn image(name: &str) -> PathBuf {
    crates().join("data/tests/fixtures").join(name)
}

/// A file that is made to break decoders.
pub fn hostile(name: &str) -> PathBuf {
    crates().join("data/tests/hostile").join(name)
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Writes `each` images of 12 x 12 pixels for every class.
pub fn images(folder: &Path, classes: &[(&str, u8)], each: u32) {
    for (class, shade) in classes {
        std::fs::create_dir_all(folder.join(class)).unwrap();
        for number in 0..each {
            let pixels = (0..144u32).flat_map(|i| [*shade, (i * 7 + number * 13) as u8, shade.wrapping_mul(3)]);
            let pixels: Vec<u8> = pixels.collect();
            write_bmp(&folder.join(class).join(format!("{number}.bmp")), 12, &pixels);
        }
    }
}

/// A BMP file: rows from the bottom up, blue first, padded to four bytes.
pub fn write_bmp(path: &Path, side: usize, rgb: &[u8]) {
    let row = (3 * side).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    let size = 54 + (row * side) as u32;
    for word in [size, 0, 54, 40, side as u32, side as u32, 1 | 24 << 16, 0, (row * side) as u32, 2835, 2835, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    for line in rgb.chunks(3 * side).rev() {
        line.chunks(3).for_each(|p| file.extend([p[2], p[1], p[0]]));
        file.resize(file.len() + row - 3 * side, 0);
    }
    std::fs::write(path, file).unwrap();
}

/// Arguments of different types in one list.
#[macro_export]
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => { [$(std::ffi::OsString::from($argument)),*] };
}
