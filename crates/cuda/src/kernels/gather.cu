// y [indices, inner] from the rows of a table [rows, inner] by index, and the gradient of the table. An index outside
// the table gives zeros and no gradient. X, Y: storage types.

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    gather(const X* table, const int* indices, Y* y, u32 rows, u32 inner, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const int row = indices[i / inner];
    const bool inside = row >= 0 && (u32)row < rows;
    y[i] = from_float<Y>(inside ? to_float(table[(u64)row * inner + i % inner]) : 0.0f);
}

// One block per element of the table: its threads compare all indices with the row and sum where they agree, in a fixed
// order and without atomics.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_grad(const X* dy, const int* indices, Y* dtable, u32 inner, u32 indices_count) {
    const u32 row = blockIdx.x / inner, column = blockIdx.x % inner;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < indices_count; i += THREADS)
        if (indices[i] == (int)row) sum += to_float(dy[(u64)i * inner + column]);
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) dtable[(u64)row * inner + column] = from_float<Y>(sum);
}
