// Layouts of images and filters for the implicit GEMM of hopper/convolve.cu, and the last step of the filters'
// gradient.

#define THREADS 256

// The right operand of the GEMM: a row of `depth` elements for each filter, over taps and channels. For the gradient of
// the image, `rows` are the channels and `inner` the filters.
struct FilterOrder {
    u32 rows, inner;
    // Strides of rows and inner in the published layout [filters, channels, height, width].
    u32 row, step;
    u32 height, width;
    // The taps: their number, the first, and the distance between them.
    u32 taps_y, taps_x;
    u32 first_y, first_x;
    u32 jump_y, jump_x;
    // `inner` with its padding.
    u32 padded;
    // 1: [inner / 64][taps][64], 0: [taps][padded].
    u32 whole_steps;
    u32 depth;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    order_filters(const bf16* filters, bf16* rows, const FilterOrder order) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (u64)order.rows * order.depth) return;
    const u32 row = (u32)(i / order.depth), at = (u32)(i % order.depth), taps = order.taps_y * order.taps_x;
    u32 inner, tap;
    if (order.whole_steps)
        inner = at / (64 * taps) * 64 + at % 64, tap = at / 64 % taps;
    else
        inner = at % order.padded, tap = at / order.padded;
    const u32 y = order.first_y + tap / order.taps_x * order.jump_y,
              x = order.first_x + tap % order.taps_x * order.jump_x;
    bf16 value = from_float<bf16>(0.0f);
    if (tap < taps && inner < order.inner && y < order.height && x < order.width)
        value = filters[(u64)row * order.row + (u64)inner * order.step + y * order.width + x];
    rows[i] = value;
}

struct ImageBorder {
    u32 height, width, channels;
    // The image with its border, and the offset of the image in it.
    u32 new_height, new_width, top, left;
};

// Pads an image with a border of zeros and to VEC channels. A thread has a pixel.
extern "C" __global__ void __launch_bounds__(THREADS)
    border_image(const X* image, bf16* bordered, const ImageBorder border, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    u64 image_index = i;
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

// The gradient of the filters [filters, channels, height, width] from split-K partials
// [parts, filters, height, padded_width, padded].
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_split_k(const float* partials, Y* dw, u32 parts, u32 filters, u32 columns, u32 channels, u32 height, u32 width,
              u32 padded, u32 padded_width) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 size = (u64)filters * columns;
    if (i >= size) return;
    const u32 column = (u32)(i % columns), c = column % padded, x = column / padded % padded_width;
    const u32 y = column / padded / padded_width;
    if (c >= channels || x >= width) return;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 part = 0; part < parts; part++) sum += partials[part * size + i];
    dw[((i / columns * channels + c) * height + y) * width + x] = from_float<Y>(sum);
}
