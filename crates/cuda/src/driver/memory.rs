//! Device memory and page-locked host memory, freed when dropped.

use std::sync::Arc;

use cudarc::driver::sys::{self as cu, CUresult};
use vit_graph::{GraphError, Hint};

use crate::driver::{Gpu, check, error_with_hints};

/// Values start at multiples of this, the alignment that cuBLASLt's heuristic assumes by default.
pub(crate) const ALIGNMENT: usize = 256;

/// One allocation of device memory.
pub(crate) struct DeviceBuffer {
    gpu: Arc<Gpu>,
    /// 0 if the buffer is empty.
    pub address: u64,
    pub bytes: usize,
}

impl DeviceBuffer {
    /// Allocates device memory. The out-of-memory error says that it was for `what`.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize, what: &str) -> Result<Self, GraphError> {
        gpu.enter()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: the context is current, the pointer is to a live variable.
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

    /// Whether `bytes` bytes from `address` on lie in this buffer.
    pub fn contains(&self, address: u64, bytes: usize) -> bool {
        let offset = address.checked_sub(self.address).map(|offset| offset as usize);
        offset.and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= self.bytes)
    }

    /// Copies to an address in this buffer and waits for the copy, but not for streams: the caller must have
    /// synchronised those that use the range.
    pub fn upload(&self, address: u64, data: &[u8]) -> Result<(), GraphError> {
        if data.is_empty() {
            return Ok(());
        }
        assert!(self.contains(address, data.len()), "an upload stays inside its buffer");
        self.gpu.enter()?;
        // SAFETY: the range lies in this buffer.
        check(unsafe { cu::cuMemcpyHtoD_v2(address, data.as_ptr().cast(), data.len()) }, "copying to the GPU")?;
        // From pageable memory, the call may return before the data is on the GPU, and a `Stream` does not wait for the
        // default stream.
        // SAFETY: null is the default stream.
        check(unsafe { cu::cuStreamSynchronize(std::ptr::null_mut()) }, "copying to the GPU")
    }

    /// Copies from an address in this buffer and waits for the copy, but not for streams: the caller must have
    /// synchronised those that write the range.
    pub fn download(&self, address: u64, into: &mut [u8]) -> Result<(), GraphError> {
        if into.is_empty() {
            return Ok(());
        }
        assert!(self.contains(address, into.len()), "a download stays inside its buffer");
        self.gpu.enter()?;
        // SAFETY: the range lies in this buffer.
        check(unsafe { cu::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), address, into.len()) }, "copying from the GPU")
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 && self.gpu.enter().is_ok() {
            // SAFETY: the memory was allocated by `new`; its owner has synchronised the streams that used it.
            unsafe { cu::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked host memory, which the GPU copies from and to asynchronously.
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

    /// Fills `bytes` bytes from `offset` on with the concatenated parts, which must fit, and zeros after them. Returns
    /// the address of the first byte. The GPU must have completed earlier copies from this range.
    pub fn write(&mut self, offset: usize, parts: &[&[u8]], bytes: usize) -> *const std::ffi::c_void {
        assert!(offset + bytes <= self.bytes, "an input stays inside its buffer");
        // SAFETY: the range lies in the buffer, which `self` borrows exclusively.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), bytes) };
        let mut rest = &mut *all;
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        rest.fill(0);
        all.as_ptr().cast()
    }

    /// The address of the f32 with this index.
    pub fn element(&self, index: usize) -> *mut f32 {
        assert!(4 * (index + 1) <= self.bytes, "an element stays inside its buffer");
        // SAFETY: the element lies in the buffer, which is aligned for any type.
        unsafe { self.start.cast::<f32>().add(index) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: the memory was allocated by `new`; its owner has synchronised the streams that used it.
            unsafe { cu::cuMemFreeHost(self.start.cast()) };
        }
    }
}
