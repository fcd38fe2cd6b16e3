//! Memory of the GPU and memory of the host that the GPU copies from, freed when dropped.

use std::sync::Arc;

use cudarc::driver::sys::{self as cu, CUresult};
use vit_graph::{GraphError, Hint};

use crate::driver::{Gpu, check, error_with_hints};

/// Blocks start at multiples of this: the alignment that cuBLASLt's fastest kernels take for granted.
pub(crate) const ALIGNMENT: usize = 256;

/// A stretch of the GPU's memory.
pub(crate) struct DeviceBuffer {
    gpu: Arc<Gpu>,
    pub address: u64,
    pub bytes: usize,
}

impl DeviceBuffer {
    /// Allocates; `what` says for what in the error where there is not enough.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize, what: &str) -> Result<Self, GraphError> {
        gpu.enter()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: the context is current, the pointer is to a live number.
            match unsafe { cu::cuMemAlloc_v2(&mut address, bytes) } {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    let free = gpu.memory().map_or(0, |(free, _)| free);
                    let reason = format!(
                        "{:.2} GB of GPU memory are needed for {what} and {:.2} GB are free",
                        bytes as f64 / 1e9,
                        free as f64 / 1e9
                    );
                    return Err(error_with_hints(reason, &[Hint::SmallerBatch, Hint::FreeDeviceMemory]));
                }
                result => check(result, "allocating GPU memory")?,
            }
        }
        Ok(DeviceBuffer { gpu: gpu.clone(), address, bytes })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 && self.gpu.enter().is_ok() {
            // SAFETY: the memory was allocated here and nobody uses it any more: its owner waited for the stream.
            unsafe { cu::cuMemFree_v2(self.address) };
        }
    }
}

/// Host memory that stays where it is, so that the GPU can copy from it and to it on its own.
pub(crate) struct PinnedBuffer {
    gpu: Arc<Gpu>,
    start: *mut u8,
    bytes: usize,
}

impl PinnedBuffer {
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, GraphError> {
        gpu.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the context is current, the pointer is to a live variable.
        check(unsafe { cu::cuMemHostAlloc(&mut start, bytes.max(1), 0) }, "allocating host memory")?;
        Ok(PinnedBuffer { gpu: gpu.clone(), start: start.cast(), bytes })
    }

    /// Writes bytes and gives the address of what was written.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> *const std::ffi::c_void {
        assert!(offset + data.len() <= self.bytes, "an input stays inside its buffer");
        // SAFETY: the range is inside the buffer, which `self` owns and borrows exclusively; `data` is another's.
        unsafe {
            let to = self.start.add(offset);
            std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
            to.cast_const().cast()
        }
    }

    /// The place of a number.
    pub fn number(&self, index: usize) -> *mut f32 {
        assert!(4 * (index + 1) <= self.bytes, "a number stays inside its buffer");
        // SAFETY: the place is inside the buffer, which is aligned for any number.
        unsafe { self.start.cast::<f32>().add(index) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: the memory was allocated here and no copy from it is under way: its owner waited for the stream.
            unsafe { cu::cuMemFreeHost(self.start.cast()) };
        }
    }
}

/// Copies to the GPU and waits until it is done.
pub(crate) fn upload(gpu: &Gpu, address: u64, data: &[u8]) -> Result<(), GraphError> {
    if data.is_empty() {
        return Ok(());
    }
    gpu.enter()?;
    // SAFETY: the caller gives a range of a buffer that is as long as the data.
    check(unsafe { cu::cuMemcpyHtoD_v2(address, data.as_ptr().cast(), data.len()) }, "copying to the GPU")
}

/// Copies from the GPU and waits until it is done.
pub(crate) fn download(gpu: &Gpu, address: u64, into: &mut [u8]) -> Result<(), GraphError> {
    if into.is_empty() {
        return Ok(());
    }
    gpu.enter()?;
    // SAFETY: as above.
    check(unsafe { cu::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), address, into.len()) }, "copying from the GPU")
}
