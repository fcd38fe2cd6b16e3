// Factors for eight-bit operands, worked out from the weights, and the quantising of values that a kernel before it could
// not write in eight bits itself.
//
// A row of a layer norm is gamma · u + beta with a vector u that is at most sqrt(columns) long. So no element of it, and none
// of a linear layer's result, can be larger than the bounds here, whatever the picture.
//
// X: what is quantised. B: what a bias is stored in.

#define THREADS 256
#define VEC 8
#define LARGEST 448.0f
// Where a factor's inverse lies: factors are read at multiples of 16 bytes only.
#define INVERSE 4

// The bound of each element of a norm.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_bounds(const float* gamma, const float* beta, float* bounds, u32 columns) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < columns) bounds[i] = sqrtf((float)columns) * fabsf(gamma[i]) + fabsf(beta[i]);
}

// The bound of each element of a linear layer after a norm: a warp per row of its weights. The bias may be missing.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_bounds(const e4m3* weight, const float* factors, const float* gamma, const float* beta, const B* bias,
                  float* bounds, u32 rows, u32 columns) {
    const u32 row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float inverse = factors[INVERSE];
    float squares = 0.0f, centre = 0.0f;
    for (u32 i = lane; i < columns; i += 32) {
        const float w = to_float(weight[(u64)row * columns + i]) * inverse, scaled = w * gamma[i];
        squares += scaled * scaled;
        centre += w * beta[i];
    }
    squares = warp_sum(squares), centre = warp_sum(centre);
    if (bias) centre += to_float(bias[row]);
    if (lane == 0) bounds[row] = sqrtf((float)columns) * sqrtf(squares) + fabsf(centre);
}

// From bounds to the factor that brings the largest near the end of what eight bits can hold, and its inverse. Both are
// powers of two, so that multiplying rounds nothing. A bound that is not a number makes everything that follows not one.
extern "C" __global__ void __launch_bounds__(THREADS) choose_factor(const float* bounds, u32 count, float* factors) {
    float largest = 0.0f;
    bool wrong = false;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        largest = fmaxf(largest, bounds[i]);
        wrong |= !(bounds[i] < INFINITY);
    }
    largest = block_max<THREADS>(largest);
    wrong = block_max<THREADS>(wrong ? 1.0f : 0.0f) > 0.0f;
    if (threadIdx.x > 0) return;
    const float exact = fminf(fmaxf(LARGEST / largest, 0x1p-100f), 0x1p100f);
    const float factor = __uint_as_float(__float_as_uint(exact) & 0x7f800000u);
    factors[0] = wrong ? INFINITY - INFINITY : factor;
    factors[INVERSE] = wrong ? INFINITY - INFINITY : 1.0f / factor;
}

extern "C" __global__ void __launch_bounds__(THREADS) quantise(const X* x, e4m3* y, const float* factors, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    const float factor = factors[0];
    if (first + VEC <= count) {
        float v[VEC];
        load<VEC>(x + first, v);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] *= factor;
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<e4m3>(to_float(x[i]) * factor);
    }
}
