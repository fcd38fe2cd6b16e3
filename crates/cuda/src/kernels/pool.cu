// Pooling over windows of a channels-last image, and its gradient.
//
// MAX: 1 for the largest element, 0 for the mean.
#ifndef MAX
#define MAX 1
#endif
#ifndef X
#define X float
#endif
#ifndef DY
#define DY float
#endif
#ifndef Y
#define Y float
#endif

#define THREADS 256

struct Shape {
    u32 height, width, channels;
    u32 out_height, out_width;
    u32 kernel_y, kernel_x;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x;
    // Whether padding belongs to a window, as zeros.
    u32 count_padding;
};

struct Window {
    u32 top, bottom, left, right;
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
    return w;
}

__device__ __forceinline__ u32 area(const Window& w) { return (w.bottom - w.top) * (w.right - w.left); }

__device__ __forceinline__ float divisor(const Shape& s, const Window& w) {
    return (float)(s.count_padding ? s.kernel_y * s.kernel_x : area(w));
}

// The pixel of a window's largest element, the first of several; none (all ones) where a padded zero is larger. `image`
// is one channel of one image.
__device__ __forceinline__ u32 largest(const Shape& s, const Window& w, const X* image, float& value) {
    u32 best = w.top * s.width + w.left;
    value = to_float(image[(u64)best * s.channels]);
    for (u32 y = w.top; y < w.bottom; y++) {
        for (u32 x = w.left; x < w.right; x++) {
            const u32 at = y * s.width + x;
            const float v = to_float(image[(u64)at * s.channels]);
            if (v > value || v != v) value = v, best = at;
        }
    }
    if (s.count_padding && area(w) < s.kernel_y * s.kernel_x && value < 0.0f) {
        value = 0.0f;
        return 0xffffffffu;
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) pool(const X* x, Y* y, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.channels);
    u64 place = i / s.channels;
    const u32 ox = (u32)(place % s.out_width);
    place /= s.out_width;
    const Window w = window(s, (u32)(place % s.out_height), ox);
    const X* image = x + place / s.out_height * s.height * s.width * s.channels + c;
    float result = 0.0f;
    if (MAX) {
        largest(s, w, image, result);
    } else {
        for (u32 iy = w.top; iy < w.bottom; iy++)
            for (u32 ix = w.left; ix < w.right; ix++) result += to_float(image[((u64)iy * s.width + ix) * s.channels]);
        result /= divisor(s, w);
    }
    y[i] = from_float<Y>(result);
}

// Every pixel collects its own from all windows that it is in, in a fixed order.
extern "C" __global__ void __launch_bounds__(THREADS)
    pool_grad(const DY* dy, const X* x, Y* dx, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.channels);
    u64 place = i / s.channels;
    const u32 ix = (u32)(place % s.width);
    place /= s.width;
    const u32 iy = (u32)(place % s.height);
    const u64 n = place / s.height;
    const X* image = x + n * s.height * s.width * s.channels + c;
    // The first window that reaches this far, and the last that begins before it.
    const u32 py = iy + s.pad_y, px = ix + s.pad_x;
    const u32 first_y = py >= s.kernel_y ? (py - s.kernel_y) / s.stride_y + 1 : 0;
    const u32 first_x = px >= s.kernel_x ? (px - s.kernel_x) / s.stride_x + 1 : 0;
    float sum = 0.0f;
    for (u32 oy = first_y; oy <= py / s.stride_y && oy < s.out_height; oy++) {
        for (u32 ox = first_x; ox <= px / s.stride_x && ox < s.out_width; ox++) {
            const Window w = window(s, oy, ox);
            const float d = to_float(dy[((n * s.out_height + oy) * s.out_width + ox) * s.channels + c]);
            float value;
            if (!MAX) {
                sum += d / divisor(s, w);
            } else if (largest(s, w, image, value) == iy * s.width + ix) {
                sum += d;
            }
        }
    }
    dx[i] = from_float<Y>(sum);
}
