// The orders in which convolutions on tensor cores read images and filters, and what is left to do after the products
// that give the gradient of filters.

#define THREADS 256

// Filters as rows of what is met along them: `inner` are the channels of a filter, or the filters of a channel where the
// gradient of the image is computed, `rows` the others.
struct Order {
    u32 rows, inner;
    // Elements from a row and from an inner to the next in the published layout, whose filters are height by width.
    u32 row, step;
    u32 height, width;
    // The taps that are met: how many, the first, and how far it is to the next.
    u32 taps_y, taps_x;
    u32 first_y, first_x;
    u32 jump_y, jump_x;
    // What `inner` is padded to.
    u32 padded;
    // Whether all taps of 64 inners follow one another; else all inners of a tap do.
    u32 whole_steps;
    // Elements of a row.
    u32 depth;
};

extern "C" __global__ void __launch_bounds__(THREADS) order_filters(const bf16* filters, bf16* rows, const Order order) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (u64)order.rows * order.depth) return;
    const u32 row = (u32)(i / order.depth), at = (u32)(i % order.depth), taps = order.taps_y * order.taps_x;
    u32 inner, tap;
    if (order.whole_steps)
        inner = at / (64 * taps) * 64 + at % 64, tap = at / 64 % taps;
    else
        inner = at % order.padded, tap = at / order.padded;
    const u32 y = order.first_y + tap / order.taps_x * order.jump_y, x = order.first_x + tap % order.taps_x * order.jump_x;
    bf16 value = from_float<bf16>(0.0f);
    if (tap < taps && inner < order.inner && y < order.height && x < order.width)
        value = filters[(u64)row * order.row + (u64)inner * order.step + y * order.width + x];
    rows[i] = value;
}

struct Border {
    u32 height, width, channels;
    // The image with its border, and where the image begins in it.
    u32 new_height, new_width, top, left;
};

// An image with a border of zeros and VEC channels, of which the last are zeros too. One thread for every pixel.
extern "C" __global__ void __launch_bounds__(THREADS)
    border_image(const X* image, bf16* bordered, const Border border, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 x = (u32)(i % border.new_width) - border.left;
    u64 place = i / border.new_width;
    const u32 y = (u32)(place % border.new_height) - border.top;
    place /= border.new_height;
    float v[VEC];
#pragma unroll
    for (u32 c = 0; c < VEC; c++) v[c] = 0.0f;
    if (y < border.height && x < border.width) {
        const X* from = image + ((place * border.height + y) * border.width + x) * border.channels;
#pragma unroll
        for (u32 c = 0; c < VEC; c++)
            if (c < border.channels) v[c] = to_float(from[c]);
    }
    store<VEC>(bordered + i * VEC, v);
}

// The gradient of filters from its parts: those are in the order row, column, channel of the tap, with `padded` channels
// and `padded_width` columns; filters are published as channel, row, column.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_parts(const float* partials, Y* dw, u32 parts, u32 filters, u32 columns, u32 channels, u32 height, u32 width,
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
