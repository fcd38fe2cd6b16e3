// Activations, their gradients, and what follows a linear layer's product where cuBLASLt cannot do it.
//
// KIND: 0 none, 1 gelu, 2 gelu_tanh, 3 relu, 4 silu, 5 tanh, 6 sigmoid. X, DY, Y, R: storage types.
#ifndef KIND
#define KIND 1
#endif
#ifndef X
#define X float
#endif
#ifndef DY
#define DY float
#endif
#ifndef Y
#define Y float
#endif
#ifndef R
#define R float
#endif

#define THREADS 256
#define VEC 8

#define INVERSE_SQRT2 0.70710678118654752f
#define INVERSE_SQRT_2PI 0.39894228040143268f
#define TANH_SCALE 0.79788456080286536f
#define TANH_CUBIC 0.044715f

// e^(-x²/2) and Φ(x), the normal distribution. What is stored as bf16 is computed with a polynomial (Abramowitz and
// Stegun, 26.2.17) that is off by less than 1e-7, where erff would take longer than memory does.
template <class T> __device__ __forceinline__ float2 normal(float x) {
    return make_float2(expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * INVERSE_SQRT2)));
}
template <> __device__ __forceinline__ float2 normal<bf16>(float x) {
    const float e = exp_rough(-0.5f * x * x), t = reciprocal_rough(1.0f + 0.2316419f * fabsf(x));
    const float polynomial =
        0.127414796f + t * (-0.142248368f + t * (0.710706871f + t * (-0.726576014f + t * 0.530702715f)));
    const float tail = e * t * polynomial;
    return make_float2(e, x < 0.0f ? tail : 1.0f - tail);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// For a result that is stored as T.
template <class T> __device__ __forceinline__ float activate(float x) {
    if (KIND == 1) return x * normal<T>(x).y;
    if (KIND == 2) return 0.5f * x * (1.0f + tanhf(TANH_SCALE * (x + TANH_CUBIC * x * x * x)));
    if (KIND == 3) return relu(x);
    if (KIND == 4) return x * sigmoid(x);
    if (KIND == 5) return tanhf(x);
    if (KIND == 6) return sigmoid(x);
    return x;
}

template <class T> __device__ __forceinline__ float derivative(float x) {
    if (KIND == 1) {
        const float2 n = normal<T>(x);
        return n.y + x * INVERSE_SQRT_2PI * n.x;
    }
    if (KIND == 2) {
        const float t = tanhf(TANH_SCALE * (x + TANH_CUBIC * x * x * x));
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * TANH_SCALE * (1.0f + 3.0f * TANH_CUBIC * x * x);
    }
    // 0 or NaN.
    if (KIND == 3) return x > 0.0f ? 1.0f : relu(x);
    if (KIND == 4) {
        const float s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
    if (KIND == 5) {
        const float t = tanhf(x);
        return 1.0f - t * t;
    }
    if (KIND == 6) {
        const float s = sigmoid(x);
        return s * (1.0f - s);
    }
    return 1.0f;
}

// Every thread has two packs, which are read before either is computed.
extern "C" __global__ void __launch_bounds__(THREADS)
    activation(const X* __restrict__ x, Y* __restrict__ y, u64 count) {
    const u64 first = ((u64)blockIdx.x * 2 * THREADS + threadIdx.x) * VEC, second = first + THREADS * VEC;
    if (second + VEC <= count) {
        float v[VEC], w[VEC];
        load<VEC>(x + first, v);
        load<VEC>(x + second, w);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = activate<Y>(v[i]);
        store<VEC>(y + first, v);
#pragma unroll
        for (int i = 0; i < VEC; i++) w[i] = activate<Y>(w[i]);
        store<VEC>(y + second, w);
    } else {
        for (u64 i = first; i < count && i < first + VEC; i++) y[i] = from_float<Y>(activate<Y>(to_float(x[i])));
        for (u64 i = second; i < count && i < second + VEC; i++) y[i] = from_float<Y>(activate<Y>(to_float(x[i])));
    }
}

// The same times a factor that belongs to the whole result.
extern "C" __global__ void __launch_bounds__(THREADS)
    activation_scaled(const X* x, Y* y, const float* factor, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    const float multiplier = *factor;
    if (first + VEC <= count) {
        float v[VEC];
        load<VEC>(x + first, v);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = activate<Y>(v[i]) * multiplier;
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y>(activate<Y>(to_float(x[i])) * multiplier);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) activation_grad(const X* x, const DY* dy, Y* dx, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (first + VEC <= count) {
        float v[VEC], d[VEC];
        load<VEC>(x + first, v);
        load<VEC>(dy + first, d);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = d[i] * derivative<Y>(v[i]);
        store<VEC>(dx + first, v);
    } else {
        for (u64 i = first; i < count; i++) dx[i] = from_float<Y>(to_float(dy[i]) * derivative<Y>(to_float(x[i])));
    }
}

// The same over rows of `columns`, a multiple of VEC, with the sums of every column of dx: `sums [splits, columns]`, each
// over rows_per_split rows. A block has LANES packs of columns and all groups of rows.
#define LANES 8
#define GROUPS (THREADS / LANES)
#define AT_ONCE 2

extern "C" __global__ void __launch_bounds__(THREADS)
    activation_grad_sums(const X* __restrict__ x, const DY* __restrict__ dy, Y* __restrict__ dx, u32 rows, u32 columns,
                         u32 rows_per_split, float* __restrict__ sums) {
    const u32 column = (blockIdx.x * LANES + threadIdx.x % LANES) * VEC;
    const u32 begin = blockIdx.y * rows_per_split;
    const u32 end = begin + rows_per_split < rows ? begin + rows_per_split : rows;
    float sum[VEC] = {};
    if (column < columns) {
        for (u32 row = begin + threadIdx.x / LANES; row < end; row += AT_ONCE * GROUPS) {
            float v[AT_ONCE][VEC], d[AT_ONCE][VEC];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (row + j * GROUPS >= end) continue;
                const u64 at = (u64)(row + j * GROUPS) * columns + column;
                load<VEC>(x + at, v[j]);
                load<VEC>(dy + at, d[j]);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (row + j * GROUPS >= end) continue;
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    v[j][i] = d[j][i] * derivative<Y>(v[j][i]);
                    sum[i] += v[j][i];
                }
                store<VEC>(dx + (u64)(row + j * GROUPS) * columns + column, v[j]);
            }
        }
    }
    const float total = column_sum<THREADS, LANES, VEC>(sum);
    const u32 own = blockIdx.x * LANES * VEC + threadIdx.x;
    if (threadIdx.x < LANES * VEC && own < columns) sums[(u64)blockIdx.y * columns + own] = total;
}

// y = residual + scale · activation(y), in place, over rows of `columns`; scale and residual may be missing.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_tail(Y* y, const float* scale, const R* residual, u32 columns, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    // A pack that crosses into the next row or beyond the end goes element by element.
    const u32 column = (u32)(first % columns);
    if (first + VEC <= count && column + VEC <= columns) {
        float v[VEC], r[VEC];
        load<VEC>(y + first, v);
        if (residual) load<VEC>(residual + first, r);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            v[i] = activate<Y>(v[i]);
            if (scale) v[i] *= scale[column + i];
            if (residual) v[i] += r[i];
        }
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count && i < first + VEC; i++) {
            float v = activate<Y>(to_float(y[i]));
            if (scale) v *= scale[i % columns];
            if (residual) v += to_float(residual[i]);
            y[i] = from_float<Y>(v);
        }
    }
}
