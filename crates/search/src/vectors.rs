//! Vectors as they are stored: float16, or int8 with a scale for every vector.

use std::fmt;
use std::str::FromStr;

use half::f16;
use serde::{Deserialize, Serialize};

use crate::SearchError;

/// How vectors are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VectorType {
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit integers with a scale for every vector: half the memory, and vectors that are turned by about half a degree.
    Int8,
}

impl VectorType {
    pub(crate) fn bytes(self) -> usize {
        match self {
            VectorType::F16 => 2,
            VectorType::Int8 => 1,
        }
    }

    /// NumPy's name of the element type.
    pub(crate) fn descr(self) -> &'static str {
        match self {
            VectorType::F16 => "<f2",
            VectorType::Int8 => "|i1",
        }
    }
}

impl fmt::Display for VectorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            VectorType::F16 => "f16",
            VectorType::Int8 => "int8",
        })
    }
}

impl FromStr for VectorType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f16" => Ok(VectorType::F16),
            "int8" => Ok(VectorType::Int8),
            other => Err(format!("`{other}` is no type of vectors; use f16 or int8")),
        }
    }
}

/// The vector scaled to length 1.
pub(crate) fn normalised(vector: &[f32]) -> Result<Vec<f32>, SearchError> {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() || length == 0.0 {
        return Err(SearchError::NoDirection);
    }
    Ok(vector.iter().map(|v| (f64::from(*v) / length) as f32).collect())
}

/// Consecutive stored vectors, in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StoredRows {
    /// The elements as they are in the file.
    pub bytes: Vec<u8>,
    /// The scale of every vector; empty for f16.
    pub scales: Vec<f32>,
}

impl StoredRows {
    /// Adds a vector of length 1.
    pub fn push(&mut self, vectors: VectorType, vector: &[f32]) {
        match vectors {
            VectorType::F16 => self.bytes.extend(vector.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes())),
            VectorType::Int8 => {
                let largest = vector.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
                let integers: Vec<i8> = vector.iter().map(|v| (v / largest * 127.0).round() as i8).collect();
                // The scale that gives length 1 again, so that rounding turns a vector and does not shorten it.
                let length = integers.iter().map(|v| i64::from(*v).pow(2)).sum::<i64>() as f64;
                self.scales.push((1.0 / length.sqrt()) as f32);
                self.bytes.extend_from_slice(bytemuck::cast_slice(&integers));
            }
        }
    }

    /// Adds stored rows.
    pub fn extend(&mut self, bytes: &[u8], scales: &[f32]) {
        self.bytes.extend_from_slice(bytes);
        self.scales.extend_from_slice(scales);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int8_vectors_keep_their_length() {
        let vector = normalised(&[0.3, -0.001, 0.7, 12.0, -11.0]).unwrap();
        let mut rows = StoredRows::default();
        rows.push(VectorType::Int8, &vector);
        let integers: &[i8] = bytemuck::cast_slice(&rows.bytes);
        let length: f32 = integers.iter().map(|v| (f32::from(*v) * rows.scales[0]).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-6);
        assert_eq!(integers[3], 127);
        assert!(matches!(normalised(&[0.0, 0.0]), Err(SearchError::NoDirection)));
        assert!(matches!(normalised(&[f32::NAN]), Err(SearchError::NoDirection)));
    }
}
