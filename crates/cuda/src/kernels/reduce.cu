// Sums over axes, in an order that depends on the shape and the number of splits alone.
//
// VEC: the columns of a thread in sum_columns. X, Y: storage types of operand and result.

#define THREADS 256
// Threads along the columns of sum_columns, and the columns of a block.
#define LANES (VEC == 1 ? 32 : VEC == 2 ? 16 : 8)
#define COLUMNS (LANES * VEC)
// Rows that a block loads at a time.
#define GROUPS (THREADS / LANES)
// Rows that a thread loads before it adds them.
#define ROWS_IN_FLIGHT 4

// x [outer, count, inner] to y [splits, outer, inner]: factor times the sum over rows_per_split of `count` rows. The
// threads of a block are [GROUPS rows][LANES], with VEC columns each; VEC divides `inner`.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_columns(const X* __restrict__ x, Y* __restrict__ y, u32 count, u64 inner, u32 rows_per_split, float factor) {
    const u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x % LANES * VEC;
    const u32 begin = blockIdx.y * rows_per_split;
    const u32 end = begin + rows_per_split < count ? begin + rows_per_split : count;
    float sums[VEC] = {};
    if (column < inner) {
        const X* from = x + (u64)blockIdx.z * count * inner + column;
        for (u32 row = begin + threadIdx.x / LANES; row < end; row += ROWS_IN_FLIGHT * GROUPS) {
            float v[ROWS_IN_FLIGHT][VEC];
#pragma unroll
            for (int j = 0; j < ROWS_IN_FLIGHT; j++) {
                if (row + j * GROUPS < end) {
                    load<VEC>(from + (row + j * GROUPS) * inner, v[j]);
                } else {
#pragma unroll
                    for (int i = 0; i < VEC; i++) v[j][i] = 0.0f;
                }
            }
#pragma unroll
            for (int j = 0; j < ROWS_IN_FLIGHT; j++)
#pragma unroll
                for (int i = 0; i < VEC; i++) sums[i] += v[j][i];
        }
    }
    const float total = column_sum<THREADS, LANES, VEC>(sums);
    const u64 result_column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    if (threadIdx.x < COLUMNS && result_column < inner)
        y[((u64)blockIdx.y * gridDim.z + blockIdx.z) * inner + result_column] = from_float<Y>(factor * total);
}

// x [rows, count] to y [rows], factor times the sum of a row: one warp per row.
extern "C" __global__ void __launch_bounds__(THREADS) sum_rows(const X* x, Y* y, u64 rows, u64 count, float factor) {
    const u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (u64 i = threadIdx.x % 32; i < count; i += 32) sum += to_float(x[row * count + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[row] = from_float<Y>(factor * sum);
}

// Sums over any axes: the extents, and the strides in x, of the axes that are kept and of those that are summed.
struct ReduceStrides {
    // Numbers of axes.
    u32 kept;
    u32 summed;
    u32 kept_extents[8];
    u32 summed_extents[8];
    u64 kept_strides[8];
    u64 summed_strides[8];
};

// A warp computes one result: factor times the sum of `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_strided(const X* x, Y* y, const ReduceStrides strides, u64 results, u64 count, float factor) {
    const u64 result = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (result >= results) return;
    u64 start = 0, rest = result;
    for (int axis = (int)strides.kept - 1; axis >= 0; axis--) {
        start += rest % strides.kept_extents[axis] * strides.kept_strides[axis];
        rest /= strides.kept_extents[axis];
    }
    float sum = 0.0f;
    for (u64 i = threadIdx.x % 32; i < count; i += 32) {
        u64 offset = start, remaining = i;
        for (int axis = (int)strides.summed - 1; axis >= 0; axis--) {
            offset += remaining % strides.summed_extents[axis] * strides.summed_strides[axis];
            remaining /= strides.summed_extents[axis];
        }
        sum += to_float(x[offset]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[result] = from_float<Y>(factor * sum);
}
