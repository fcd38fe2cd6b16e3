// Cross-entropy with soft targets and its gradient, binary cross-entropy of independent classes, the mean squared
// error, and the one-hot argmax of a row. logits (or x) and targets [rows, classes]; one block per row, except where
// noted. Sums are f64. X: storage type of x in one_hot_max; Y: of its result and of dx.

#define THREADS 128

// All threads of the block must call it.
__device__ __forceinline__ double log_sum_exp(const float* row, u32 classes) {
    float largest = -INFINITY;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) largest = fmaxf(largest, row[i]);
    largest = block_max<THREADS>(largest);
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) sum += exp((double)(row[i] - largest));
    return (double)largest + log(block_sum<THREADS>(sum));
}

// losses[row] = sum of targets · (log-sum-exp - logits).
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_rows(const float* logits, const float* targets, double* losses, u32 classes) {
    const u64 start = (u64)blockIdx.x * classes;
    const double lse = log_sum_exp(logits + start, classes);
    double loss = 0.0;
    for (u32 i = threadIdx.x; i < classes; i += THREADS)
        loss += (double)targets[start + i] * (lse - (double)logits[start + i]);
    loss = block_sum<THREADS>(loss);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

// The mean of all rows' losses, by one block.
extern "C" __global__ void __launch_bounds__(THREADS) mean_loss(const double* losses, float* loss, u32 rows) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < rows; i += THREADS) sum += losses[i];
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) *loss = (float)(sum / (double)rows);
}

// dx = dy / rows · (softmax(logits) · sum(targets) - targets), where dy is the gradient of the mean loss, one value.
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_grad(const float* dy, const float* logits, const float* targets, Y* dx, u32 rows, u32 classes) {
    const u64 start = (u64)blockIdx.x * classes;
    const double lse = log_sum_exp(logits + start, classes);
    double target_sum = 0.0;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) target_sum += (double)targets[start + i];
    target_sum = block_sum<THREADS>(target_sum);
    const double factor = (double)*dy / (double)rows;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) {
        const double p = exp((double)logits[start + i] - lse);
        dx[start + i] = from_float<Y>((float)(factor * (p * target_sum - (double)targets[start + i])));
    }
}

// losses[row] of independent classes with a sigmoid: sum of ln(1 + exp(x)) - t x, written so that no exp overflows.
extern "C" __global__ void __launch_bounds__(THREADS)
    sigmoid_cross_entropy_rows(const float* logits, const float* targets, double* losses, u32 classes) {
    const u64 start = (u64)blockIdx.x * classes;
    double loss = 0.0;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) {
        const double x = (double)logits[start + i];
        loss += fmax(x, 0.0) - (double)targets[start + i] * x + log1p(exp(-fabs(x)));
    }
    loss = block_sum<THREADS>(loss);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

// losses[row]: the mean of the squared differences of x and targets.
extern "C" __global__ void __launch_bounds__(THREADS)
    squared_error_rows(const float* x, const float* targets, double* losses, u32 columns) {
    const u64 start = (u64)blockIdx.x * columns;
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < columns; i += THREADS) {
        const double difference = (double)x[start + i] - (double)targets[start + i];
        sum += difference * difference;
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = sum / (double)columns;
}

// Whether v, element `index`, replaces the maximum so far: it is larger, or equal and earlier. NaN is larger than all.
__device__ __forceinline__ bool replaces(float v, u32 index, float largest, u32 argmax) {
    const bool equal = v == largest || (v != v && largest != largest);
    return equal ? index < argmax : v > largest || v != v;
}

// 1 at the first maximum of a row (NaN if that is NaN), 0 elsewhere: y [rows, columns]. One warp per row.
extern "C" __global__ void __launch_bounds__(THREADS) one_hot_max(const X* x, Y* y, u64 rows, u32 columns) {
    const u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += row * columns, y += row * columns;
    const u32 lane = threadIdx.x % 32;
    // A lane beyond the row repeats element 0, which does not change the maximum.
    u32 argmax = lane < columns ? lane : 0;
    float largest = to_float(x[argmax]);
    for (u32 i = lane + 32; i < columns; i += 32) {
        const float v = to_float(x[i]);
        if (replaces(v, i, largest, argmax)) largest = v, argmax = i;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float v = __shfl_xor_sync(0xffffffffu, largest, step);
        const u32 index = __shfl_xor_sync(0xffffffffu, argmax, step);
        if (replaces(v, index, largest, argmax)) largest = v, argmax = index;
    }
    for (u32 i = lane; i < columns; i += 32)
        y[i] = from_float<Y>(i != argmax ? 0.0f : largest != largest ? largest : 1.0f);
}
