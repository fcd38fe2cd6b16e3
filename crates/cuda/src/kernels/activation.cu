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

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float activate(float x) {
    if (KIND == 1) return 0.5f * x * (1.0f + erff(x * INVERSE_SQRT2));
    if (KIND == 2) return 0.5f * x * (1.0f + tanhf(TANH_SCALE * (x + TANH_CUBIC * x * x * x)));
    if (KIND == 3) return fmaxf(x, 0.0f);
    if (KIND == 4) return x * sigmoid(x);
    if (KIND == 5) return tanhf(x);
    if (KIND == 6) return sigmoid(x);
    return x;
}

__device__ __forceinline__ float derivative(float x) {
    if (KIND == 1) return 0.5f * (1.0f + erff(x * INVERSE_SQRT2)) + x * INVERSE_SQRT_2PI * expf(-0.5f * x * x);
    if (KIND == 2) {
        const float t = tanhf(TANH_SCALE * (x + TANH_CUBIC * x * x * x));
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * TANH_SCALE * (1.0f + 3.0f * TANH_CUBIC * x * x);
    }
    if (KIND == 3) return x > 0.0f ? 1.0f : 0.0f;
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

extern "C" __global__ void __launch_bounds__(THREADS) activation(const X* x, Y* y, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (first + VEC <= count) {
        float v[VEC];
        load<VEC>(x + first, v);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = activate(v[i]);
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y>(activate(to_float(x[i])));
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
        for (int i = 0; i < VEC; i++) v[i] = activate(v[i]) * multiplier;
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y>(activate(to_float(x[i])) * multiplier);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) activation_grad(const X* x, const DY* dy, Y* dx, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (first + VEC <= count) {
        float v[VEC], d[VEC];
        load<VEC>(x + first, v);
        load<VEC>(dy + first, d);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = d[i] * derivative(v[i]);
        store<VEC>(dx + first, v);
    } else {
        for (u64 i = first; i < count; i++) dx[i] = from_float<Y>(to_float(dy[i]) * derivative(to_float(x[i])));
    }
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
            v[i] = activate(v[i]);
            if (scale) v[i] *= scale[column + i];
            if (residual) v[i] += r[i];
        }
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count && i < first + VEC; i++) {
            float v = activate(to_float(y[i]));
            if (scale) v *= scale[i % columns];
            if (residual) v += to_float(residual[i]);
            y[i] = from_float<Y>(v);
        }
    }
}
