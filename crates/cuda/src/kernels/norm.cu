// Layer norm forward and backward, alone or with the residual sum before it and the residual gradient after it.
//
// DIM: elements of a row, kept in registers by LANES threads (32, or a whole block for long rows). X, Z, Y, S, DY, R, DX:
// storage types. Sums go through shuffles and then warp by warp, in an order that only the shape decides.
#ifndef DIM
#define DIM 768
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef X
#define X float
#endif
#ifndef Z
#define Z float
#endif
#ifndef Y
#define Y float
#endif
#ifndef S
#define S float
#endif
#ifndef DY
#define DY float
#endif
#ifndef R
#define R float
#endif
#ifndef DX
#define DX float
#endif

#define ROWS (LANES == 32 ? 8 : 1)
#define THREADS (ROWS * LANES)
#define VEC (DIM % 8 == 0 ? 8 : DIM % 4 == 0 ? 4 : DIM % 2 == 0 ? 2 : 1)
#define CHUNKS ((DIM / VEC + LANES - 1) / LANES)

// Calls BODY(chunk, column) for every pack of VEC columns of this thread.
#define EACH_CHUNK(chunk, column)                                                                                      \
    _Pragma("unroll") for (int chunk = 0, column = (threadIdx.x % LANES) * VEC; chunk < CHUNKS;                        \
                           chunk++, column += LANES * VEC) if (DIM % (LANES * VEC) == 0 || column < DIM)

// Two sums over a row at once.
__device__ __forceinline__ float2 row_sums(float a, float b) {
    a = warp_sum(a), b = warp_sum(b);
    if (LANES == 32) return make_float2(a, b);
    __shared__ float2 partial[LANES / 32];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = make_float2(a, b);
    __syncthreads();
    float2 total = partial[0];
    for (int warp = 1; warp < LANES / 32; warp++) total.x += partial[warp].x, total.y += partial[warp].y;
    __syncthreads();
    return total;
}

// `addend`, `sum`, `mean`, `rstd` and `factor`, which multiplies what is written to `y`, may be missing.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const X* x, const Z* addend, const float* gamma, const float* beta, float epsilon, u32 rows, Y* y,
               float* mean, float* rstd, S* sum, const float* factor) {
    const u32 row = blockIdx.x * ROWS + threadIdx.x / LANES;
    if (row >= rows) return;
    const u64 start = (u64)row * DIM;
    float v[CHUNKS][VEC];
    float total = 0.0f;
    EACH_CHUNK(chunk, column) {
        load<VEC>(x + start + column, v[chunk]);
        if (addend) {
            float z[VEC];
            load<VEC>(addend + start + column, z);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                v[chunk][i] += z[i];
                // The norm sees what the gradient will see.
                if (sum) v[chunk][i] = rounded<S>(v[chunk][i]);
            }
            if (sum) store<VEC>(sum + start + column, v[chunk]);
        }
#pragma unroll
        for (int i = 0; i < VEC; i++) total += v[chunk][i];
    }
    const float centre = row_sums(total, 0.0f).x / (float)DIM;
    float squares = 0.0f;
    EACH_CHUNK(chunk, column) {
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float d = v[chunk][i] - centre;
            squares += d * d;
        }
    }
    const float inverse = 1.0f / sqrtf(row_sums(squares, 0.0f).x / (float)DIM + epsilon);
    const float multiplier = factor ? *factor : 1.0f;
    EACH_CHUNK(chunk, column) {
        float g[VEC], b[VEC];
        load<VEC>(gamma + column, g);
        load<VEC>(beta + column, b);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[chunk][i] = ((v[chunk][i] - centre) * inverse * g[i] + b[i]) * multiplier;
        store<VEC>(y + start + column, v[chunk]);
    }
    if (threadIdx.x % LANES == 0) {
        if (mean) mean[row] = centre;
        if (rstd) rstd[row] = inverse;
    }
}

// dx, plus `residual` where there is one, and this block's share of dgamma and dbeta: `partials [blocks, 2, DIM]`.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_grad(const DY* dy, const X* x, const float* gamma, const float* mean, const float* rstd,
                    const R* residual, u32 rows, DX* dx, float* partials) {
    float dgamma[CHUNKS][VEC], dbeta[CHUNKS][VEC];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (int i = 0; i < VEC; i++) dgamma[chunk][i] = dbeta[chunk][i] = 0.0f;

    for (u32 row = blockIdx.x * ROWS + threadIdx.x / LANES; row < rows; row += gridDim.x * ROWS) {
        const u64 start = (u64)row * DIM;
        const float centre = mean[row], inverse = rstd[row];
        float normed[CHUNKS][VEC], d[CHUNKS][VEC];
        float sum = 0.0f, dot = 0.0f;
        EACH_CHUNK(chunk, column) {
            load<VEC>(x + start + column, normed[chunk]);
            load<VEC>(dy + start + column, d[chunk]);
        }
        EACH_CHUNK(chunk, column) {
            float g[VEC];
            load<VEC>(gamma + column, g);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                normed[chunk][i] = (normed[chunk][i] - centre) * inverse;
                dgamma[chunk][i] += d[chunk][i] * normed[chunk][i];
                dbeta[chunk][i] += d[chunk][i];
                d[chunk][i] *= g[i];
                sum += d[chunk][i];
                dot += d[chunk][i] * normed[chunk][i];
            }
        }
        const float2 sums = row_sums(sum, dot);
        if (dx) {
            EACH_CHUNK(chunk, column) {
                float out[VEC];
                if (residual) load<VEC>(residual + start + column, out);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const float v = inverse * (d[chunk][i] - (sums.x + normed[chunk][i] * sums.y) / (float)DIM);
                    out[i] = residual ? out[i] + v : v;
                }
                store<VEC>(dx + start + column, out);
            }
        }
    }
    if (!partials) return;
    float* own = partials + (u64)blockIdx.x * 2 * DIM;
    if (ROWS == 1) {
        EACH_CHUNK(chunk, column) {
            store<VEC>(own + column, dgamma[chunk]);
            store<VEC>(own + DIM + column, dbeta[chunk]);
        }
        return;
    }
    // Warp after warp adds its share.
    __shared__ float shared[ROWS == 1 ? 1 : 2 * DIM];
    for (int warp = 0; warp < ROWS; warp++) {
        if (threadIdx.x / LANES == warp) {
            EACH_CHUNK(chunk, column) {
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const float g = dgamma[chunk][i], b = dbeta[chunk][i];
                    shared[column + i] = warp == 0 ? g : shared[column + i] + g;
                    shared[DIM + column + i] = warp == 0 ? b : shared[DIM + column + i] + b;
                }
            }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < 2 * DIM; i += THREADS) own[i] = shared[i];
}

// Adds up the blocks' shares: 32 columns by 8 groups of blocks per thread block. Either result may be missing.
extern "C" __global__ void __launch_bounds__(256)
    layer_norm_grad_parameters(const float* partials, u32 blocks, float* dgamma, float* dbeta) {
    __shared__ float shared[8][33];
    const u32 lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const u32 column = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (column < 2 * DIM)
        for (u32 block = group; block < blocks; block += 8) sum += partials[(u64)block * 2 * DIM + column];
    shared[group][lane] = sum;
    __syncthreads();
    if (group != 0 || column >= 2 * DIM) return;
    for (int other = 1; other < 8; other++) sum += shared[other][lane];
    if (column < DIM) {
        if (dgamma) dgamma[column] = sum;
    } else {
        if (dbeta) dbeta[column - DIM] = sum;
    }
}
