// Depthwise convolution of channels-last images and its gradients, computed directly. Taps are the filters as f32
// [kernel_height, kernel_width, channels].
//
// Coordinates are unsigned: in the padding before an image, the difference `... - pad` wraps to a value above every
// extent, so `>= extent` rejects the padding on both sides.
//
// VEC: the channels of a thread, loaded as one vector; divides the channels. KERNEL_WIDTH: kernel_width as a constant,
// for depthwise_grad_weight alone, so that the sums of a filter's row stay in registers. X, W, DY, Y: storage types of
// x, filters, dy and the result.

#define THREADS 256
// Neighbouring outputs along x of a thread, which loads each tap once for all of them.
#define OUTPUTS_PER_THREAD 4
// The threads of a block of depthwise_grad_weight: [PIXEL_THREADS][CHANNEL_THREADS].
#define CHANNEL_THREADS 8
#define PIXEL_THREADS (THREADS / CHANNEL_THREADS)

struct DepthwiseShape {
    u32 height, width, channels;
    u32 out_height, out_width;
    u32 kernel_height, kernel_width;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x; // above and to the left
    u32 dilation_y, dilation_x;
};

// Filters [channels, filter_size] to taps [filter_size, channels]; filter_size is kernel_height * kernel_width.
extern "C" __global__ void __launch_bounds__(THREADS)
    transpose_filters(const W* filters, float* taps, u32 channels, u32 filter_size) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= channels * filter_size) return;
    taps[i] = to_float(filters[i % channels * filter_size + i / channels]);
}

// The OUTPUTS_PER_THREAD neighbouring pixels and VEC channels of thread i, by the first of them, in a batch of images
// of height by width. The last pixels may lie past the width.
struct PixelRun {
    u32 channel, y, x;
    u64 sample;
    __device__ __forceinline__ PixelRun(u64 i, u32 channels, u32 height, u32 width) {
        channel = unravel(i, channels / VEC) * VEC;
        x = unravel(i, (width + OUTPUTS_PER_THREAD - 1) / OUTPUTS_PER_THREAD) * OUTPUTS_PER_THREAD;
        y = unravel(i, height);
        sample = i;
    }
};

__device__ __forceinline__ void accumulate(float (&sum)[VEC], const float (&a)[VEC], const float (&b)[VEC]) {
#pragma unroll
    for (int c = 0; c < VEC; c++) sum[c] += a[c] * b[c];
}

// `count` threads have a PixelRun; `bias` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise(const X* x, const float* taps, const Y* bias, Y* y, const DepthwiseShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const PixelRun run(i, s.channels, s.out_height, s.out_width);
    float sum[OUTPUTS_PER_THREAD][VEC] = {};
    if (bias) {
#pragma unroll
        for (int a = 0; a < OUTPUTS_PER_THREAD; a++) load<VEC>(bias + run.channel, sum[a]);
    }
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        const u32 iy = run.y * s.stride_y + ky * s.dilation_y - s.pad_y;
        if (iy >= s.height) continue;
        const X* row = x + (run.sample * s.height + iy) * s.width * s.channels + run.channel;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            float tap[VEC];
            load<VEC>(taps + (ky * s.kernel_width + kx) * s.channels + run.channel, tap);
#pragma unroll
            for (int a = 0; a < OUTPUTS_PER_THREAD; a++) {
                const u32 ix = (run.x + a) * s.stride_x + kx * s.dilation_x - s.pad_x;
                if (ix >= s.width) continue;
                float v[VEC];
                load<VEC>(row + (u64)ix * s.channels, v);
                accumulate(sum[a], v, tap);
            }
        }
    }
    Y* out = y + ((run.sample * s.out_height + run.y) * s.out_width + run.x) * s.channels + run.channel;
#pragma unroll
    for (int a = 0; a < OUTPUTS_PER_THREAD; a++)
        if (run.x + a < s.out_width) store<VEC>(out + (u64)a * s.channels, sum[a]);
}

// Every input pixel sums over the outputs that it contributed to, in a fixed order: output o has the pixel under tap k
// if o * stride = pixel + pad - k * dilation (`offset_y`, `offset_x`). `count` threads have a PixelRun.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_grad_input(const DY* dy, const float* taps, Y* dx, const DepthwiseShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const PixelRun run(i, s.channels, s.height, s.width);
    float sum[OUTPUTS_PER_THREAD][VEC] = {};
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        const u32 offset_y = run.y + s.pad_y - ky * s.dilation_y;
        if (run.y + s.pad_y < ky * s.dilation_y || offset_y % s.stride_y || offset_y / s.stride_y >= s.out_height)
            continue;
        const u32 oy = offset_y / s.stride_y;
        const DY* row = dy + (run.sample * s.out_height + oy) * s.out_width * s.channels + run.channel;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            float tap[VEC];
            load<VEC>(taps + (ky * s.kernel_width + kx) * s.channels + run.channel, tap);
#pragma unroll
            for (int a = 0; a < OUTPUTS_PER_THREAD; a++) {
                const u32 padded_x = run.x + a + s.pad_x, offset_x = padded_x - kx * s.dilation_x;
                if (padded_x < kx * s.dilation_x || offset_x % s.stride_x || offset_x / s.stride_x >= s.out_width)
                    continue;
                float d[VEC];
                load<VEC>(row + (u64)(offset_x / s.stride_x) * s.channels, d);
                accumulate(sum[a], d, tap);
            }
        }
    }
    Y* out = dx + ((run.sample * s.height + run.y) * s.width + run.x) * s.channels + run.channel;
#pragma unroll
    for (int a = 0; a < OUTPUTS_PER_THREAD; a++)
        if (run.x + a < s.width) store<VEC>(out + (u64)a * s.channels, sum[a]);
}

// Partial sums of dy · x: partials [splits, kernel_height, KERNEL_WIDTH, channels]. A block has a split of
// `pixels_per_split` output pixels (z), a row of the filter (y) and CHANNEL_THREADS * VEC channels (x). `pixels` counts
// the output pixels of the batch.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_grad_weight(const DY* dy, const X* x, float* partials, const DepthwiseShape s, u32 pixels,
                          u32 pixels_per_split) {
    // Unpadded rows of 64 floats (VEC 8) would all begin at the same bank.
    __shared__ float shared[PIXEL_THREADS][CHANNEL_THREADS * VEC + 1];
    const u32 channel_thread = threadIdx.x % CHANNEL_THREADS, pixel_thread = threadIdx.x / CHANNEL_THREADS;
    const u32 ky = blockIdx.y;
    const u32 channel = (blockIdx.x * CHANNEL_THREADS + channel_thread) * VEC;
    const u32 begin = blockIdx.z * pixels_per_split;
    const u32 end = begin + pixels_per_split < pixels ? begin + pixels_per_split : pixels;
    float sum[KERNEL_WIDTH][VEC] = {};
    if (channel < s.channels) {
        for (u32 pixel = begin + pixel_thread; pixel < end; pixel += PIXEL_THREADS) {
            const u32 image_row = pixel / s.out_width, ox = pixel - image_row * s.out_width;
            const u32 sample = image_row / s.out_height, oy = image_row - sample * s.out_height;
            const u32 iy = oy * s.stride_y + ky * s.dilation_y - s.pad_y;
            if (iy >= s.height) continue;
            float d[VEC];
            load<VEC>(dy + (u64)pixel * s.channels + channel, d);
            const X* row = x + ((u64)sample * s.height + iy) * s.width * s.channels + channel;
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
        for (u32 c = 0; c < VEC; c++) shared[pixel_thread][channel_thread * VEC + c] = sum[kx][c];
        __syncthreads();
        const u32 out_channel = blockIdx.x * CHANNEL_THREADS * VEC + threadIdx.x;
        if (threadIdx.x < CHANNEL_THREADS * VEC && out_channel < s.channels) {
            float total = 0.0f;
            for (u32 row = 0; row < PIXEL_THREADS; row++) total += shared[row][threadIdx.x];
            const u64 tap = ((u64)blockIdx.z * s.kernel_height + ky) * KERNEL_WIDTH + kx;
            partials[tap * s.channels + out_channel] = total;
        }
        __syncthreads();
    }
}

// Sums the splits of depthwise_grad_weight in order: partials [splits, filter_size, channels] to
// dw [channels, filter_size].
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_reduce_weight_grad(const float* partials, Y* dw, u32 splits, u32 filter_size, u32 channels) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= filter_size * channels) return;
    const u32 c = i % channels, tap = i / channels;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 split = 0; split < splits; split++) sum += partials[(u64)split * filter_size * channels + i];
    dw[(u64)c * filter_size + tap] = from_float<Y>(sum);
}
