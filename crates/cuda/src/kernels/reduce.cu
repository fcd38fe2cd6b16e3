// Sums over axes in an order that only the shape decides.
#ifndef X
#define X float
#endif
#ifndef Y
#define Y float
#endif

#define THREADS 256

// x [outer, count, inner] to y [splits, outer, inner]: every split adds up its share of `count`. A block has 32 columns
// and 8 groups of rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_columns(const X* x, Y* y, u32 count, u64 inner, u32 rows_per_split, float factor) {
    __shared__ float shared[8][33];
    const u32 lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const u64 column = (u64)blockIdx.x * 32 + lane;
    const u32 begin = blockIdx.y * rows_per_split;
    const u32 end = begin + rows_per_split < count ? begin + rows_per_split : count;
    float sum = 0.0f;
    if (column < inner) {
        const X* from = x + (u64)blockIdx.z * count * inner + column;
        for (u32 row = begin + group; row < end; row += 8) sum += to_float(from[row * inner]);
    }
    shared[group][lane] = sum;
    __syncthreads();
    if (group != 0 || column >= inner) return;
    for (int other = 1; other < 8; other++) sum += shared[other][lane];
    y[((u64)blockIdx.y * gridDim.z + blockIdx.z) * inner + column] = from_float<Y>(factor * sum);
}

// x [rows, count] to y [rows]: one warp per row.
extern "C" __global__ void __launch_bounds__(THREADS) sum_rows(const X* x, Y* y, u64 rows, u64 count, float factor) {
    const u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (u64 i = threadIdx.x % 32; i < count; i += 32) sum += to_float(x[row * count + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[row] = from_float<Y>(factor * sum);
}

// Any axes: kept ones lead to a result, summed ones are walked by its warp.
struct Walk {
    u32 kept;
    u32 summed;
    u32 kept_extents[8];
    u32 summed_extents[8];
    u64 kept_strides[8];
    u64 summed_strides[8];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_strided(const X* x, Y* y, const Walk walk, u64 results, u64 count, float factor) {
    const u64 result = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (result >= results) return;
    u64 start = 0, rest = result;
    for (int axis = (int)walk.kept - 1; axis >= 0; axis--) {
        start += rest % walk.kept_extents[axis] * walk.kept_strides[axis];
        rest /= walk.kept_extents[axis];
    }
    float sum = 0.0f;
    for (u64 i = threadIdx.x % 32; i < count; i += 32) {
        u64 at = start, left = i;
        for (int axis = (int)walk.summed - 1; axis >= 0; axis--) {
            at += left % walk.summed_extents[axis] * walk.summed_strides[axis];
            left /= walk.summed_extents[axis];
        }
        sum += to_float(x[at]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[result] = from_float<Y>(factor * sum);
}
