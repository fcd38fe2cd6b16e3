// Max and average pooling of channels-last images, and their gradients.
//
// The gradient of a maximum goes to the pixel that has it: `argmax` writes the tap of every window's maximum,
// and every pixel sums the gradients of the windows whose maximum it is.
//
// MAX: 1 for the maximum, 0 for the mean. TAP: the type of a tap's index in the window, row-major, u8 or u32. VEC: the
// channels of a thread, loaded as one vector; divides the channels. X, DY, Y: storage types of x, dy and the result.

#define THREADS 256
// The tap of a maximum that lies in the padding. In u8 it becomes 255, no tap's index either: lower/pool.rs takes u8
// only for windows of fewer than 255 taps.
#define NO_TAP 0xffffffffu

typedef unsigned char u8;

struct PoolShape {
    u32 height, width, channels;
    u32 out_height, out_width;
    u32 kernel_height, kernel_width;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x; // above and to the left
    // Whether padding counts as zeros, for the mean (PyTorch's count_include_pad) and also for the maximum.
    u32 count_padding;
};

// The pixels of a window within the image (`bottom` and `right` are past the last), and the window's first pixel, which
// may lie in the padding.
struct Window {
    u32 top, bottom, left, right;
    int y, x;
};

// A coordinate of the padded image as one of the image, clamped to 0 .. extent.
__device__ __forceinline__ u32 clamped(u32 padded, u32 pad, u32 extent) {
    const u32 inside = padded > pad ? padded - pad : 0;
    return inside < extent ? inside : extent;
}

__device__ __forceinline__ Window window(const PoolShape& s, u32 oy, u32 ox) {
    const u32 y = oy * s.stride_y, x = ox * s.stride_x;
    Window w;
    w.top = clamped(y, s.pad_y, s.height), w.bottom = clamped(y + s.kernel_height, s.pad_y, s.height);
    w.left = clamped(x, s.pad_x, s.width), w.right = clamped(x + s.kernel_width, s.pad_x, s.width);
    w.y = (int)y - (int)s.pad_y, w.x = (int)x - (int)s.pad_x;
    return w;
}

__device__ __forceinline__ u32 area(const Window& w) { return (w.bottom - w.top) * (w.right - w.left); }

__device__ __forceinline__ float mean_divisor(const PoolShape& s, const Window& w) {
    return (float)(s.count_padding ? s.kernel_height * s.kernel_width : area(w));
}

// The pixel and the first channel of thread i, in a batch of images of height by width.
struct Pixel {
    u32 channel, y, x;
    u64 sample;
    __device__ __forceinline__ Pixel(u64 i, u32 channels, u32 height, u32 width) {
        channel = unravel(i, channels / VEC) * VEC;
        x = unravel(i, width);
        y = unravel(i, height);
        sample = i;
    }
};

// The maxima of a window and their taps, of equal ones the first; 0 and NO_TAP where a zero of the padding is larger,
// or the window has no pixel. `image` points to the thread's channels of the image's first pixel.
__device__ __forceinline__ void max_with_tap(const PoolShape& s, const Window& w, const X* image, float (&value)[VEC],
                                             u32 (&tap)[VEC]) {
    bool first = true;
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] = 0.0f, tap[i] = NO_TAP;
    for (u32 y = w.top; y < w.bottom; y++) {
        for (u32 x = w.left; x < w.right; x++) {
            const u32 index = (u32)((int)y - w.y) * s.kernel_width + (u32)((int)x - w.x);
            float v[VEC];
            load<VEC>(image + ((u64)y * s.width + x) * s.channels, v);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                // NaN replaces any value, as in PyTorch.
                if (first || v[i] > value[i] || v[i] != v[i]) value[i] = v[i], tap[i] = index;
            first = false;
        }
    }
    if (!s.count_padding || area(w) >= s.kernel_height * s.kernel_width) return;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (value[i] < 0.0f) value[i] = 0.0f, tap[i] = NO_TAP;
}

// `count` is the number of vectors of results.
extern "C" __global__ void __launch_bounds__(THREADS) pool(const X* x, Y* y, const PoolShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Pixel pixel(i, s.channels, s.out_height, s.out_width);
    const Window w = window(s, pixel.y, pixel.x);
    const X* image = x + pixel.sample * s.height * s.width * s.channels + pixel.channel;
    float result[VEC] = {};
    if (MAX) {
        u32 tap[VEC];
        max_with_tap(s, w, image, result, tap);
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
        for (int c = 0; c < VEC; c++) result[c] /= mean_divisor(s, w);
    }
    store<VEC>(y + i * VEC, result);
}

// The taps of a thread's channels, aligned for vectorised access.
struct alignas(VEC * sizeof(TAP) < 16 ? VEC * sizeof(TAP) : 16) TapVector {
    TAP tap[VEC];
};

// taps [n, out_height, out_width, channels]: the tap of every window's maximum.
extern "C" __global__ void __launch_bounds__(THREADS) argmax(const X* x, TAP* taps, const PoolShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Pixel pixel(i, s.channels, s.out_height, s.out_width);
    float value[VEC];
    u32 tap[VEC];
    TapVector vector;
    const X* image = x + pixel.sample * s.height * s.width * s.channels + pixel.channel;
    max_with_tap(s, window(s, pixel.y, pixel.x), image, value, tap);
#pragma unroll
    for (int c = 0; c < VEC; c++) vector.tap[c] = (TAP)tap[c];
    *(TapVector*)(taps + i * VEC) = vector;
}

// dx: every pixel sums over the windows that contain it, in a fixed order. `taps` is null for the mean.
extern "C" __global__ void __launch_bounds__(THREADS)
    pool_grad(const DY* dy, const TAP* taps, Y* dx, const PoolShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Pixel pixel(i, s.channels, s.height, s.width);
    // The first window that contains the pixel; the last one begins at or before it.
    const u32 padded_y = pixel.y + s.pad_y, padded_x = pixel.x + s.pad_x;
    const u32 first_y = padded_y >= s.kernel_height ? (padded_y - s.kernel_height) / s.stride_y + 1 : 0;
    const u32 first_x = padded_x >= s.kernel_width ? (padded_x - s.kernel_width) / s.stride_x + 1 : 0;
    float sum[VEC] = {};
    for (u32 oy = first_y; oy <= padded_y / s.stride_y && oy < s.out_height; oy++) {
        for (u32 ox = first_x; ox <= padded_x / s.stride_x && ox < s.out_width; ox++) {
            const u64 offset = ((pixel.sample * s.out_height + oy) * s.out_width + ox) * s.channels + pixel.channel;
            const TAP pixel_tap = (TAP)((padded_y - oy * s.stride_y) * s.kernel_width + (padded_x - ox * s.stride_x));
            float d[VEC];
            load<VEC>(dy + offset, d);
            const float scale = MAX ? 1.0f : 1.0f / mean_divisor(s, window(s, oy, ox));
            TapVector vector;
            if (MAX) vector = *(const TapVector*)(taps + offset);
#pragma unroll
            for (int c = 0; c < VEC; c++) sum[c] += MAX ? (vector.tap[c] == pixel_tap ? d[c] : 0.0f) : d[c] * scale;
        }
    }
    store<VEC>(dx + i * VEC, sum);
}
