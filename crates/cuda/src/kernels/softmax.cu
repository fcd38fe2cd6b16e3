// Softmax over the rows of x [rows, columns] and its gradient: one block per row. Storage types: X of the operand (x;
// the result y in softmax_grad), DY of dy, Y of the result (y or dx).

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const X* x, Y* y, u32 columns) {
    const u64 start = (u64)blockIdx.x * columns;
    float largest = -INFINITY;
    for (u32 i = threadIdx.x; i < columns; i += THREADS) largest = fmaxf(largest, to_float(x[start + i]));
    largest = block_max<THREADS>(largest);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < columns; i += THREADS) sum += expf(to_float(x[start + i]) - largest);
    sum = block_sum<THREADS>(sum);
    for (u32 i = threadIdx.x; i < columns; i += THREADS)
        y[start + i] = from_float<Y>(expf(to_float(x[start + i]) - largest) / sum);
}

// dx = y (dy - sum(y dy)), from the result y.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_grad(const X* y, const DY* dy, Y* dx, u32 columns) {
    const u64 start = (u64)blockIdx.x * columns;
    float dot = 0.0f;
    for (u32 i = threadIdx.x; i < columns; i += THREADS) dot += to_float(y[start + i]) * to_float(dy[start + i]);
    dot = block_sum<THREADS>(dot);
    for (u32 i = threadIdx.x; i < columns; i += THREADS)
        dx[start + i] = from_float<Y>(to_float(y[start + i]) * (to_float(dy[start + i]) - dot));
}
