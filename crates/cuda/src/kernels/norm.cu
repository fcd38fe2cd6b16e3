// Layer norm (Ba et al., 2016), or with CENTRED 0 RMS norm (Zhang and Sennrich, 2019), whose mean is taken as 0,
// forward and backward over x [rows, DIM]. Forward, the residual sum before it may be fused, with stochastic depth on
// its second term; backward, the sum with the residual's gradient and the gradient of stochastic depth.
//
// LANES threads keep a row in registers: 8, 16 or 32 for short rows, of which a warp has one to four, or a whole block
// for long rows. Sums go through shuffles and then warp by warp, in an order that shape and grid alone determine.
//
// Storage types: X x, Z addend, Y y, S sum, DY dy, R d_residual, DX dx, DD dropped, DB dbias. DROP: 1 with stochastic
// depth. SUMS: 1 to compute the column sums of dx, or with DROP of `dropped`: the gradient of the bias of the linear
// layer that produced the addend.

// Rows of a group, which a block computes at a time.
#define ROWS (LANES <= 32 ? 128 / LANES : 1)
#define THREADS (ROWS * LANES)
// Consecutive columns that a thread loads at once, and how many such vectors it has of a row.
#define VEC (DIM % 8 == 0 ? 8 : DIM % 4 == 0 ? 4 : DIM % 2 == 0 ? 2 : 1)
#define CHUNKS ((DIM / VEC + LANES - 1) / LANES)
// The partial sums of a column: dgamma, dbeta, and with SUMS dbias.
#define PARTS (2 + SUMS)

// Runs its body for every vector of VEC columns of this thread.
#define EACH_CHUNK(chunk, column)                                                                                      \
    _Pragma("unroll") for (int chunk = 0, column = (threadIdx.x % LANES) * VEC; chunk < CHUNKS;                        \
                           chunk++, column += LANES * VEC) if (DIM % (LANES * VEC) == 0 || column < DIM)

// The sums of a and of b over a row, returned to all of its threads. Every thread of the block must call it.
__device__ __forceinline__ float2 row_sums(float a, float b) {
#pragma unroll
    for (int step = LANES < 32 ? LANES / 2 : 16; step > 0; step /= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, step);
        b += __shfl_xor_sync(0xffffffffu, b, step);
    }
    if (LANES <= 32) return make_float2(a, b);
    __shared__ float2 partial[LANES <= 32 ? 1 : LANES / 32];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = make_float2(a, b);
    __syncthreads();
    float2 total = partial[0];
    for (int warp = 1; warp < LANES / 32; warp++) total.x += partial[warp].x, total.y += partial[warp].y;
    __syncthreads();
    return total;
}

// Stochastic depth: one decision for each sample.
struct StochasticDepth {
    Mask mask;
    u32 rows_per_sample;
    const u32* seed;
};

// What the addend of a row is multiplied by.
__device__ __forceinline__ float keep_factor(const StochasticDepth& depth, u32 row) {
    return DROP ? mask_factor(depth.mask, depth.seed, row / depth.rows_per_sample) : 1.0f;
}

// sum = x + keep · addend; y = scale · (gamma · (sum - mean) · rstd + beta), with a quantisation scale. A block
// computes `groups` groups of ROWS rows one after the other, so that gamma and beta are loaded once. `addend`, `sum`,
// `mean`, `rstd` and `scale` may be null; `sum` is written only with an addend.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const X* __restrict__ x, const Z* __restrict__ addend, const float* __restrict__ gamma,
               const float* __restrict__ beta, float epsilon, u32 rows, u32 groups, Y* __restrict__ y,
               float* __restrict__ mean, float* __restrict__ rstd, S* __restrict__ sum,
               const float* __restrict__ scale, const StochasticDepth depth) {
    const float multiplier = scale ? *scale : 1.0f;
    float g[CHUNKS][VEC], b[CHUNKS][VEC];
    EACH_CHUNK(chunk, column) {
        load<VEC>(gamma + column, g[chunk]);
        load<VEC>(beta + column, b[chunk]);
    }
    const u32 first = blockIdx.x * ROWS * groups;
    for (u32 group = 0; group < groups; group++) {
        // All threads of the block return together, so none misses a shuffle or a __syncthreads.
        if (first + group * ROWS >= rows) return;
        // Threads past the last row repeat it, since the shuffles need all of a warp, and write nothing.
        const u32 unclamped_row = first + group * ROWS + threadIdx.x / LANES;
        const bool valid = unclamped_row < rows;
        const u32 row = valid ? unclamped_row : rows - 1;
        const u64 start = (u64)row * DIM;
        float v[CHUNKS][VEC];
        float total = 0.0f;
        EACH_CHUNK(chunk, column) load<VEC>(x + start + column, v[chunk]);
        if (addend) {
            const float keep = keep_factor(depth, row);
            EACH_CHUNK(chunk, column) {
                float z[VEC];
                load<VEC>(addend + start + column, z);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    v[chunk][i] += keep * z[i];
                    // Rounded as the backward pass will read it.
                    if (sum) v[chunk][i] = rounded<S>(v[chunk][i]);
                }
                if (sum && valid) store<VEC>(sum + start + column, v[chunk]);
            }
        }
        if (CENTRED) {
            EACH_CHUNK(chunk, column) {
#pragma unroll
                for (int i = 0; i < VEC; i++) total += v[chunk][i];
            }
        }
        const float row_mean = CENTRED ? row_sums(total, 0.0f).x / (float)DIM : 0.0f;
        float squares = 0.0f;
        EACH_CHUNK(chunk, column) {
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float d = v[chunk][i] - row_mean;
                squares += d * d;
            }
        }
        const float row_rstd = 1.0f / sqrtf(row_sums(squares, 0.0f).x / (float)DIM + epsilon);
        if (!valid) continue;
        EACH_CHUNK(chunk, column) {
#pragma unroll
            for (int i = 0; i < VEC; i++)
                v[chunk][i] = ((v[chunk][i] - row_mean) * row_rstd * g[chunk][i] + b[chunk][i]) * multiplier;
            store<VEC>(y + start + column, v[chunk]);
        }
        if (threadIdx.x % LANES == 0) {
            if (mean) mean[row] = row_mean;
            if (rstd) rstd[row] = row_rstd;
        }
    }
}

// dx = rstd · (d - mean(d) - normed · mean(d · normed)) + d_residual with d = dy · gamma; without mean(d) if not
// CENTRED. With DROP also the gradient of the addend, dropped = keep · dx. Every block writes its partial sums:
// partials [blocks, PARTS, DIM]. `d_residual`, `partials` and, without DROP and SUMS, `dx` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_grad(const DY* __restrict__ dy, const X* __restrict__ x, const float* __restrict__ gamma,
                    const float* __restrict__ mean, const float* __restrict__ rstd, const R* __restrict__ d_residual,
                    u32 rows, DX* __restrict__ dx, float* __restrict__ partials, DD* __restrict__ dropped,
                    const StochasticDepth depth) {
    float parts[PARTS][CHUNKS][VEC];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (int i = 0; i < VEC; i++) parts[part][chunk][i] = 0.0f;

    // All threads of a warp take part in the shuffles; those past the last row add zeros.
    for (u32 first = blockIdx.x * ROWS; first < rows; first += gridDim.x * ROWS) {
        const u32 unclamped_row = first + threadIdx.x / LANES;
        const bool valid = unclamped_row < rows;
        const u32 row = valid ? unclamped_row : rows - 1;
        const u64 start = (u64)row * DIM;
        const float row_mean = mean[row], row_rstd = valid ? rstd[row] : 0.0f;
        float normed[CHUNKS][VEC], d[CHUNKS][VEC], residual[CHUNKS][VEC];
        float sum = 0.0f, dot = 0.0f;
        EACH_CHUNK(chunk, column) {
            load<VEC>(x + start + column, normed[chunk]);
            load<VEC>(dy + start + column, d[chunk]);
            if (d_residual) load<VEC>(d_residual + start + column, residual[chunk]);
        }
        EACH_CHUNK(chunk, column) {
            float g[VEC];
            load<VEC>(gamma + column, g);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                normed[chunk][i] = (normed[chunk][i] - row_mean) * row_rstd;
                const float valid_dy = valid ? d[chunk][i] : 0.0f;
                parts[0][chunk][i] += valid_dy * normed[chunk][i];
                parts[1][chunk][i] += valid_dy;
                d[chunk][i] = valid_dy * g[i];
                sum += d[chunk][i];
                dot += d[chunk][i] * normed[chunk][i];
            }
        }
        const float2 sums = row_sums(sum, dot);
        const float mean_sum = CENTRED ? sums.x / (float)DIM : 0.0f, mean_dot = sums.y / (float)DIM;
        if (dx && valid) {
            const float keep = keep_factor(depth, row);
            EACH_CHUNK(chunk, column) {
                float result[VEC];
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const float v = row_rstd * (d[chunk][i] - mean_sum - normed[chunk][i] * mean_dot);
                    result[i] = d_residual ? residual[chunk][i] + v : v;
                    if (SUMS) parts[PARTS - 1][chunk][i] += keep * result[i];
                }
                store<VEC>(dx + start + column, result);
                if (DROP) {
#pragma unroll
                    for (int i = 0; i < VEC; i++) result[i] *= keep;
                    store<VEC>(dropped + start + column, result);
                }
            }
        }
    }
    if (!partials) return;
    float* block_partials = partials + (u64)blockIdx.x * PARTS * DIM;
    if (ROWS == 1) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            EACH_CHUNK(chunk, column) store<VEC>(block_partials + part * DIM + column, parts[part][chunk]);
        return;
    }
    // Sums over the rows of a warp, then over the warps in order.
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (int i = 0; i < VEC; i++)
#pragma unroll
                for (int step = LANES; step < 32; step *= 2)
                    parts[part][chunk][i] += __shfl_xor_sync(0xffffffffu, parts[part][chunk][i], step);
    __shared__ float shared[ROWS == 1 ? 1 : PARTS * DIM];
    for (int warp = 0; warp < THREADS / 32; warp++) {
        if (threadIdx.x / 32 == warp && threadIdx.x % 32 < LANES) {
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                EACH_CHUNK(chunk, column) {
#pragma unroll
                    for (int i = 0; i < VEC; i++) {
                        float& sum = shared[part * DIM + column + i];
                        sum = warp == 0 ? parts[part][chunk][i] : sum + parts[part][chunk][i];
                    }
                }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < PARTS * DIM; i += THREADS) block_partials[i] = shared[i];
}

// dgamma, dbeta and dbias, any of which may be null: partials [blocks, PARTS * DIM] summed over `blocks`. The threads
// of a block here are [32 rows][8 columns], of which row r sums every 32nd partial from r on.
extern "C" __global__ void __launch_bounds__(256)
    layer_norm_grad_parameters(const float* __restrict__ partials, u32 blocks, float* __restrict__ dgamma,
                               float* __restrict__ dbeta, DB* __restrict__ dbias) {
    const u32 column = blockIdx.x * 8 + threadIdx.x % 8;
    float sum[1] = {0.0f};
    if (column < PARTS * DIM)
        for (u32 block = threadIdx.x / 8; block < blocks; block += 32)
            sum[0] += partials[(u64)block * PARTS * DIM + column];
    const float total = column_sum<256, 8, 1>(sum);
    if (threadIdx.x >= 8 || column >= PARTS * DIM) return;
    if (column >= 2 * DIM) {
        if (dbias) dbias[column - 2 * DIM] = from_float<DB>(total);
        return;
    }
    float* to = column < DIM ? dgamma : dbeta;
    if (to) to[column % DIM] = total;
}
