// Activation functions and their slopes.
//
// KIND: 0 none, 1 gelu, 2 gelu_tanh, 3 relu, 4 silu, 5 tanh, 6 sigmoid.
#ifndef KIND
#define KIND 1
#endif

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
    if (KIND == 3) return fmaxf(x, 0.0f);
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
