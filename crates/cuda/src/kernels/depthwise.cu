// Convolution where every channel has one filter of its own, and its gradients: too little work per channel for a matrix
// product, so every result is computed directly.
#ifndef X
#define X float
#endif
#ifndef W
#define W float
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
    u32 kernel_height, kernel_width;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x;
    u32 dilation_y, dilation_x;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise(const X* x, const W* weight, const Y* bias, Y* y, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.channels);
    u64 place = i / s.channels;
    const u32 ox = (u32)(place % s.out_width);
    place /= s.out_width;
    const u32 oy = (u32)(place % s.out_height);
    const u64 n = place / s.out_height;
    const W* filter = weight + (u64)c * s.kernel_height * s.kernel_width;
    float sum = bias ? to_float(bias[c]) : 0.0f;
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        // Before the image, the unsigned difference is larger than any extent.
        const u32 iy = oy * s.stride_y + ky * s.dilation_y - s.pad_y;
        if (iy >= s.height) continue;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            const u32 ix = ox * s.stride_x + kx * s.dilation_x - s.pad_x;
            if (ix >= s.width) continue;
            sum += to_float(x[((n * s.height + iy) * s.width + ix) * s.channels + c]) *
                   to_float(filter[ky * s.kernel_width + kx]);
        }
    }
    y[i] = from_float<Y>(sum);
}

// Every pixel collects its own from all results that it was part of, in a fixed order.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_grad_input(const DY* dy, const W* weight, Y* dx, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.channels);
    u64 place = i / s.channels;
    const u32 x = (u32)(place % s.width);
    place /= s.width;
    const u32 y = (u32)(place % s.height);
    const u64 n = place / s.height;
    const W* filter = weight + (u64)c * s.kernel_height * s.kernel_width;
    float sum = 0.0f;
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        const u32 reach_y = y + s.pad_y - ky * s.dilation_y;
        if (y + s.pad_y < ky * s.dilation_y || reach_y % s.stride_y || reach_y / s.stride_y >= s.out_height) continue;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            const u32 reach_x = x + s.pad_x - kx * s.dilation_x;
            if (x + s.pad_x < kx * s.dilation_x || reach_x % s.stride_x || reach_x / s.stride_x >= s.out_width)
                continue;
            const u64 at = (n * s.out_height + reach_y / s.stride_y) * s.out_width + reach_x / s.stride_x;
            sum += to_float(dy[at * s.channels + c]) * to_float(filter[ky * s.kernel_width + kx]);
        }
    }
    dx[i] = from_float<Y>(sum);
}

// For every split of the results, filter tap (y) and channel: the sum of dy · x. A block has 32 channels and 8 groups of
// results; a second kernel adds up the splits.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_grad_weight(const DY* dy, const X* x, float* partials, const Shape s, u64 places, u32 per_split) {
    __shared__ float shared[8][33];
    const u32 lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const u32 c = blockIdx.x * 32 + lane, tap = blockIdx.y;
    const u32 ky = tap / s.kernel_width, kx = tap % s.kernel_width;
    const u64 begin = (u64)blockIdx.z * per_split;
    const u64 end = begin + per_split < places ? begin + per_split : places;
    float sum = 0.0f;
    if (c < s.channels) {
        for (u64 place = begin + group; place < end; place += 8) {
            const u32 ox = (u32)(place % s.out_width), oy = (u32)(place / s.out_width % s.out_height);
            const u64 n = place / s.out_width / s.out_height;
            const u32 iy = oy * s.stride_y + ky * s.dilation_y - s.pad_y;
            const u32 ix = ox * s.stride_x + kx * s.dilation_x - s.pad_x;
            if (iy >= s.height || ix >= s.width) continue;
            sum += to_float(dy[place * s.channels + c]) *
                   to_float(x[((n * s.height + iy) * s.width + ix) * s.channels + c]);
        }
    }
    shared[group][lane] = sum;
    __syncthreads();
    if (group != 0 || c >= s.channels) return;
    for (int other = 1; other < 8; other++) sum += shared[other][lane];
    partials[((u64)blockIdx.z * gridDim.y + tap) * s.channels + c] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_weight(const float* partials, Y* dw, u32 splits, u32 taps, u32 channels) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= taps * channels) return;
    const u32 c = i % channels, tap = i / channels;
    float sum = 0.0f;
    for (u32 split = 0; split < splits; split++) sum += partials[(u64)split * taps * channels + i];
    dw[(u64)c * taps + tap] = from_float<Y>(sum);
}
