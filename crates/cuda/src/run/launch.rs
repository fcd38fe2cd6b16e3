//! The work of a run: kernels, matrix products, copies. Lowering emits requests; resolving looks up the compiled kernel
//! or chooses the algorithm of each, so that a run only enqueues.

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::compile::KernelVariant;
use crate::driver::{Gpu, KernelFunction, Stream, check};
use crate::gemm::{CublasMatmul, MatrixProduct};
use crate::run::arguments::KernelArguments;
use crate::run::tensor_map::TensorMap;

/// Work for the GPU, with addresses but without its compiled kernel or algorithm.
pub(crate) enum Request {
    Kernel(KernelLaunch),
    Product(MatrixProduct),
    /// A product with its whole epilogue, and the requests that replace it where cuBLASLt has no such epilogue.
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
    /// The kernels to compile in advance. The kernel for a product that
    /// cuBLASLt does not support is compiled only when `resolve` needs it.
    pub fn variants(&self) -> Vec<KernelVariant> {
        match self {
            Request::Kernel(kernel) => vec![kernel.variant.clone()],
            Request::Fused(_, parts) => parts.iter().flat_map(Request::variants).collect(),
            Request::Product(_) | Request::Clear { .. } | Request::Copy { .. } => Vec::new(),
        }
    }

    /// Looks up kernels and chooses algorithms, which may run products in the stream to time them.
    ///
    /// # Safety
    ///
    /// As for [`ReadyLaunch::enqueue`].
    pub unsafe fn resolve(self, gpu: &Gpu, stream: &Stream) -> Result<Vec<ReadyLaunch>, GraphError> {
        // SAFETY: the caller guarantees the addresses of all parts.
        unsafe {
            Ok(vec![match self {
                Request::Kernel(kernel) => kernel.resolve(gpu)?,
                Request::Product(product) => product.resolve(gpu, stream)?,
                Request::Fused(product, parts) => match product.resolve_with_cublas(gpu, stream)? {
                    Some(matmul) => ReadyLaunch::Matmul(matmul),
                    None => return resolve_all(parts, gpu, stream),
                },
                Request::Clear { to, bytes } => ReadyLaunch::Clear { to, bytes },
                Request::Copy { to, from, bytes } => ReadyLaunch::Copy { to, from, bytes },
            }])
        }
    }
}

/// # Safety
///
/// As for [`ReadyLaunch::enqueue`].
pub(crate) unsafe fn resolve_all(
    requests: Vec<Request>,
    gpu: &Gpu,
    stream: &Stream,
) -> Result<Vec<ReadyLaunch>, GraphError> {
    let mut launches = Vec::with_capacity(requests.len());
    for request in requests {
        // SAFETY: the caller guarantees the addresses.
        launches.extend(unsafe { request.resolve(gpu, stream) }?);
    }
    Ok(launches)
}

/// A kernel with its grid and arguments.
pub(crate) struct KernelLaunch {
    pub variant: KernelVariant,
    pub name: &'static str,
    /// Blocks along x, y and z.
    pub grid: [usize; 3],
    /// Threads of a block.
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

/// Bytes of shared memory that a block may have without `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DEFAULT_SHARED: usize = 48 << 10;

impl KernelLaunch {
    /// Looks the kernel up and sets its limit of shared memory if it needs more than the default. All launches of a
    /// function have the same amount, which follows from its variant.
    pub fn resolve(self, gpu: &Gpu) -> Result<ReadyLaunch, GraphError> {
        let function = gpu.function(&self.variant, self.name)?;
        if self.shared > DEFAULT_SHARED {
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
            arguments: self.arguments.prepend(&maps),
        })
    }
}

impl ReadyLaunch {
    /// Puts the launch into a stream.
    ///
    /// # Safety
    ///
    /// `gpu` must be the one that the launch was resolved for, and its context current. Every address of the launch
    /// must point to device memory of the size and alignment that it was lowered for, which stays allocated until the
    /// stream has run the launch; the ranges of a copy must not overlap. Scratch memory and cuBLASLt's workspace must not
    /// be in use by another stream.
    pub unsafe fn enqueue(&self, gpu: &Gpu, stream: &Stream) -> Result<(), GraphError> {
        match self {
            ReadyLaunch::Kernel { function, grid, threads, shared, arguments } => {
                let mut addresses = arguments.addresses();
                // SAFETY: the function is loaded, `addresses` has one live pointer for each of its parameters, which
                // the driver copies before it returns; the caller guarantees the device memory.
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
                        stream.raw(),
                        addresses.as_mut_ptr(),
                        std::ptr::null_mut(),
                    )
                };
                check(result, "launching a kernel")
            }
            // SAFETY: the caller guarantees the device memory.
            ReadyLaunch::Matmul(matmul) => unsafe { matmul.enqueue(gpu, stream) },
            ReadyLaunch::Clear { to, bytes } => {
                // SAFETY: as above.
                check(unsafe { cu::cuMemsetD8Async(*to, 0, *bytes, stream.raw()) }, "clearing memory")
            }
            ReadyLaunch::Copy { to, from, bytes } => {
                // SAFETY: as above.
                check(unsafe { cu::cuMemcpyDtoDAsync_v2(*to, *from, *bytes, stream.raw()) }, "copying on the GPU")
            }
        }
    }
}
