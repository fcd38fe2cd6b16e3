// Queries and keys of cosine attention (Swin V2) and their gradient, in packed qkv [rows, 3, heads, dim], whose vectors
// of `dim` elements are counted by `vectors`. A vector belongs to LANES threads, which have VEC of its elements at a
// time. X, DY, Y: storage types of x, dy and the result.

#define THREADS 256
#define LANES 8
// `eps` of PyTorch's F.normalize.
#define LEAST_LENGTH 1e-12f

struct QkvShape {
    u32 heads;
    u32 dim;
};

// Over the threads of a vector, returned to all of them. All lanes of the warp must call it.
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// The length that a vector is divided by, at least LEAST_LENGTH, from this thread's sum of squares. NaN stays NaN.
__device__ __forceinline__ float divisor(float squares) {
    const float length = sqrtf(lanes_sum(squares));
    return length < LEAST_LENGTH ? LEAST_LENGTH : length;
}

// The length of a vector in the result: of a query (part 0) the scale of its head, of a key (part 1) 1.
__device__ __forceinline__ float length_of(u32 part, u32 head, const float* scale) {
    return part == 0 ? scale[head] : 1.0f;
}

// y = scale / length · x of queries, x / length of keys, x of values.
extern "C" __global__ void __launch_bounds__(THREADS)
    cosine_qkv(const X* x, const float* scale, Y* y, const QkvShape s, u64 vectors) {
    const u64 vector = ((u64)blockIdx.x * THREADS + threadIdx.x) / LANES;
    const u32 lane = threadIdx.x % LANES, part = (u32)(vector / s.heads % 3), head = (u32)(vector % s.heads);
    const bool inside = vector < vectors;
    const u64 start = vector * s.dim;
    // Lanes without a vector take part in the shuffles.
    const u32 end = inside ? s.dim : 0;
    float squares = 0.0f;
    for (u32 i = lane * VEC; i < end; i += LANES * VEC) {
        float v[VEC];
        load<VEC>(x + start + i, v);
#pragma unroll
        for (int j = 0; j < VEC; j++) squares += v[j] * v[j];
    }
    const float length = divisor(squares);
    const float factor = part == 2 || !inside ? 1.0f : length_of(part, head, scale) / length;
    for (u32 i = lane * VEC; i < end; i += LANES * VEC) {
        float v[VEC];
        load<VEC>(x + start + i, v);
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] *= factor;
        store<VEC>(y + start + i, v);
    }
}

// dx = scale / length · (dy - x̂ (x̂ · dy)) with x̂ = x / length, of queries and keys (whose scale is 1); dy of values.
// Unless null, dots [rows, heads] = x̂ · dy of queries, which summed over rows is the gradient of `scale`.
extern "C" __global__ void __launch_bounds__(THREADS)
    cosine_qkv_grad(const DY* dy, const X* x, const float* scale, Y* dx, float* dots, const QkvShape s, u64 vectors) {
    const u64 vector = ((u64)blockIdx.x * THREADS + threadIdx.x) / LANES;
    const u32 lane = threadIdx.x % LANES, part = (u32)(vector / s.heads % 3), head = (u32)(vector % s.heads);
    const bool inside = vector < vectors;
    const u64 start = vector * s.dim;
    const u32 end = inside ? s.dim : 0;
    float squares = 0.0f, dot = 0.0f;
    for (u32 i = lane * VEC; i < end; i += LANES * VEC) {
        float v[VEC], d[VEC];
        load<VEC>(x + start + i, v);
        load<VEC>(dy + start + i, d);
#pragma unroll
        for (int j = 0; j < VEC; j++) squares += v[j] * v[j], dot += v[j] * d[j];
    }
    const float length = divisor(squares);
    dot = lanes_sum(dot) / length;
    float along = 0.0f, factor = 1.0f;
    if (part < 2 && inside) {
        // A clamped length does not depend on x.
        if (length != LEAST_LENGTH) along = dot / length;
        factor = length_of(part, head, scale) / length;
        if (dots && part == 0 && lane == 0) dots[vector / (3 * s.heads) * s.heads + head] = dot;
    }
    for (u32 i = lane * VEC; i < end; i += LANES * VEC) {
        float v[VEC], d[VEC];
        load<VEC>(x + start + i, v);
        load<VEC>(dy + start + i, d);
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] = part == 2 ? d[j] : factor * (d[j] - along * v[j]);
        store<VEC>(dx + start + i, v);
    }
}
