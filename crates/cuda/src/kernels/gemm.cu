// A plain matrix product for shapes that cuBLASLt does not support: 32 by 32 results per block.
//
// X, Y: storage types of operands and result. B: that of bias and `c`.

#define TILE 32
#define THREADS 256

// Element (row, column) lies at row · rows + column · columns; matrices of a batch are `batch` elements apart.
struct MatrixStrides {
    u64 rows, columns, batch;
};

// Dequantisation scales of e4m3 operands and the quantisation scale of the result; each may be null.
struct QuantisationScales {
    const float *a, *b, *d;
};

// d = a · b + bias + c; `bias` and `c` may be null. blockIdx.z is the matrix of the batch.
extern "C" __global__ void __launch_bounds__(THREADS)
    product(const X* a, const X* b, const B* c, const B* bias, Y* d, const QuantisationScales scales,
            const MatrixStrides at_a, const MatrixStrides at_b, const MatrixStrides at_c, const MatrixStrides at_d,
            u32 m, u32 n, u32 k) {
    __shared__ float tile_a[TILE][TILE + 1], tile_b[TILE][TILE + 1];
    a += blockIdx.z * at_a.batch, b += blockIdx.z * at_b.batch, d += blockIdx.z * at_d.batch;
    if (c) c += blockIdx.z * at_c.batch;
    const u32 row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    const u32 tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 start = 0; start < k; start += TILE) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 r = ty + 8 * i;
            const bool in_a = row0 + r < m && start + tx < k, in_b = start + r < k && column0 + tx < n;
            tile_a[r][tx] = in_a ? to_float(a[(row0 + r) * at_a.rows + (start + tx) * at_a.columns]) : 0.0f;
            tile_b[r][tx] = in_b ? to_float(b[(start + r) * at_b.rows + (column0 + tx) * at_b.columns]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 p = 0; p < TILE; p++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) sum[i] += tile_a[ty + 8 * i][p] * tile_b[p][tx];
        __syncthreads();
    }
    const float before = (scales.a ? *scales.a : 1.0f) * (scales.b ? *scales.b : 1.0f);
    const float after = scales.d ? *scales.d : 1.0f;
    const u32 column = column0 + tx;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 row = row0 + ty + 8 * i;
        if (row >= m || column >= n) continue;
        float v = sum[i] * before;
        if (bias) v += to_float(bias[column]);
        if (c) v += to_float(c[row * at_c.rows + column * at_c.columns]);
        d[row * at_d.rows + column * at_d.columns] = from_float<Y>(v * after);
    }
}
