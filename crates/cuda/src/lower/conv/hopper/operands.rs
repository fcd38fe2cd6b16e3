//! The operands of the implicit GEMM, as the kernels' structs.

use super::tile::STEP;
use crate::run::arguments::CStruct;

/// `OutputPixels` of the kernels: the rows of the GEMM in `convolve`, its reduction in `correlate`.
#[derive(Clone, Copy)]
pub(super) struct OutputPixels {
    pub images: usize,
    /// Height and width.
    pub size: [usize; 2],
    /// Strides of image, row and column in elements.
    pub strides: [usize; 3],
}

impl OutputPixels {
    pub fn count(&self) -> usize {
        self.images * self.size[0] * self.size[1]
    }

    pub fn fields(&self) -> CStruct {
        let fields = CStruct::new().u32(self.count());
        self.size.iter().fold(fields, |fields, &extent| fields.u32s(&divisor(extent))).u32s(&self.strides)
    }
}

/// `Divisor` of the kernels: `by, factor, shift` with `n / by = ((factor · n >> 32) + n) >> shift` for n below 2^31.
fn divisor(by: usize) -> [usize; 3] {
    let shift = by.next_power_of_two().trailing_zeros();
    let factor = ((1u64 << 32) * ((1u64 << shift) - by as u64)) / by as u64 + 1;
    [by, factor as usize, shift as usize]
}

/// `InputTaps` of the kernels: the input pixels of an output pixel. Arrays of two are for height and width.
#[derive(Clone, Copy)]
pub(super) struct InputTaps {
    pub size: [usize; 2],
    /// Strides of image, row and column in elements.
    pub strides: [usize; 3],
    /// The input pixel of the first tap of output pixel 0.
    pub first: [isize; 2],
    /// Input pixels between neighbouring output pixels.
    pub pixel_step: [usize; 2],
    /// Input pixels between neighbouring taps.
    pub tap_step: [isize; 2],
    pub tap_counts: [usize; 2],
    pub channels: usize,
    /// Whether a tap is a row of a filter, and `channels` its padded width times the padded channels.
    pub taps_are_rows: bool,
}

impl InputTaps {
    pub fn fields(&self) -> CStruct {
        CStruct::new()
            .u32s(&self.size)
            .u32s(&self.strides)
            .i32s(&self.first)
            .u32s(&self.pixel_step)
            .i32s(&self.tap_step)
            .u32s(&self.tap_counts)
            .u32(self.channels)
    }

    /// Elements under all taps: the extent of the reduction in `convolve`, the columns of the GEMM in `correlate`.
    pub fn columns(&self) -> usize {
        self.tap_counts[0] * self.tap_counts[1] * self.channels
    }

    /// `CHANNEL_BLOCKED`: whether the reduction of `convolve` runs over `[channels / 64][taps][64]`, else
    /// `[taps][channels]`.
    pub fn channel_blocked(&self) -> bool {
        self.channels.is_multiple_of(STEP) && !self.taps_are_rows
    }

    /// Steps of the reduction of `convolve`.
    pub fn steps(&self) -> usize {
        self.columns().div_ceil(STEP)
    }
}

/// `FilterOrder` of the kernels (`conv_layout.cu` describes the fields): the right operand of `convolve`.
pub(super) struct FilterOrder {
    pub rows: usize,
    pub inner: usize,
    pub strides: [usize; 2],
    pub kernel: [usize; 2],
    pub tap_counts: [usize; 2],
    pub first_tap: [usize; 2],
    pub tap_step: [usize; 2],
    pub padded_inner: usize,
}

impl FilterOrder {
    /// `channel_blocked`: [`InputTaps::channel_blocked`]. `depth`: elements of a row with its padding.
    pub fn fields(&self, channel_blocked: bool, depth: usize) -> CStruct {
        CStruct::new()
            .u32s(&[self.rows, self.inner])
            .u32s(&self.strides)
            .u32s(&self.kernel)
            .u32s(&self.tap_counts)
            .u32s(&self.first_tap)
            .u32s(&self.tap_step)
            .u32s(&[self.padded_inner, usize::from(channel_blocked), depth])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `order_filters` knows `[taps][channels]` alone for filters whose rows are taps.
    #[test]
    fn rows_as_taps_are_never_blocked_by_channels() {
        let taps = InputTaps {
            size: [64, 64],
            strides: [64 * 64 * 8, 64 * 8, 8],
            first: [0, 0],
            pixel_step: [1, 1],
            tap_step: [1, 0],
            tap_counts: [8, 1],
            channels: 8 * 8,
            taps_are_rows: true,
        };
        assert!(!taps.channel_blocked());
        assert!(InputTaps { taps_are_rows: false, ..taps }.channel_blocked());
    }

    #[test]
    fn divisions_by_factors_are_exact() {
        for by in (1..300).chain([1000, 3136, 50176, 65535, 65536, (1 << 30) - 1]) {
            let [by, factor, shift] = divisor(by).map(|n| n as u64);
            for n in (0..2000).chain((1 << 31) - 2000..1 << 31).chain((1..40).flat_map(|k| [k * by - 1, k * by])) {
                let n = n & ((1 << 31) - 1);
                assert_eq!((((factor * n) >> 32) + n) >> shift, n / by, "{n} / {by}");
            }
        }
    }
}
