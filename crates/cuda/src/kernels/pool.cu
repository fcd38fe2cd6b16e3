// Pooling over windows of a channels-last image, and its gradient. Threads have VEC neighbouring channels.
//
// The gradient of a maximum needs to know which pixel it came from: `choose` writes that down for every window, as the
// number of the tap, and the pixels then look whether it was them.
//
// MAX: 1 for the largest element, 0 for the mean. TAP: what the number of a tap is stored as.

#define THREADS 256

typedef unsigned char u8;

struct Shape {
    u32 height, width, channels;
    u32 out_height, out_width;
    u32 kernel_y, kernel_x;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x;
    // Whether padding belongs to a window, as zeros.
    u32 count_padding;
};

// The pixels of a window, and where it begins before they are cut off at the image's border.
struct Window {
    u32 top, bottom, left, right;
    int y, x;
};

__device__ __forceinline__ u32 cut(u32 at, u32 pad, u32 extent) {
    const u32 inside = at > pad ? at - pad : 0;
    return inside < extent ? inside : extent;
}

__device__ __forceinline__ Window window(const Shape& s, u32 oy, u32 ox) {
    const u32 y = oy * s.stride_y, x = ox * s.stride_x;
    Window w;
    w.top = cut(y, s.pad_y, s.height), w.bottom = cut(y + s.kernel_y, s.pad_y, s.height);
    w.left = cut(x, s.pad_x, s.width), w.right = cut(x + s.kernel_x, s.pad_x, s.width);
    w.y = (int)y - (int)s.pad_y, w.x = (int)x - (int)s.pad_x;
    return w;
}

__device__ __forceinline__ u32 area(const Window& w) { return (w.bottom - w.top) * (w.right - w.left); }

__device__ __forceinline__ float divisor(const Shape& s, const Window& w) {
    return (float)(s.count_padding ? s.kernel_y * s.kernel_x : area(w));
}

// A thread's channels of one result.
struct Place {
    u32 channel, y, x;
    u64 image;
    __device__ __forceinline__ Place(u64 i, u32 channels, u32 height, u32 width) {
        const u32 packs = channels / VEC;
        channel = (u32)(i % packs) * VEC;
        u64 place = i / packs;
        x = (u32)(place % width);
        place /= width;
        y = (u32)(place % height);
        image = place / height;
    }
};

// The largest elements of a window and the taps that they came from, the first of several; none (all ones) where a
// padded zero is larger. `image` is the first pixel's channels.
__device__ __forceinline__ void largest(const Shape& s, const Window& w, const X* image, float (&value)[VEC],
                                        u32 (&tap)[VEC]) {
    bool first = true;
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] = 0.0f, tap[i] = 0xffffffffu;
    for (u32 y = w.top; y < w.bottom; y++) {
        for (u32 x = w.left; x < w.right; x++) {
            const u32 at = (u32)((int)y - w.y) * s.kernel_x + (u32)((int)x - w.x);
            float v[VEC];
            load<VEC>(image + ((u64)y * s.width + x) * s.channels, v);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                if (first || v[i] > value[i] || v[i] != v[i]) value[i] = v[i], tap[i] = at;
            first = false;
        }
    }
    if (!s.count_padding || area(w) >= s.kernel_y * s.kernel_x) return;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (value[i] < 0.0f) value[i] = 0.0f, tap[i] = 0xffffffffu;
}

// `count` packs of results.
extern "C" __global__ void __launch_bounds__(THREADS) pool(const X* x, Y* y, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Place at(i, s.channels, s.out_height, s.out_width);
    const Window w = window(s, at.y, at.x);
    const X* image = x + at.image * s.height * s.width * s.channels + at.channel;
    float result[VEC] = {};
    if (MAX) {
        u32 tap[VEC];
        largest(s, w, image, result, tap);
    } else {
        for (u32 iy = w.top; iy < w.bottom; iy++) {
            for (u32 ix = w.left; ix < w.right; ix++) {
                float v[VEC];
                load<VEC>(image + ((u64)iy * s.width + ix) * s.channels, v);
#pragma unroll
                for (int c = 0; c < VEC; c++) result[c] += v[c];
            }
        }
#pragma unroll
        for (int c = 0; c < VEC; c++) result[c] /= divisor(s, w);
    }
    store<VEC>(y + i * VEC, result);
}

// The taps of a thread's channels.
struct alignas(VEC * sizeof(TAP) < 16 ? VEC * sizeof(TAP) : 16) Pack {
    TAP tap[VEC];
};

// Which tap of every window is the largest.
extern "C" __global__ void __launch_bounds__(THREADS) choose(const X* x, TAP* taps, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Place at(i, s.channels, s.out_height, s.out_width);
    float value[VEC];
    u32 tap[VEC];
    Pack pack;
    largest(s, window(s, at.y, at.x), x + at.image * s.height * s.width * s.channels + at.channel, value, tap);
#pragma unroll
    for (int c = 0; c < VEC; c++) pack.tap[c] = (TAP)tap[c];
    *(Pack*)(taps + i * VEC) = pack;
}

// Every pixel collects its own from all windows that it is in, in a fixed order.
extern "C" __global__ void __launch_bounds__(THREADS)
    pool_grad(const DY* dy, const TAP* taps, Y* dx, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Place at(i, s.channels, s.height, s.width);
    // The first window that reaches this far, and the last that begins before it.
    const u32 py = at.y + s.pad_y, px = at.x + s.pad_x;
    const u32 first_y = py >= s.kernel_y ? (py - s.kernel_y) / s.stride_y + 1 : 0;
    const u32 first_x = px >= s.kernel_x ? (px - s.kernel_x) / s.stride_x + 1 : 0;
    float sum[VEC] = {};
    for (u32 oy = first_y; oy <= py / s.stride_y && oy < s.out_height; oy++) {
        for (u32 ox = first_x; ox <= px / s.stride_x && ox < s.out_width; ox++) {
            const u64 from = ((at.image * s.out_height + oy) * s.out_width + ox) * s.channels + at.channel;
            const TAP own = (TAP)((py - oy * s.stride_y) * s.kernel_x + (px - ox * s.stride_x));
            float d[VEC];
            load<VEC>(dy + from, d);
            const float share = MAX ? 1.0f : 1.0f / divisor(s, window(s, oy, ox));
            Pack pack;
            if (MAX) pack = *(const Pack*)(taps + from);
#pragma unroll
            for (int c = 0; c < VEC; c++) sum[c] += MAX ? (pack.tap[c] == own ? d[c] : 0.0f) : d[c] * share;
        }
    }
    store<VEC>(dx + i * VEC, sum);
}
