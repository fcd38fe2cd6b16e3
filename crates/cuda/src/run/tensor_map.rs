//! Tensor maps, the descriptors with which Hopper's TMA copies boxes of queries, keys, values and gradients.

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::driver::check;

/// A tensor `[batch, tokens, heads, head_dim]` of 16-bit elements. A box has `rows` tokens of one head, and of each token
/// [`box_columns`] elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorMap {
    pub address: u64,
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// Elements from one token to the next, also from the last of an image to the first of the next image. The heads of
    /// a token are contiguous.
    pub token_stride: usize,
    /// Tokens of a box.
    pub rows: usize,
}

/// The columns of a box for heads of this size, as many as a swizzle span of 128, 64 or 32 bytes holds: the most that
/// divide `head_dim` after padding it to a multiple of 16. Elements beyond the head are read as zeros.
pub(crate) fn box_columns(head_dim: usize) -> usize {
    match head_dim.next_multiple_of(16) {
        padded if padded % 64 == 0 => 64,
        padded if padded % 32 == 0 => 32,
        _ => 16,
    }
}

impl TensorMap {
    /// The `CUtensorMap` that a kernel takes. It contains the address, so that must be the final one.
    pub fn encode(&self) -> Result<[u64; 16], GraphError> {
        use cu::CUtensorMapSwizzle_enum as Swizzle;
        let columns = box_columns(self.head_dim);
        let swizzle = match columns {
            64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        };
        let extents = [self.head_dim, self.heads, self.tokens, self.batch].map(|extent| extent as u64);
        // In bytes, of all axes but the innermost.
        let strides =
            [self.head_dim, self.token_stride, self.tokens * self.token_stride].map(|elements| 2 * elements as u64);
        let box_extents = [columns as u32, 1, self.rows as u32, 1];
        let mut map = cu::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all pointers are to live arrays of four (strides: three) elements, the map is aligned as its type
        // requires, and the address is not dereferenced.
        let result = unsafe {
            cu::cuTensorMapEncodeTiled(
                &mut map,
                // Also for f16: the copy does not interpret elements.
                cu::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                4,
                self.address as *mut std::ffi::c_void,
                extents.as_ptr(),
                strides.as_ptr(),
                box_extents.as_ptr(),
                // Consecutive elements on every axis.
                [1u32; 4].as_ptr(),
                cu::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                // L2 fetches 256 bytes at a time; other sizes were not compared.
                cu::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                cu::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(result, "encoding a tensor map")?;
        Ok(map.opaque)
    }
}
