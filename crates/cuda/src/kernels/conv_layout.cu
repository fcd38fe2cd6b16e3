// Layouts of images and filters for the implicit GEMM of hopper/convolve.cu, and the last step of the filters'
// gradient. X: storage type of an image, Y: of the filters' gradient. VEC: channels of an image with their padding.

#define THREADS 256

// The right operand of the GEMM, [rows][depth], where `depth` covers taps and `inner`. In the forward pass `rows` are
// the filters and `inner` the channels; in the gradient of the image it is the other way round.
struct FilterOrder {
    u32 rows, inner;
    // Strides of `rows` and `inner` in PyTorch's layout [filters, channels, height, width].
    u32 row_stride, inner_stride;
    // Of a filter.
    u32 height, width;
    // The taps: their number, the first, and the distance between them, in rows and columns of the filter.
    u32 taps_y, taps_x;
    u32 first_y, first_x;
    u32 tap_step_y, tap_step_x;
    // `inner` with its padding.
    u32 padded_inner;
    // The order of a row. 1, for multiples of 64: [inner / 64][taps][64], 0: [taps][padded_inner].
    u32 channel_blocked;
    // Elements of a row, padded with zeros.
    u32 depth;
};

// A thread has one element of `ordered`.
extern "C" __global__ void __launch_bounds__(THREADS)
    order_filters(const bf16* filters, bf16* ordered, const FilterOrder order) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (u64)order.rows * order.depth) return;
    const u32 row = (u32)(i / order.depth), column = (u32)(i % order.depth), taps = order.taps_y * order.taps_x;
    u32 inner, tap;
    if (order.channel_blocked)
        inner = column / (64 * taps) * 64 + column % 64, tap = column / 64 % taps;
    else
        inner = column % order.padded_inner, tap = column / order.padded_inner;
    const u32 y = order.first_y + tap / order.taps_x * order.tap_step_y,
              x = order.first_x + tap % order.taps_x * order.tap_step_x;
    bf16 value = from_float<bf16>(0.0f);
    if (tap < taps && inner < order.inner && y < order.height && x < order.width)
        value = filters[(u64)row * order.row_stride + (u64)inner * order.inner_stride + y * order.width + x];
    ordered[i] = value;
}

struct ImageBorder {
    u32 height, width, channels;
    // Extents with the border, and where the image begins in them.
    u32 new_height, new_width, top, left;
};

// Pads images with a border of zeros, and their channels with zeros to VEC. A thread has one of `count` result pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
    border_image(const X* image, bf16* bordered, const ImageBorder border, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    u64 image_index = i;
    // Before the image, these wrap to more than any extent.
    const u32 x = unravel(image_index, border.new_width) - border.left;
    const u32 y = unravel(image_index, border.new_height) - border.top;
    float v[VEC];
#pragma unroll
    for (u32 c = 0; c < VEC; c++) v[c] = 0.0f;
    if (y < border.height && x < border.width) {
        const X* from = image + ((image_index * border.height + y) * border.width + x) * border.channels;
#pragma unroll
        for (u32 c = 0; c < VEC; c++)
            if (c < border.channels) v[c] = to_float(from[c]);
    }
    store<VEC>(bordered + i * VEC, v);
}

// dw [filters, channels, height, width] from the split-K partials of hopper/correlate.cu, [splits, filters, columns]
// with columns = [height, padded_width, padded_channels]. A thread sums one element over the splits, in order.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_split_k(const float* partials, Y* dw, u32 splits, u32 filters, u32 columns, u32 channels, u32 height,
                u32 width, u32 padded_channels, u32 padded_width) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 size = (u64)filters * columns;
    if (i >= size) return;
    const u32 column = (u32)(i % columns), c = column % padded_channels;
    const u32 x = column / padded_channels % padded_width, y = column / padded_channels / padded_width;
    if (c >= channels || x >= width) return;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 split = 0; split < splits; split++) sum += partials[split * size + i];
    dw[((i / columns * channels + c) * height + y) * width + x] = from_float<Y>(sum);
}
