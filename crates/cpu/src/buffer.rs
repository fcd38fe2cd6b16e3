//! Memory for f32 elements that starts on a cache line.

/// A fixed number of elements, zero at first, aligned to 64 bytes.
pub(crate) struct Buffer {
    lines: Box<[Line]>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Buffer {
    pub fn new(len: usize) -> Self {
        Buffer { lines: vec![Line([0.0; 16]); len.div_ceil(16)].into_boxed_slice(), len }
    }

    pub fn from(elements: &[f32]) -> Self {
        let mut buffer = Buffer::new(elements.len());
        buffer.as_mut_slice().copy_from_slice(elements);
        buffer
    }

    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: `lines` holds at least `len` f32, one after another, and `Line` has no padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    pub fn bytes(&self) -> usize {
        self.lines.len() * 64
    }
}
