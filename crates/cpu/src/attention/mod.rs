//! Multi-head attention, forward and backward, one block of queries at a time.
//!
//! As in FlashAttention, the score matrix is never written (unless the caller requests the weights), and the backward
//! pass recomputes it from the saved log-sum-exp. Unlike there, a query block sees all keys at once, since its scores
//! fit into the cache: softmax needs no running maximum and no rescaling. A query whose keys are all masked by minus
//! infinity gives NaN, as softmax does.

mod backward;
mod exponentials;
mod forward;
mod microkernel;
mod packing;

pub use backward::{AttentionGradArgs, GradOutputs, backward, backward_workspace};
pub use forward::{AttentionArgs, forward, forward_workspace};

/// Extents of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Samples.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Queries of a sample.
    pub queries: usize,
    /// Keys of a sample.
    pub keys: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// The rows of all heads inside a larger buffer: element `d` of row `r` of head `h` of sample `b` is at
/// `b * batch_stride + r * row_stride + h * head_stride + d`.
#[derive(Clone, Copy, Debug)]
pub struct HeadView<'a> {
    /// The buffer, from the first element on.
    pub data: &'a [f32],
    /// Distance of samples.
    pub batch_stride: usize,
    /// Distance of rows.
    pub row_stride: usize,
    /// Distance of heads.
    pub head_stride: usize,
}

impl<'a> HeadView<'a> {
    /// All of a `[batch, rows, heads, head_dim]` buffer.
    pub fn dense(data: &'a [f32], rows: usize, heads: usize, head_dim: usize) -> HeadView<'a> {
        HeadView { data, batch_stride: rows * heads * head_dim, row_stride: heads * head_dim, head_stride: head_dim }
    }

    /// Queries, keys and values of a `[batch, rows, 3, heads, head_dim]` buffer.
    pub fn packed_qkv(data: &'a [f32], rows: usize, heads: usize, head_dim: usize) -> [HeadView<'a>; 3] {
        let width = heads * head_dim;
        [0, 1, 2].map(|projection| HeadView {
            data: data.get(projection * width..).unwrap_or_default(),
            batch_stride: rows * 3 * width,
            row_stride: 3 * width,
            head_stride: head_dim,
        })
    }

    fn check(&self, name: &str, shape: &AttentionShape, rows: usize) {
        let strides = [self.batch_stride, self.row_stride, self.head_stride];
        check_len(name, self.data.len(), strides, shape, rows);
    }

    fn offset(&self, b: usize, row: usize, h: usize) -> usize {
        b * self.batch_stride + row * self.row_stride + h * self.head_stride
    }

    /// A pointer to a row, which may be outside the buffer.
    fn at(&self, b: usize, row: usize, h: usize) -> *const f32 {
        self.data.as_ptr().wrapping_add(self.offset(b, row, h))
    }

    fn row(&self, b: usize, row: usize, h: usize, head_dim: usize) -> &'a [f32] {
        &self.data[self.offset(b, row, h)..][..head_dim]
    }

    /// A pointer to the first of `count` rows, all of which are inside the buffer.
    ///
    /// # Panics
    /// If they are not.
    fn first_of(&self, count: usize, b: usize, first: usize, h: usize, head_dim: usize) -> *const f32 {
        if count > 0 {
            let end = self.offset(b, first + count - 1, h) + head_dim;
            assert!(end <= self.data.len(), "attention: rows end at {end} of {} elements", self.data.len());
        }
        self.at(b, first, h)
    }
}

/// A [`HeadView`] to write to.
#[derive(Debug)]
pub struct HeadViewMut<'a> {
    /// The buffer, from the first element on.
    pub data: &'a mut [f32],
    /// Distance of samples.
    pub batch_stride: usize,
    /// Distance of rows.
    pub row_stride: usize,
    /// Distance of heads.
    pub head_stride: usize,
}

impl<'a> HeadViewMut<'a> {
    /// All of a `[batch, rows, heads, head_dim]` buffer.
    pub fn dense(data: &'a mut [f32], rows: usize, heads: usize, head_dim: usize) -> HeadViewMut<'a> {
        HeadViewMut { data, batch_stride: rows * heads * head_dim, row_stride: heads * head_dim, head_stride: head_dim }
    }

    /// Checks that the buffer is long enough and that no two rows overlap, so that tasks can write disjoint heads.
    fn into_checked(self, name: &str, shape: &AttentionShape, rows: usize) -> OutputView {
        let strides = [self.batch_stride, self.row_stride, self.head_stride];
        check_len(name, self.data.len(), strides, shape, rows);
        let mut axes = [(self.batch_stride, shape.batch), (self.row_stride, rows), (self.head_stride, shape.heads)];
        axes.sort_unstable();
        let mut span = shape.head_dim;
        for (stride, count) in axes {
            if count > 1 {
                assert!(stride >= span, "attention: rows of {name} overlap with strides {strides:?}");
                span += stride * (count - 1);
            }
        }
        OutputView {
            start: self.data.as_mut_ptr(),
            batch_stride: self.batch_stride,
            row_stride: self.row_stride,
            head_stride: self.head_stride,
        }
    }
}

/// A checked [`HeadViewMut`] that tasks share.
#[derive(Clone, Copy)]
struct OutputView {
    start: *mut f32,
    batch_stride: usize,
    row_stride: usize,
    head_stride: usize,
}

// SAFETY: the pointer comes from a `&mut [f32]` that the call holds until its tasks end, and tasks write disjoint rows.
unsafe impl Send for OutputView {}
// SAFETY: as above.
unsafe impl Sync for OutputView {}

impl OutputView {
    fn at(&self, b: usize, row: usize, h: usize) -> *mut f32 {
        let offset = b * self.batch_stride + row * self.row_stride + h * self.head_stride;
        self.start.wrapping_add(offset)
    }
}

/// Dropout of the weights, as a function that computes the factors: the random generator is the caller's.
#[derive(Clone, Copy)]
pub struct WeightDropout<'a> {
    /// Writes the factors of consecutive elements of `[batch, heads, queries, keys]`, given the index of the first: 0
    /// where a weight is dropped, `1 / (1 - rate)` where it is kept.
    pub factors: &'a (dyn Fn(u64, &mut [f32]) + Sync),
}

impl std::fmt::Debug for WeightDropout<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeightDropout")
    }
}

fn check_len(name: &str, len: usize, strides: [usize; 3], shape: &AttentionShape, rows: usize) {
    if shape.batch == 0 || shape.heads == 0 || rows == 0 || shape.head_dim == 0 {
        return;
    }
    let needed =
        (shape.batch - 1) * strides[0] + (rows - 1) * strides[1] + (shape.heads - 1) * strides[2] + shape.head_dim;
    assert!(len >= needed, "attention: {name} has {len} elements, {shape:?} with strides {strides:?} needs {needed}");
}

fn check_bias(name: &str, len: usize, groups: usize, shape: &AttentionShape) {
    assert!(groups > 0, "attention: {name} has no groups");
    assert_eq!(
        len,
        groups * shape.heads * shape.queries * shape.keys,
        "attention: {name} has the wrong length for {groups} groups of {shape:?}"
    );
}

/// The `[queries, keys]` bias of one head of one sample; sample `b` uses group `b % groups`.
fn head_bias<'a>(bias: Option<(&'a [f32], usize)>, shape: &AttentionShape, b: usize, h: usize) -> Option<&'a [f32]> {
    let (bias, groups) = bias?;
    let len = shape.queries * shape.keys;
    Some(&bias[((b % groups) * shape.heads + h) * len..][..len])
}

/// The most scores of a query block, 192 KiB: they share the second-level cache with keys and values.
const MAX_BLOCK_SCORES: usize = 48 * 1024;
