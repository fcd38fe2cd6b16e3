// Cross-entropy with soft targets and its gradient. Sums are in f64: rows are few.
#ifndef Y
#define Y float
#endif

#define THREADS 128

__device__ __forceinline__ double log_sum_exp(const float* row, u32 classes) {
    float largest = -INFINITY;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) largest = fmaxf(largest, row[i]);
    largest = block_max<THREADS>(largest);
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) sum += exp((double)(row[i] - largest));
    return (double)largest + log(block_sum<THREADS>(sum));
}

// The loss of every row.
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

// Their mean, by one block.
extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_mean(const double* losses, float* loss, u32 rows) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < rows; i += THREADS) sum += losses[i];
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) *loss = (float)(sum / (double)rows);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_grad(const float* dy, const float* logits, const float* targets, Y* dx, u32 rows, u32 classes) {
    const u64 start = (u64)blockIdx.x * classes;
    const double lse = log_sum_exp(logits + start, classes);
    double mass = 0.0;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) mass += (double)targets[start + i];
    mass = block_sum<THREADS>(mass);
    const double factor = (double)*dy / (double)rows;
    for (u32 i = threadIdx.x; i < classes; i += THREADS) {
        const double p = exp((double)logits[start + i] - lse);
        dx[start + i] = from_float<Y>((float)(factor * (p * mass - (double)targets[start + i])));
    }
}
