// y [indices, inner] from the rows of a table [rows, inner] by index, and the gradient of the table. An index outside
// the table gives zeros and no gradient. X, Y: storage types of operand and result.

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    gather(const X* table, const int* indices, Y* y, u32 rows, u32 inner, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const int row = indices[i / inner];
    const bool inside = row >= 0 && (u32)row < rows;
    y[i] = from_float<Y>(inside ? to_float(table[(u64)row * inner + i % inner]) : 0.0f);
}

// One block per element of the table: its threads compare all indices with the element's row and sum dy where they
// agree, in a fixed order and without atomics.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_grad(const X* dy, const int* indices, Y* dtable, u32 inner, u32 indices_count) {
    const u32 row = blockIdx.x / inner, column = blockIdx.x % inner;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < indices_count; i += THREADS)
        if (indices[i] == (int)row) sum += to_float(dy[(u64)i * inner + column]);
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) dtable[(u64)row * inner + column] = from_float<Y>(sum);
}

// One block per row of the table and 256 of its columns: the threads search all indices for the row, 256 at a time, and
// add the rows of dy at those indices in their order, each thread in one column.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_rows_grad(const X* dy, const int* indices, Y* dtable, u32 inner, u32 indices_count) {
    __shared__ u32 matches[THREADS];
    __shared__ u32 warp_counts[THREADS / 32];
    const u32 row = blockIdx.x, column = blockIdx.y * THREADS + threadIdx.x;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0.0f;
    for (u32 start = 0; start < indices_count; start += THREADS) {
        const u32 i = start + threadIdx.x;
        const bool found = i < indices_count && indices[i] == (int)row;
        if (!__syncthreads_or(found)) continue;
        const u32 of_warp = __ballot_sync(0xffffffffu, found);
        if (lane == 0) warp_counts[warp] = __popc(of_warp);
        __syncthreads();
        u32 before = 0, count = 0;
        for (u32 w = 0; w < THREADS / 32; w++) {
            before += w < warp ? warp_counts[w] : 0;
            count += warp_counts[w];
        }
        if (found) matches[before + __popc(of_warp & ((1u << lane) - 1))] = i;
        __syncthreads();
        if (column < inner)
            for (u32 match = 0; match < count; match++) sum += to_float(dy[(u64)matches[match] * inner + column]);
        // The next indices overwrite the matches.
        __syncthreads();
    }
    if (column < inner) dtable[(u64)row * inner + column] = from_float<Y>(sum);
}
