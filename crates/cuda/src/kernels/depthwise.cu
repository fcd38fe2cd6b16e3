// Depthwise convolution of channels-last images and its gradients, computed directly. A thread has VEC channels and
// ACROSS neighbouring results, for which it loads a tap once. Taps are f32 [kernel_height, kernel_width, channels].
//
// KERNEL_WIDTH: the width of a filter, for its gradient. X, W, DY, Y: storage types.

#define THREADS 256
#define ACROSS 4
// For the filters' gradient: threads along the channels, and pixels at a time.
#define LANES 8
#define ROWS (THREADS / LANES)

struct DepthwiseShape {
    u32 height, width, channels;
    u32 out_height, out_width;
    u32 kernel_height, kernel_width;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x;
    u32 dilation_y, dilation_x;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    order_taps(const W* filters, float* taps, u32 channels, u32 count) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= channels * count) return;
    taps[i] = to_float(filters[i % channels * count + i / channels]);
}

// The first channel and the first pixel of thread i, in an image of height by width.
struct PixelRun {
    u32 channel, y, x;
    u64 image;
    __device__ __forceinline__ PixelRun(u64 i, u32 channels, u32 height, u32 width) {
        channel = unravel(i, channels / VEC) * VEC;
        x = unravel(i, (width + ACROSS - 1) / ACROSS) * ACROSS;
        y = unravel(i, height);
        image = i;
    }
};

__device__ __forceinline__ void accumulate(float (&sum)[VEC], const float (&a)[VEC], const float (&b)[VEC]) {
#pragma unroll
    for (int c = 0; c < VEC; c++) sum[c] += a[c] * b[c];
}

// `count` is the number of runs of ACROSS results.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise(const X* x, const float* taps, const Y* bias, Y* y, const DepthwiseShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const PixelRun at(i, s.channels, s.out_height, s.out_width);
    float sum[ACROSS][VEC] = {};
    if (bias) {
#pragma unroll
        for (int a = 0; a < ACROSS; a++) load<VEC>(bias + at.channel, sum[a]);
    }
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        // In the padding before the image, the unsigned difference wraps to more than any extent.
        const u32 iy = at.y * s.stride_y + ky * s.dilation_y - s.pad_y;
        if (iy >= s.height) continue;
        const X* row = x + (at.image * s.height + iy) * s.width * s.channels + at.channel;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            float tap[VEC];
            load<VEC>(taps + (ky * s.kernel_width + kx) * s.channels + at.channel, tap);
#pragma unroll
            for (int a = 0; a < ACROSS; a++) {
                const u32 ix = (at.x + a) * s.stride_x + kx * s.dilation_x - s.pad_x;
                if (ix >= s.width) continue;
                float v[VEC];
                load<VEC>(row + (u64)ix * s.channels, v);
                accumulate(sum[a], v, tap);
            }
        }
    }
    Y* to = y + ((at.image * s.out_height + at.y) * s.out_width + at.x) * s.channels + at.channel;
#pragma unroll
    for (int a = 0; a < ACROSS; a++)
        if (at.x + a < s.out_width) store<VEC>(to + (u64)a * s.channels, sum[a]);
}

// Every pixel sums over the results that it contributed to, in a fixed order. `count` is the number of runs of pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_grad_input(const DY* dy, const float* taps, Y* dx, const DepthwiseShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const PixelRun at(i, s.channels, s.height, s.width);
    float sum[ACROSS][VEC] = {};
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        const u32 reach_y = at.y + s.pad_y - ky * s.dilation_y;
        if (at.y + s.pad_y < ky * s.dilation_y || reach_y % s.stride_y || reach_y / s.stride_y >= s.out_height)
            continue;
        const DY* row = dy + (at.image * s.out_height + reach_y / s.stride_y) * s.out_width * s.channels + at.channel;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            float tap[VEC];
            load<VEC>(taps + (ky * s.kernel_width + kx) * s.channels + at.channel, tap);
#pragma unroll
            for (int a = 0; a < ACROSS; a++) {
                const u32 px = at.x + a + s.pad_x, reach_x = px - kx * s.dilation_x;
                if (px < kx * s.dilation_x || reach_x % s.stride_x || reach_x / s.stride_x >= s.out_width) continue;
                float d[VEC];
                load<VEC>(row + (u64)(reach_x / s.stride_x) * s.channels, d);
                accumulate(sum[a], d, tap);
            }
        }
    }
    Y* to = dx + ((at.image * s.height + at.y) * s.width + at.x) * s.channels + at.channel;
#pragma unroll
    for (int a = 0; a < ACROSS; a++)
        if (at.x + a < s.width) store<VEC>(to + (u64)a * s.channels, sum[a]);
}

// Partial sums of dy · x for a split of the results (z), a row of the filter (y) and LANES * VEC channels (x):
// partials [splits, kernel_height, KERNEL_WIDTH, channels].
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_grad_weight(const DY* dy, const X* x, float* partials, const DepthwiseShape s, u32 pixels,
                          u32 per_split) {
    __shared__ float shared[ROWS][LANES * VEC + 1];
    const u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES, ky = blockIdx.y;
    const u32 channel = (blockIdx.x * LANES + lane) * VEC;
    const u32 begin = blockIdx.z * per_split, end = begin + per_split < pixels ? begin + per_split : pixels;
    float sum[KERNEL_WIDTH][VEC] = {};
    if (channel < s.channels) {
        for (u32 pixel = begin + group; pixel < end; pixel += ROWS) {
            const u32 rows = pixel / s.out_width, ox = pixel - rows * s.out_width;
            const u32 n = rows / s.out_height, oy = rows - n * s.out_height;
            const u32 iy = oy * s.stride_y + ky * s.dilation_y - s.pad_y;
            if (iy >= s.height) continue;
            float d[VEC];
            load<VEC>(dy + (u64)pixel * s.channels + channel, d);
            const X* row = x + ((u64)n * s.height + iy) * s.width * s.channels + channel;
#pragma unroll
            for (u32 kx = 0; kx < KERNEL_WIDTH; kx++) {
                const u32 ix = ox * s.stride_x + kx * s.dilation_x - s.pad_x;
                if (ix >= s.width) continue;
                float v[VEC];
                load<VEC>(row + (u64)ix * s.channels, v);
                accumulate(sum[kx], d, v);
            }
        }
    }
#pragma unroll
    for (u32 kx = 0; kx < KERNEL_WIDTH; kx++) {
#pragma unroll
        for (u32 c = 0; c < VEC; c++) shared[group][lane * VEC + c] = sum[kx][c];
        __syncthreads();
        const u32 own = blockIdx.x * LANES * VEC + threadIdx.x;
        if (threadIdx.x < LANES * VEC && own < s.channels) {
            float total = 0.0f;
            for (u32 other = 0; other < ROWS; other++) total += shared[other][threadIdx.x];
            const u64 tap = ((u64)blockIdx.z * s.kernel_height + ky) * KERNEL_WIDTH + kx;
            partials[tap * s.channels + own] = total;
        }
        __syncthreads();
    }
}

// dw [channels, taps] from partials [splits, taps, channels].
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_weight(const float* partials, Y* dw, u32 splits, u32 taps, u32 channels) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= taps * channels) return;
    const u32 c = i % channels, tap = i / channels;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 split = 0; split < splits; split++) sum += partials[(u64)split * taps * channels + i];
    dw[(u64)c * taps + tap] = from_float<Y>(sum);
}
