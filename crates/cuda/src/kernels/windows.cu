// Cutting a channels-last image into windows that attention stays in, and putting it together again. A thread has VEC
// channels of one place. INDEX counts the packs.

#define THREADS 256

struct Cut {
    // Extents of the image, its channels in packs of VEC.
    u32 height, width, packs;
    u32 rows, columns;
    u32 window_height, window_width;
    // Less than the image's extents.
    u32 shift_y, shift_x;
};

extern "C" __global__ void __launch_bounds__(THREADS) windows(const X* image, Y* tokens, const Cut s, u64 count) {
    const INDEX i = (INDEX)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.packs);
    INDEX rest = i / s.packs;
    const u32 x = (u32)(rest % s.window_width);
    rest /= s.window_width;
    const u32 y = (u32)(rest % s.window_height);
    rest /= s.window_height;
    const u32 at_x = (u32)(rest % s.columns) * s.window_width + x;
    rest /= s.columns;
    const u32 at_y = (u32)(rest % s.rows) * s.window_height + y;
    const u64 n = rest / s.rows;
    float v[VEC];
    if (at_y < s.height && at_x < s.width) {
        const u32 iy = (at_y + s.shift_y) % s.height, ix = (at_x + s.shift_x) % s.width;
        load<VEC>(image + (((n * s.height + iy) * s.width + ix) * s.packs + c) * VEC, v);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] = 0.0f;
    }
    store<VEC>(tokens + (u64)i * VEC, v);
}

extern "C" __global__ void __launch_bounds__(THREADS) unwindows(const X* tokens, Y* image, const Cut s, u64 count) {
    const INDEX i = (INDEX)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.packs);
    INDEX rest = i / s.packs;
    const u32 at_x = ((u32)(rest % s.width) + s.width - s.shift_x) % s.width;
    rest /= s.width;
    const u32 at_y = ((u32)(rest % s.height) + s.height - s.shift_y) % s.height;
    const u64 n = rest / s.height;
    const u64 window = (n * s.rows + at_y / s.window_height) * s.columns + at_x / s.window_width;
    const u64 place = (window * s.window_height + at_y % s.window_height) * s.window_width + at_x % s.window_width;
    float v[VEC];
    load<VEC>(tokens + (place * s.packs + c) * VEC, v);
    store<VEC>(image + (u64)i * VEC, v);
}
