// Batch and group norms of channels-last images, forward and backward. Sums are in f64, each in an order that only the
// shape decides.
//
// BATCH: 1 where statistics belong to a channel, 0 where they belong to a sample's group of channels.
#ifndef BATCH
#define BATCH 1
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

struct Cut {
    u64 rows;
    u32 channels;
    // Rows of a sample, and the groups that its channels fall into.
    u32 pixels, groups;
};

// The place of an element's statistics.
__device__ __forceinline__ u64 statistic(const Cut& cut, u64 row, u32 channel) {
    if (BATCH) return channel;
    return row / cut.pixels * cut.groups + channel / (cut.channels / cut.groups);
}

// For every channel and split of the rows: the sums of x and x², or with dy those of dy and dy · normed. A block has 32
// channels and 8 groups of rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    channel_sums(const X* x, const DY* dy, const float* mean, const float* rstd, double* partials, const Cut cut,
                 u32 rows_per_split) {
    __shared__ double shared[2][8][33];
    const u32 lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const u32 c = blockIdx.x * 32 + lane;
    const u64 begin = (u64)blockIdx.y * rows_per_split;
    const u64 end = begin + rows_per_split < cut.rows ? begin + rows_per_split : cut.rows;
    double first = 0.0, second = 0.0;
    if (c < cut.channels) {
        for (u64 row = begin + group; row < end; row += 8) {
            const float v = to_float(x[row * cut.channels + c]);
            if (dy) {
                const u64 at = statistic(cut, row, c);
                const float d = to_float(dy[row * cut.channels + c]);
                first += (double)d, second += (double)(d * ((v - mean[at]) * rstd[at]));
            } else {
                first += (double)v, second += (double)v * (double)v;
            }
        }
    }
    shared[0][group][lane] = first, shared[1][group][lane] = second;
    __syncthreads();
    if (group > 1 || c >= cut.channels) return;
    double sum = 0.0;
    for (int other = 0; other < 8; other++) sum += shared[group][other][lane];
    partials[((u64)blockIdx.y * 2 + group) * cut.channels + c] = sum;
}

// For every group and split of its elements: the sums of x and x², or with dy those of dy · gamma and of that times
// normed. One block each.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_sums(const X* x, const DY* dy, const float* gamma, const float* mean, const float* rstd, double* partials,
               const Cut cut, u32 per_split) {
    const u32 own = cut.channels / cut.groups, g = blockIdx.x % cut.groups;
    const u64 sample = blockIdx.x / cut.groups, size = (u64)own * cut.pixels;
    const u64 begin = (u64)blockIdx.y * per_split;
    const u64 end = begin + per_split < size ? begin + per_split : size;
    double first = 0.0, second = 0.0;
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const u32 c = g * own + (u32)(i % own);
        const u64 at = (sample * cut.pixels + i / own) * cut.channels + c;
        const float v = to_float(x[at]);
        if (dy) {
            const float d = to_float(dy[at]) * gamma[c];
            first += (double)d, second += (double)(d * ((v - mean[blockIdx.x]) * rstd[blockIdx.x]));
        } else {
            first += (double)v, second += (double)v * (double)v;
        }
    }
    first = block_sum<THREADS>(first);
    second = block_sum<THREADS>(second);
    if (threadIdx.x != 0) return;
    partials[((u64)blockIdx.y * 2) * gridDim.x + blockIdx.x] = first;
    partials[((u64)blockIdx.y * 2 + 1) * gridDim.x + blockIdx.x] = second;
}

// The two sums themselves, from those of all splits.
extern "C" __global__ void __launch_bounds__(THREADS)
    whole_sums(const double* partials, u32 splits, u32 count, float* first, float* second) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    double sums[2] = {0.0, 0.0};
    for (u32 split = 0; split < splits; split++)
        for (u32 which = 0; which < 2; which++) sums[which] += partials[((u64)split * 2 + which) * count + i];
    if (first) first[i] = (float)sums[0];
    if (second) second[i] = (float)sums[1];
}

struct Running {
    const float *mean, *variance;
    float *new_mean, *new_variance;
    float momentum;
};

// Mean and deviation of `size` elements each, and what a batch norm remembers of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    moments(const double* partials, u32 splits, u32 count, u64 size, float epsilon, float* mean, float* rstd,
            const Running running) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    double sums[2] = {0.0, 0.0};
    for (u32 split = 0; split < splits; split++)
        for (u32 which = 0; which < 2; which++) sums[which] += partials[((u64)split * 2 + which) * count + i];
    const double centre = sums[0] / (double)size;
    const double variance = fmax(sums[1] / (double)size - centre * centre, 0.0);
    mean[i] = (float)centre;
    rstd[i] = (float)(1.0 / sqrt(variance + (double)epsilon));
    if (running.new_mean) {
        const double old = (double)running.mean[i];
        running.new_mean[i] = (float)(old + (double)running.momentum * (centre - old));
    }
    if (running.new_variance) {
        const double old = (double)running.variance[i];
        const double found = variance * (double)size / ((double)size - 1.0);
        running.new_variance[i] = (float)(old + (double)running.momentum * (found - old));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    normalise(const X* x, const float* gamma, const float* beta, const float* mean, const float* rstd, Y* y,
              const Cut cut) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 row = i / cut.channels;
    if (row >= cut.rows) return;
    const u32 c = (u32)(i % cut.channels);
    const u64 at = statistic(cut, row, c);
    y[i] = from_float<Y>((to_float(x[i]) - mean[at]) * rstd[at] * gamma[c] + beta[c]);
}

// `sum` and `dot` are those of dy and dy · normed in a batch norm, with gamma in them in a group norm; `share` is one
// over the elements that have their statistics in common.
extern "C" __global__ void __launch_bounds__(THREADS)
    normalise_grad(const X* x, const DY* dy, const float* gamma, const float* mean, const float* rstd,
                   const float* sum, const float* dot, float share, Y* dx, const Cut cut) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 row = i / cut.channels;
    if (row >= cut.rows) return;
    const u32 c = (u32)(i % cut.channels);
    const u64 at = statistic(cut, row, c);
    const float normed = (to_float(x[i]) - mean[at]) * rstd[at], factor = BATCH ? gamma[c] : 1.0f;
    const float common = factor * share * (sum[at] + normed * dot[at]);
    dx[i] = from_float<Y>(rstd[at] * (to_float(dy[i]) * gamma[c] - common));
}
