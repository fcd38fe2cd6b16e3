//! The CPU device: SIMD kernels and the executor for graphs.
//!
//! ```
//! use vit_cpu::Cpu;
//! use vit_graph::device::{Device, Elements, Initial};
//! use vit_graph::{DType, Init, Tensor};
//!
//! let x = Tensor::input("x", DType::F32, [2, 3]);
//! // A tensor is a handle to its graph: this adds a parameter there.
//! let weight = x.parameter("weight", [4, 3], Init::Ones);
//! x.linear(&weight, None).output("y");
//!
//! // `None`: on all cores.
//! let mut executable = Cpu::new(None).compile(&x.finish()?, &mut Initial { seed: 0 })?;
//! executable.write("x", Elements::F32(&[1.0; 6]))?;
//! executable.run()?;
//! let mut y = [0.0; 8];
//! executable.read("y", &mut y)?;
//! assert_eq!(y, [3.0; 8]);
//! # Ok::<(), vit_graph::GraphError>(())
//! ```

pub mod activation;

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod attention;
mod buffer;
mod channel_norm;
mod conv;
mod cosine;
mod device;
mod exchange;
mod executable;
pub mod gemm;
pub mod int8;
pub mod isa;
mod lower;
pub mod norm;
mod optimiser;
mod peak_flops;
mod pooling;
pub mod reduce;
mod rotary;
mod simd;
pub mod softmax;
pub mod thread_pool;

pub use device::Cpu;
pub use isa::Isa;
pub use peak_flops::measure_peak_flops;
