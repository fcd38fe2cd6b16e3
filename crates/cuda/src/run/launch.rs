//! What a run consists of: kernels, matrix products, copies; first as requests with addresses, then ready to be put into
//! a stream.

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::compile::KernelVariant;
use crate::driver::{Gpu, KernelFunction, check};
use crate::gemm::{CublasMatmul, MatrixProduct};
use crate::run::arguments::KernelArguments;
use crate::run::tensor_map::TensorMap;

/// One thing for the GPU to do.
pub(crate) enum Request {
    Kernel(KernelLaunch),
    Product(MatrixProduct),
    /// A product with everything that follows it in its epilogue, or these where cuBLASLt cannot do that.
    Fused(MatrixProduct, Vec<Request>),
    /// Sets bytes to zero.
    Clear {
        to: u64,
        bytes: usize,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
}

impl Request {
    /// The kernels to compile for it.
    pub fn variants(&self) -> Vec<KernelVariant> {
        match self {
            Request::Kernel(kernel) => vec![kernel.variant.clone()],
            Request::Fused(_, parts) => parts.iter().flat_map(Request::variants).collect(),
            Request::Product(_) | Request::Clear { .. } | Request::Copy { .. } => Vec::new(),
        }
    }
}

/// A kernel with its grid and arguments.
pub(crate) struct KernelLaunch {
    pub variant: KernelVariant,
    pub name: &'static str,
    pub grid: [usize; 3],
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Tensor maps, which are the first arguments.
    pub maps: Vec<TensorMap>,
    pub arguments: KernelArguments,
}

/// A request that has its kernel or algorithm.
pub(crate) enum ReadyLaunch {
    Kernel { function: KernelFunction, grid: [u32; 3], threads: u32, shared: u32, arguments: KernelArguments },
    Matmul(CublasMatmul),
    Clear { to: u64, bytes: usize },
    Copy { to: u64, from: u64, bytes: usize },
}

/// What a block may have of shared memory without asking.
const PLAIN_SHARED: usize = 48 << 10;

impl KernelLaunch {
    /// Looks the kernel up, and asks for the shared memory that it needs.
    pub fn resolve(self, gpu: &Gpu) -> Result<ReadyLaunch, GraphError> {
        let function = gpu.function(&self.variant, self.name)?;
        if self.shared > PLAIN_SHARED {
            let attribute = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a module that stays loaded.
            let result = unsafe { cu::cuFuncSetAttribute(function.0, attribute, self.shared as i32) };
            check(result, &format!("giving {} bytes of shared memory to {}", self.shared, self.name))?;
        }
        let maps = self.maps.iter().map(TensorMap::encode).collect::<Result<Vec<_>, _>>()?;
        Ok(ReadyLaunch::Kernel {
            function,
            grid: self.grid.map(|extent| extent as u32),
            threads: self.threads as u32,
            shared: self.shared as u32,
            arguments: self.arguments.after(&maps),
        })
    }
}

impl ReadyLaunch {
    /// Puts it into a stream. The GPU's context must be current.
    pub fn enqueue(&self, gpu: &Gpu, stream: cu::CUstream) -> Result<(), GraphError> {
        match self {
            ReadyLaunch::Kernel { function, grid, threads, shared, arguments } => {
                let mut addresses = arguments.addresses();
                // SAFETY: the function is loaded, `addresses` has one live pointer for each of its parameters, which the
                // driver copies before it returns, and the memory plan keeps what the arguments point to.
                let result = unsafe {
                    cu::cuLaunchKernel(
                        function.0,
                        grid[0],
                        grid[1],
                        grid[2],
                        *threads,
                        1,
                        1,
                        *shared,
                        stream,
                        addresses.as_mut_ptr(),
                        std::ptr::null_mut(),
                    )
                };
                check(result, "launching a kernel")
            }
            ReadyLaunch::Matmul(gemm) => gemm.enqueue(gpu, stream),
            ReadyLaunch::Clear { to, bytes } => {
                // SAFETY: the range is a block of the executable's own memory.
                check(unsafe { cu::cuMemsetD8Async(*to, 0, *bytes, stream) }, "clearing memory")
            }
            ReadyLaunch::Copy { to, from, bytes } => {
                // SAFETY: both ranges are blocks of the executable's own memory and do not overlap.
                check(unsafe { cu::cuMemcpyDtoDAsync_v2(*to, *from, *bytes, stream) }, "copying on the GPU")
            }
        }
    }
}
