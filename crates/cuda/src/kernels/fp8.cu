// Quantisation scales of fp8 operands from the weights alone, and the quantisation of values whose producer cannot
// write e4m3.
//
// A row of a layer norm is gamma u + beta, elementwise, with |u| <= sqrt(columns) (Euclidean norm) for any input. That
// bounds its elements and those of a linear layer after it.
//
// X: storage type of the values to quantise. B: that of the linear layer's bias.

#define THREADS 256
#define VEC 8
// The largest finite e4m3 value.
#define E4M3_MAX 448.0f
// scales[0] is the scale, scales[INVERSE] its inverse: cuBLASLt reads scales at multiples of 16 bytes.
#define INVERSE 4

// bounds[columns] of the absolute values of a norm's elements.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_bounds(const float* gamma, const float* beta, float* bounds, u32 columns) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < columns) bounds[i] = sqrtf((float)columns) * fabsf(gamma[i]) + fabsf(beta[i]);
}

// bounds[rows] of the absolute values of a linear layer after a norm: sqrt(columns) |w gamma| + |w · beta + bias|, w
// gamma elementwise. A warp has a row of the weight, whose scales `scales` are; `bias` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_bounds(const e4m3* weight, const float* scales, const float* gamma, const float* beta, const B* bias,
                  float* bounds, u32 rows, u32 columns) {
    const u32 row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float inverse = scales[INVERSE];
    float squares = 0.0f, shift = 0.0f;
    for (u32 i = lane; i < columns; i += 32) {
        const float w = to_float(weight[(u64)row * columns + i]) * inverse, scaled = w * gamma[i];
        squares += scaled * scaled;
        shift += w * beta[i];
    }
    squares = warp_sum(squares), shift = warp_sum(shift);
    if (bias) shift += to_float(bias[row]);
    if (lane == 0) bounds[row] = sqrtf((float)columns) * sqrtf(squares) + fabsf(shift);
}

// The largest power of two that scales all bounds to 448 or less, and its inverse, by one block: scaling by powers of
// two is exact. A bound that is not finite makes both NaN, and so all results.
extern "C" __global__ void __launch_bounds__(THREADS) choose_scale(const float* bounds, u32 count, float* scales) {
    float largest = 0.0f;
    bool non_finite = false;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        largest = fmaxf(largest, bounds[i]);
        non_finite |= !(bounds[i] < INFINITY);
    }
    largest = block_max<THREADS>(largest);
    non_finite = block_max<THREADS>(non_finite ? 1.0f : 0.0f) > 0.0f;
    if (threadIdx.x > 0) return;
    const float exact = fminf(fmaxf(E4M3_MAX / largest, 0x1p-100f), 0x1p100f);
    const float scale = __uint_as_float(__float_as_uint(exact) & 0x7f800000u);
    scales[0] = non_finite ? INFINITY - INFINITY : scale;
    scales[INVERSE] = non_finite ? INFINITY - INFINITY : 1.0f / scale;
}

// y = scale · x.
extern "C" __global__ void __launch_bounds__(THREADS) quantise(const X* x, e4m3* y, const float* scales, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    const float scale = scales[0];
    map_vector<VEC>(x, y, first, count, [=](float v) { return v * scale; });
}
