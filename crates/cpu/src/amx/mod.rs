//! Products of f32 on the matrix unit of Intel's servers (AMX), which only multiplies numbers of 8 binary places.
//!
//! A number of 24 places is the sum of three such pieces, exactly. Of the nine products of two numbers' pieces the six
//! largest are summed; what is left out is below half a unit in the last place of the whole product. Six products on this
//! unit can take less than half the time of one multiplication on the vector units, and the error was measured to be half
//! as large as that of a chain of multiply-adds.
//!
//! At both ends of the range this differs from IEEE arithmetic. Pieces and sums below 2^-126 count as zero, so that numbers
//! below 2^-102 lose their last places first and then others; infinity and numbers from 3.396e38 on give NaN.

mod bf16x3;
mod microkernel;
mod tmul;

pub(crate) use bf16x3::{PIECES, split};
pub(crate) use microkernel::{Chores, SIDE, STEP, STEP_BYTES, TILE, product};
#[cfg(test)]
pub(crate) use tmul::Emulated;
pub(crate) use tmul::{Amx, Unit, is_available};
