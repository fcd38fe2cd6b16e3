//! Indexes of random vectors.

#![allow(dead_code)]

use std::fs;
use std::path::Path;

use half::f16;
use serde_json::Value;
use vit_search::{FileStamp, Index, IndexSettings, IndexWriter, ModelId, VectorType};
use vit_system::npy;

/// A reproducible generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn vector(&mut self, dim: usize) -> Vec<f32> {
        (0..dim).map(|_| self.next()).collect()
    }
}

pub fn settings(dim: usize, vectors: VectorType) -> IndexSettings {
    let model = ModelId { path: "model".into(), fingerprint: "0".into() };
    IndexSettings { files: "photos".into(), model, dim, vectors }
}

pub fn stamp(file: &str, modified: i64) -> FileStamp {
    FileStamp { file: file.into(), size: 1, modified }
}

/// An index of `000.jpg`, `001.jpg` and so on, added in another order and committed now and then.
pub fn index_of(folder: &Path, vectors: VectorType, all: &[Vec<f32>]) -> Index {
    let mut writer = IndexWriter::open(folder, settings(all[0].len(), vectors)).unwrap();
    for (at, row) in (0..all.len()).rev().enumerate() {
        writer.add(stamp(&format!("{row:03}.jpg"), 0), row as u128, &all[row]).unwrap();
        if at % 300 == 0 {
            writer.commit().unwrap();
        }
    }
    assert_eq!(writer.finish(|_| true).unwrap(), all.len());
    Index::open(folder).unwrap()
}

/// Files and vectors of an index by path, read from its documented files without the crate.
pub fn stored(index: &Index) -> Vec<(String, Vec<f64>)> {
    let read = |name: String| fs::read(index.path().join(name)).unwrap();
    let manifest: Value = serde_json::from_slice(&read("index.json".into())).unwrap();
    let mut all = Vec::new();
    for segment in manifest["segments"].as_array().unwrap() {
        let name = segment["name"].as_str().unwrap();
        let array = read(format!("{name}.npy"));
        let (header, bytes) = npy::parse(&array).unwrap();
        let dim = header.shape[1];
        let values: Vec<f64> = match header.descr {
            "<f2" => bytes.as_chunks().0.iter().map(|v| f16::from_le_bytes(*v).to_f64()).collect(),
            _ => {
                let scales = read(format!("{name}.scales.npy"));
                let scales = npy::parse(&scales).unwrap().1.as_chunks().0.iter().map(|s| f32::from_le_bytes(*s));
                let scales: Vec<f64> = scales.map(f64::from).collect();
                bytes.iter().enumerate().map(|(i, v)| f64::from(*v as i8) * scales[i / dim]).collect()
            }
        };
        let lines = String::from_utf8(read(format!("{name}.jsonl"))).unwrap();
        for (line, vector) in lines.lines().zip(values.chunks(dim)) {
            let line: Value = serde_json::from_str(line).unwrap();
            all.push((line["file"].as_str().unwrap().to_owned(), vector.to_vec()));
        }
    }
    assert_eq!(all.len(), index.len());
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}
