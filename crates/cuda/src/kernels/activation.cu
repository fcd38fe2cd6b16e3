// Activations, their gradients, and the epilogue of a linear layer where cuBLASLt has none.
//
// ACTIVATION: one of the structs in `activations`, which have the names of the graph's activations; `identity` for
// none. Storage types: X of x, DY of dy, Y of the result (y or dx), R of the residual.

#define THREADS 256
#define VEC 8

#define INVERSE_SQRT2 0.70710678118654752f
#define INVERSE_SQRT_2PI 0.39894228040143268f
// sqrt(2 / pi)
#define TANH_SCALE 0.79788456080286536f
#define TANH_CUBIC 0.044715f
#define QUICK_SCALE 1.702f

// e^(-x²/2) and Φ(x) of the normal distribution. For results in bf16, a polynomial (Abramowitz and Stegun, 26.2.17)
// with an error below 1e-7: with erff the kernel would be bound by arithmetic, not by memory.
template <class T> __device__ __forceinline__ float2 normal(float x) {
    return make_float2(expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * INVERSE_SQRT2)));
}
template <> __device__ __forceinline__ float2 normal<bf16>(float x) {
    const float e = exp_approx(-0.5f * x * x), t = reciprocal_approx(1.0f + 0.2316419f * fabsf(x));
    const float polynomial =
        0.127414796f + t * (-0.142248368f + t * (0.710706871f + t * (-0.726576014f + t * 0.530702715f)));
    const float tail = e * t * polynomial;
    return make_float2(e, x < 0.0f ? tail : 1.0f - tail);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// One struct per activation: `value` and `derivative` at x, for a result that is stored as T.
namespace activations {
struct identity {
    template <class T> static __device__ __forceinline__ float value(float x) { return x; }
    template <class T> static __device__ __forceinline__ float derivative(float) { return 1.0f; }
};

// x Φ(x) (Hendrycks and Gimpel, 2016).
struct gelu {
    template <class T> static __device__ __forceinline__ float value(float x) { return x * normal<T>(x).y; }
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        const float2 n = normal<T>(x);
        return n.y + x * INVERSE_SQRT_2PI * n.x;
    }
};

// GELU's approximation with tanh, the form that cuBLASLt and flax have.
struct gelu_tanh {
    template <class T> static __device__ __forceinline__ float value(float x) {
        return 0.5f * x * (1.0f + tanhf(TANH_SCALE * (x + TANH_CUBIC * x * x * x)));
    }
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        const float t = tanhf(TANH_SCALE * (x + TANH_CUBIC * x * x * x));
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * TANH_SCALE * (1.0f + 3.0f * TANH_CUBIC * x * x);
    }
};

// GELU's approximation with the logistic function, the form of OpenAI's CLIP.
struct quick_gelu {
    template <class T> static __device__ __forceinline__ float value(float x) { return x * ::sigmoid(QUICK_SCALE * x); }
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        const float s = ::sigmoid(QUICK_SCALE * x);
        return s * (1.0f + QUICK_SCALE * x * (1.0f - s));
    }
};

struct relu {
    template <class T> static __device__ __forceinline__ float value(float x) { return ::relu(x); }
    // NaN at NaN.
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        return x > 0.0f ? 1.0f : ::relu(x);
    }
};

struct silu {
    template <class T> static __device__ __forceinline__ float value(float x) { return x * ::sigmoid(x); }
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        const float s = ::sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
};

struct tanh {
    template <class T> static __device__ __forceinline__ float value(float x) { return tanhf(x); }
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        const float t = tanhf(x);
        return 1.0f - t * t;
    }
};

struct sigmoid {
    template <class T> static __device__ __forceinline__ float value(float x) { return ::sigmoid(x); }
    template <class T> static __device__ __forceinline__ float derivative(float x) {
        const float s = ::sigmoid(x);
        return s * (1.0f - s);
    }
};
} // namespace activations

template <class T> __device__ __forceinline__ float activate(float x) {
    return activations::ACTIVATION::value<T>(x);
}

template <class T> __device__ __forceinline__ float derivative(float x) {
    return activations::ACTIVATION::derivative<T>(x);
}

// A thread has two vectors and loads both before it computes either, to have more loads in flight.
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

// y = scale · activation(x), with the quantisation scale of y.
extern "C" __global__ void __launch_bounds__(THREADS)
    activation_quantised(const X* x, Y* y, const float* scale, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    const float factor = *scale;
    map_vector<VEC>(x, y, first, count, [=](float v) { return activate<Y>(v) * factor; });
}

// dx = dy · activation'(x).
extern "C" __global__ void __launch_bounds__(THREADS) activation_grad(const X* x, const DY* dy, Y* dx, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    map_vectors<VEC>(x, dy, dx, first, count, [](float v, float d) { return d * derivative<Y>(v); });
}

// The threads of a block of activation_grad_sums: [GROUPS rows][LANES vectors of columns].
#define LANES 8
#define GROUPS (THREADS / LANES)
// Rows that a thread loads before it computes.
#define ROWS_IN_FLIGHT 2

// dx [rows, columns] and the sums of its columns, which are the gradient of a bias: sums [splits, columns], each over
// rows_per_split rows. `columns` is a multiple of VEC.
extern "C" __global__ void __launch_bounds__(THREADS)
    activation_grad_sums(const X* __restrict__ x, const DY* __restrict__ dy, Y* __restrict__ dx, u32 rows, u32 columns,
                         u32 rows_per_split, float* __restrict__ sums) {
    const u32 column = (blockIdx.x * LANES + threadIdx.x % LANES) * VEC;
    const u32 begin = blockIdx.y * rows_per_split;
    const u32 end = begin + rows_per_split < rows ? begin + rows_per_split : rows;
    float sum[VEC] = {};
    if (column < columns) {
        for (u32 row = begin + threadIdx.x / LANES; row < end; row += ROWS_IN_FLIGHT * GROUPS) {
            float v[ROWS_IN_FLIGHT][VEC], d[ROWS_IN_FLIGHT][VEC];
#pragma unroll
            for (int j = 0; j < ROWS_IN_FLIGHT; j++) {
                if (row + j * GROUPS >= end) continue;
                const u64 offset = (u64)(row + j * GROUPS) * columns + column;
                load<VEC>(x + offset, v[j]);
                load<VEC>(dy + offset, d[j]);
            }
#pragma unroll
            for (int j = 0; j < ROWS_IN_FLIGHT; j++) {
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
    const u32 sum_column = blockIdx.x * LANES * VEC + threadIdx.x;
    if (threadIdx.x < LANES * VEC && sum_column < columns) sums[(u64)blockIdx.y * columns + sum_column] = total;
}

// y = residual + layer_scale[columns] · activation(y), in place; `layer_scale` and `residual` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_epilogue(Y* y, const float* layer_scale, const R* residual, u32 columns, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    // A vector that crosses into the next row or past the end is done element by element.
    const u32 column = (u32)(first % columns);
    if (first + VEC <= count && column + VEC <= columns) {
        float v[VEC], r[VEC];
        load<VEC>(y + first, v);
        if (residual) load<VEC>(residual + first, r);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            v[i] = activate<Y>(v[i]);
            if (layer_scale) v[i] *= layer_scale[column + i];
            if (residual) v[i] += r[i];
        }
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count && i < first + VEC; i++) {
            float v = activate<Y>(to_float(y[i]));
            if (layer_scale) v *= layer_scale[i % columns];
            if (residual) v += to_float(residual[i]);
            y[i] = from_float<Y>(v);
        }
    }
}
