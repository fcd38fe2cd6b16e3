// A plain matrix product for shapes that cuBLASLt does not support. A block computes a tile of TILE by TILE results, a
// thread four of them, in one column.
//
// X: storage type of the operands a and b, Y: of the result, B: of bias and `c`.

#define TILE 32
#define THREADS 256

// In elements, from one row, column or matrix of the batch to the next.
struct MatrixStrides {
    u64 row, column, batch;
};

// Dequantisation scales of e4m3 operands and the quantisation scale of the result; each may be null.
struct QuantisationScales {
    const float *a, *b, *d;
};

// d = scales.d (scales.a scales.b a · b + bias + c), with a [m, k], b [k, n] and bias [n]; `bias` and `c` may be null.
// blockIdx.z is the matrix of the batch.
extern "C" __global__ void __launch_bounds__(THREADS)
    product(const X* a, const X* b, const B* c, const B* bias, Y* d, const QuantisationScales scales,
            const MatrixStrides strides_a, const MatrixStrides strides_b, const MatrixStrides strides_c,
            const MatrixStrides strides_d, u32 m, u32 n, u32 k) {
    __shared__ float tile_a[TILE][TILE + 1], tile_b[TILE][TILE + 1];
    a += blockIdx.z * strides_a.batch, b += blockIdx.z * strides_b.batch, d += blockIdx.z * strides_d.batch;
    if (c) c += blockIdx.z * strides_c.batch;
    const u32 row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    const u32 tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 start = 0; start < k; start += TILE) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 r = ty + 8 * i;
            const bool in_a = row0 + r < m && start + tx < k, in_b = start + r < k && column0 + tx < n;
            tile_a[r][tx] = in_a ? to_float(a[(row0 + r) * strides_a.row + (start + tx) * strides_a.column]) : 0.0f;
            tile_b[r][tx] = in_b ? to_float(b[(start + r) * strides_b.row + (column0 + tx) * strides_b.column]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 p = 0; p < TILE; p++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) sum[i] += tile_a[ty + 8 * i][p] * tile_b[p][tx];
        __syncthreads();
    }
    const float dequantise = (scales.a ? *scales.a : 1.0f) * (scales.b ? *scales.b : 1.0f);
    const float quantise = scales.d ? *scales.d : 1.0f;
    const u32 column = column0 + tx;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 row = row0 + ty + 8 * i;
        if (row >= m || column >= n) continue;
        float v = sum[i] * dequantise;
        if (bias) v += to_float(bias[column]);
        if (c) v += to_float(c[row * strides_c.row + column * strides_c.column]);
        d[row * strides_d.row + column * strides_d.column] = from_float<Y>(v * quantise);
    }
}
