//! The NVIDIA device: graphs run as captured CUDA graphs, matrix products through cuBLASLt, everything else by kernels
//! that are compiled for the GPU found.
//!
//! Nothing of CUDA is needed to build this crate or to start a program with it: the driver, NVRTC and cuBLASLt are
//! looked for when a [`Cuda`] is opened, NCCL when several processes connect. [`Unavailable`] names what is missing.
//!
//! ```
//! use vit_cuda::{Cuda, Precision};
//!
//! match Cuda::new(0, Precision::Bf16) {
//!     Ok(device) => println!("{}", device.info()),
//!     Err(reason) => println!("no GPU: {reason}"),
//! }
//! ```

mod compile;
mod device;
mod driver;
mod gemm;
mod lower;
pub mod nccl;
mod plan;
mod run;

pub use compile::compile_every_kernel;
pub use device::{Cuda, plan_without_gpu};
pub use driver::info::{DeviceInfo, devices};
pub use driver::libraries::Unavailable;
pub use vit_graph::Precision;
