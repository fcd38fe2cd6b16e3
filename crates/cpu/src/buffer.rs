//! Memory for f32 elements, aligned to cache lines. Large buffers are mapped in huge pages where the system has them:
//! kernels with long strides otherwise miss the TLB.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use vit_graph::{GraphError, Hint};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a huge page on x86-64 and AArch64.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// A fixed number of elements, zero at first, aligned to 64 bytes.
pub(crate) struct Buffer {
    start: NonNull<f32>,
    len: usize,
    allocation: Allocation,
}

/// Where the memory comes from, for `drop`.
enum Allocation {
    Heap(Layout),
    #[cfg(target_os = "linux")]
    Mapping {
        start: *mut libc::c_void,
        bytes: usize,
    },
}

// SAFETY: a buffer owns its memory and lends it under its own borrow, as a `Vec<f32>` does.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeros, or an error where the system refuses the memory.
    pub fn new(len: usize) -> Result<Self, GraphError> {
        let refused = || GraphError::Memory {
            device: "cpu",
            what: format!("the system refused {:.2} GB of memory", 4.0 * len as f64 / 1e9),
            hints: vec![Hint::SmallerBatch, Hint::FreeHostMemory],
        };
        #[cfg(target_os = "linux")]
        if len.checked_mul(4).ok_or_else(refused)? >= HUGE_PAGE
            && let Some(buffer) = Buffer::mapped(len)
        {
            return Ok(buffer);
        }
        let bytes = len.checked_mul(4).and_then(|bytes| bytes.checked_next_multiple_of(LINE)).ok_or_else(refused)?;
        let layout = Layout::from_size_align(bytes.max(LINE), LINE).map_err(|_| refused())?;
        // SAFETY: the size of the layout is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast()).ok_or_else(refused)?;
        Ok(Buffer { start, len, allocation: Allocation::Heap(layout) })
    }

    /// An anonymous mapping, which is zero and takes no memory before it is written. It is a huge page longer than the
    /// buffer, so that the start can be aligned to one.
    #[cfg(target_os = "linux")]
    fn mapped(len: usize) -> Option<Self> {
        let bytes = (4 * len).checked_add(HUGE_PAGE)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the system's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        let start = memory.wrapping_byte_add(memory.align_offset(HUGE_PAGE));
        // SAFETY: the range is inside the mapping. Where the system refuses, pages stay small, which is correct as
        // well.
        unsafe { libc::madvise(start, 4 * len, libc::MADV_HUGEPAGE) };
        Some(Buffer {
            start: NonNull::new(start.cast())?,
            len,
            allocation: Allocation::Mapping { start: memory, bytes },
        })
    }

    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: the memory holds `len` initialised f32.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The elements' address, valid as long as the buffer lives, also when the `Buffer` is moved. Unlike a pointer that
    /// is made from a borrow, it stays valid when the buffer is borrowed again.
    pub fn as_raw_slice(&self) -> *mut [f32] {
        std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len)
    }

    /// Bytes in use, without the part of a mapping that only aligns its start.
    pub fn bytes(&self) -> usize {
        (4 * self.len).next_multiple_of(LINE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.allocation {
            // SAFETY: it was allocated with this layout.
            Allocation::Heap(layout) => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
            #[cfg(target_os = "linux")]
            // SAFETY: this mapping was made by `mapped` and is not used afterwards.
            Allocation::Mapping { start, bytes } => unsafe {
                libc::munmap(start, bytes);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_allocation_is_an_error_and_no_abort() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 60] {
            let Err(error) = Buffer::new(len) else { panic!("{len} elements") };
            assert!(error.to_string().starts_with("cpu: the system refused"), "{error}");
        }
        assert_eq!(Buffer::new(2).unwrap().as_slice(), [0.0; 2]);
    }
}
