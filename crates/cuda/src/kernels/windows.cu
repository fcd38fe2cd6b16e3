// Partition of a channels-last image into attention windows (Swin), with a cyclic shift, and back. A thread has VEC
// channels of one pixel, one of `count` vectors. INDEX: a type that can count these. X, Y: storage types.

#define THREADS 256

struct WindowGrid {
    // Extents of the image; channels in vectors of VEC.
    u32 height, width, vectors;
    // Windows of an image, down and across.
    u32 rows, columns;
    u32 window_height, window_width;
    // Cyclic shift, below the image's extents.
    u32 shift_y, shift_x;
};

// image [n, height, width, channels], shifted cyclically up and to the left, to tokens
// [n, rows, columns, window_height, window_width, channels], with zeros below and to the right of the shifted image.
extern "C" __global__ void __launch_bounds__(THREADS)
    windows(const X* image, Y* tokens, const WindowGrid s, u64 count) {
    const INDEX i = (INDEX)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    INDEX rest = i;
    const u32 c = unravel(rest, s.vectors), x = unravel(rest, s.window_width), y = unravel(rest, s.window_height);
    const u32 shifted_x = unravel(rest, s.columns) * s.window_width + x;
    const u32 shifted_y = unravel(rest, s.rows) * s.window_height + y;
    const u64 n = rest;
    float v[VEC];
    if (shifted_y < s.height && shifted_x < s.width) {
        const u32 iy = (shifted_y + s.shift_y) % s.height, ix = (shifted_x + s.shift_x) % s.width;
        load<VEC>(image + (((n * s.height + iy) * s.width + ix) * s.vectors + c) * VEC, v);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] = 0.0f;
    }
    store<VEC>(tokens + (u64)i * VEC, v);
}

// The inverse: tokens to image.
extern "C" __global__ void __launch_bounds__(THREADS)
    unwindows(const X* tokens, Y* image, const WindowGrid s, u64 count) {
    const INDEX i = (INDEX)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    INDEX rest = i;
    const u32 c = unravel(rest, s.vectors);
    const u32 shifted_x = (unravel(rest, s.width) + s.width - s.shift_x) % s.width;
    const u32 shifted_y = (unravel(rest, s.height) + s.height - s.shift_y) % s.height;
    const u64 n = rest;
    const u64 window = (n * s.rows + shifted_y / s.window_height) * s.columns + shifted_x / s.window_width;
    const u32 y = shifted_y % s.window_height, x = shifted_x % s.window_width;
    const u64 token = (window * s.window_height + y) * s.window_width + x;
    float v[VEC];
    load<VEC>(tokens + (token * s.vectors + c) * VEC, v);
    store<VEC>(image + (u64)i * VEC, v);
}
