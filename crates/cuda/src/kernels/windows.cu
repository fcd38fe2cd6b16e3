// Partition of a channels-last image into attention windows (Swin), with a cyclic shift, and back. A thread has VEC
// channels of one pixel. INDEX: a type that can count the vectors. X, Y: storage types.

#define THREADS 256

struct WindowGrid {
    // Extents of the image; channels in vectors of VEC.
    u32 height, width, vectors;
    u32 rows, columns;
    u32 window_height, window_width;
    // Below the image's extents.
    u32 shift_y, shift_x;
};

// tokens [n, rows, columns, window_height, window_width, channels]; zeros beyond the image.
extern "C" __global__ void __launch_bounds__(THREADS)
    windows(const X* image, Y* tokens, const WindowGrid s, u64 count) {
    const INDEX i = (INDEX)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    INDEX rest = i;
    const u32 c = unravel(rest, s.vectors), x = unravel(rest, s.window_width), y = unravel(rest, s.window_height);
    const u32 at_x = unravel(rest, s.columns) * s.window_width + x;
    const u32 at_y = unravel(rest, s.rows) * s.window_height + y;
    const u64 n = rest;
    float v[VEC];
    if (at_y < s.height && at_x < s.width) {
        const u32 iy = (at_y + s.shift_y) % s.height, ix = (at_x + s.shift_x) % s.width;
        load<VEC>(image + (((n * s.height + iy) * s.width + ix) * s.vectors + c) * VEC, v);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] = 0.0f;
    }
    store<VEC>(tokens + (u64)i * VEC, v);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    unwindows(const X* tokens, Y* image, const WindowGrid s, u64 count) {
    const INDEX i = (INDEX)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    INDEX rest = i;
    const u32 c = unravel(rest, s.vectors);
    const u32 at_x = (unravel(rest, s.width) + s.width - s.shift_x) % s.width;
    const u32 at_y = (unravel(rest, s.height) + s.height - s.shift_y) % s.height;
    const u64 n = rest;
    const u64 window = (n * s.rows + at_y / s.window_height) * s.columns + at_x / s.window_width;
    const u64 token = (window * s.window_height + at_y % s.window_height) * s.window_width + at_x % s.window_width;
    float v[VEC];
    load<VEC>(tokens + (token * s.vectors + c) * VEC, v);
    store<VEC>(image + (u64)i * VEC, v);
}
