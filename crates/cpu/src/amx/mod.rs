//! Intel AMX: tile registers and TMUL, the unit that multiplies tiles of bf16 or of bytes.
//!
//! Products of f32 run on it as bf16x3. An f32 with its 24 mantissa bits is exactly the sum of three bf16 with 8 bits
//! each; of the nine products of two such sums the six largest are added, and the other three are below half a unit in
//! the last place of the product. Six TDPBF16PS can take less than half the time of the fused multiply-adds that they
//! replace, and the measured error is half of theirs.
//!
//! At both ends of the range this differs from IEEE arithmetic: TMUL treats subnormals as zero, so that values below
//! 2^-103 lose mantissa bits, and infinities and magnitudes from 3.396e38 on give NaN.

mod bf16x3;
mod microkernel;
mod tmul;

pub(crate) use bf16x3::{SPLITS, split_bf16x3};
pub(crate) use microkernel::{ACC_SIDE, Interleaved, K_STEP, K_STEP_BYTES, TILE_BYTES, microkernel_bf16x3};
#[cfg(test)]
pub(crate) use tmul::EmulatedTmul;
pub(crate) use tmul::{Amx, TILE_ROW_BYTES, TILE_ROWS, Tmul, is_available};
