//! Attention, forward and backward, one tile of queries at a time: the scores of a tile against all keys stay in the
//! cache, and the whole score matrix is never written unless the caller asks for the weights.
//! A query whose keys are all masked by minus infinity gives NaN, as softmax does.

mod backward;
mod exponentials;
mod forward;
mod microkernel;

pub use backward::{AttentionGrad, GradOutputs, backward, backward_workspace};
pub use forward::{Attention, forward, forward_workspace};

/// Sizes of an attention.
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

/// Rows of a head inside a larger buffer: element `d` of row `r` of head `h` of sample `b` is at
/// `b * batch_stride + r * row_stride + h * head_stride + d`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The buffer, from the first element on.
    pub data: &'a [f32],
    /// Distance of samples.
    pub batch_stride: usize,
    /// Distance of rows.
    pub row_stride: usize,
    /// Distance of heads.
    pub head_stride: usize,
}

impl<'a> View<'a> {
    /// All of a `[batch, rows, heads, head_dim]` buffer.
    pub fn dense(data: &'a [f32], rows: usize, heads: usize, head_dim: usize) -> View<'a> {
        View { data, batch_stride: rows * heads * head_dim, row_stride: heads * head_dim, head_stride: head_dim }
    }

    /// Queries, keys and values of a `[batch, rows, 3, heads, head_dim]` buffer.
    pub fn packed_qkv(data: &'a [f32], rows: usize, heads: usize, head_dim: usize) -> [View<'a>; 3] {
        let width = heads * head_dim;
        [0, 1, 2].map(|part| View {
            data: data.get(part * width..).unwrap_or_default(),
            batch_stride: rows * 3 * width,
            row_stride: 3 * width,
            head_stride: head_dim,
        })
    }

    fn check(&self, name: &str, shape: &AttentionShape, rows: usize) {
        let strides = [self.batch_stride, self.row_stride, self.head_stride];
        check_len(name, self.data.len(), strides, shape, rows);
    }

    fn at(&self, b: usize, row: usize, h: usize) -> *const f32 {
        let offset = b * self.batch_stride + row * self.row_stride + h * self.head_stride;
        self.data.as_ptr().wrapping_add(offset)
    }
}

/// A [`View`] to write to.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// The buffer, from the first element on.
    pub data: &'a mut [f32],
    /// Distance of samples.
    pub batch_stride: usize,
    /// Distance of rows.
    pub row_stride: usize,
    /// Distance of heads.
    pub head_stride: usize,
}

impl<'a> ViewMut<'a> {
    /// All of a `[batch, rows, heads, head_dim]` buffer.
    pub fn dense(data: &'a mut [f32], rows: usize, heads: usize, head_dim: usize) -> ViewMut<'a> {
        ViewMut { data, batch_stride: rows * heads * head_dim, row_stride: heads * head_dim, head_stride: head_dim }
    }

    /// Checks that the shape fits and that no two rows share memory, so that tasks can write heads of their own.
    fn check(self, name: &str, shape: &AttentionShape, rows: usize) -> Output {
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
        Output {
            start: self.data.as_mut_ptr(),
            batch_stride: self.batch_stride,
            row_stride: self.row_stride,
            head_stride: self.head_stride,
        }
    }
}

/// A checked [`ViewMut`] that tasks share.
#[derive(Clone, Copy)]
struct Output {
    start: *mut f32,
    batch_stride: usize,
    row_stride: usize,
    head_stride: usize,
}

// SAFETY: it stands for a `&mut [f32]` that the call holds; its tasks write different heads or rows.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    fn at(&self, b: usize, row: usize, h: usize) -> *mut f32 {
        let offset = b * self.batch_stride + row * self.row_stride + h * self.head_stride;
        self.start.wrapping_add(offset)
    }
}

/// Dropout of the weights. It is given by its effect, so that the generator stays with the caller.
#[derive(Clone, Copy)]
pub struct Dropout<'a> {
    /// Writes the factors of consecutive elements of `[batch, heads, queries, keys]`, the index of the first of which
    /// is given: 0 where a weight is dropped, `1 / (1 - rate)` where it is kept.
    pub factors: &'a (dyn Fn(u64, &mut [f32]) + Sync),
}

impl std::fmt::Debug for Dropout<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dropout")
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

/// The most scores of a tile: they share the second-level cache with keys and values.
const TILE: usize = 48 * 1024;

/// The scores of a tile of queries: how many rows, and how far apart.
#[derive(Clone, Copy)]
struct ScoreTile {
    rows: usize,
    stride: usize,
}

impl ScoreTile {
    /// Decided by the shape alone, since the gradient sums over tiles.
    fn new(shape: &AttentionShape) -> ScoreTile {
        // One vector more than needed keeps rows from falling onto the same sets of the cache.
        let stride = shape.keys.next_multiple_of(16) + 16;
        let most = (TILE / stride).max(8);
        let tiles = shape.queries.div_ceil(most).max(1);
        let rows = shape.queries.div_ceil(tiles).next_multiple_of(8);
        ScoreTile { rows, stride }
    }

    fn len(self) -> usize {
        self.rows * self.stride
    }
}
