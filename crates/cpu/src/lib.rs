//! The CPU device: SIMD kernels and the executor for graphs.

pub mod activation;
pub mod attention;
mod buffer;
mod device;
mod executable;
pub mod gemm;
pub mod int8;
pub mod isa;
mod lower;
pub mod norm;
mod peak;
pub mod pool;
pub mod reduce;
mod simd;
pub mod softmax;

pub use device::Cpu;
pub use isa::Isa;
pub use peak::fma_peak;
