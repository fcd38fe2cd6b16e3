//! The arithmetic a device computes in.

use std::fmt;
use std::str::FromStr;

/// The arithmetic a device computes in. Norms, softmax, losses and optimisers compute in f32 in all of them, and
/// training keeps parameters in f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floating point.
    #[default]
    F32,
    /// GPU: f32 in memory; matrix products round their operands to 10 mantissa bits.
    Tf32,
    /// GPU: mixed precision; activations and operands of matrix products are bf16, sums are f32.
    Bf16,
    /// GPU, inference: as [`Precision::Bf16`] with IEEE half precision.
    F16,
    /// GPU, inference: linear layers between the first and the last multiply fp8 (e4m3), all else is as in
    /// [`Precision::Bf16`].
    Fp8,
    /// CPU, inference: linear layers between the first and the last multiply 8-bit integers, all else is f32.
    Int8,
}

impl Precision {
    /// Every precision, with its name.
    const NAMES: [(Precision, &str); 6] = [
        (Precision::F32, "f32"),
        (Precision::Tf32, "tf32"),
        (Precision::Bf16, "bf16"),
        (Precision::F16, "f16"),
        (Precision::Fp8, "fp8"),
        (Precision::Int8, "int8"),
    ];

    /// Whether training steps can be computed in it.
    pub fn trains(self) -> bool {
        matches!(self, Precision::F32 | Precision::Tf32 | Precision::Bf16)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Precision::NAMES.iter().find(|(precision, _)| precision == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Precision {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Precision::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(precision, _)| *precision)
            .ok_or_else(|| format!("`{text}` is not a precision; use f32, tf32, bf16, f16, fp8 or int8"))
    }
}
