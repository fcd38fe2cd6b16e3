// Sums, differences and products with broadcasting, scaling, powers, and conversion between storage types.
//
// OP: 0 add, 1 sub, 2 mul. A, B, Y: storage types. INDEX: a type that can count the elements.
#ifndef OP
#define OP 0
#endif
#ifndef A
#define A float
#endif
#ifndef B
#define B float
#endif
#ifndef Y
#define Y float
#endif
#ifndef INDEX
#define INDEX u64
#endif
#ifndef VEC
#define VEC 8
#endif

#define THREADS 256

__device__ __forceinline__ float combine(float a, float b) {
    if (OP == 0) return a + b;
    if (OP == 1) return a - b;
    return a * b;
}

extern "C" __global__ void __launch_bounds__(THREADS) binary(const A* a, const B* b, Y* y, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (first + VEC <= count) {
        float v[VEC], w[VEC];
        load<VEC>(a + first, v);
        load<VEC>(b + first, w);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = combine(v[i], w[i]);
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y>(combine(to_float(a[i]), to_float(b[i])));
    }
}

// Two operands read with strides of their own; the innermost of `axes` is walked in packs of VEC, along which a stride
// is 0 or 1.
struct Walk {
    u32 axes;
    u32 a_inner;
    u32 b_inner;
    u32 extents[8];
    u64 a[8];
    u64 b[8];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    binary_broadcast(const A* a, const B* b, Y* y, const Walk walk, u64 packs) {
    const u64 pack = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (pack >= packs) return;
    INDEX rest = (INDEX)pack;
    u64 at_a = 0, at_b = 0;
    for (int axis = (int)walk.axes - 1; axis >= 0; axis--) {
        const INDEX position = rest % walk.extents[axis];
        rest /= walk.extents[axis];
        at_a += position * walk.a[axis], at_b += position * walk.b[axis];
    }
    float v[VEC], w[VEC];
    if (walk.a_inner) {
        load<VEC>(a + at_a, v);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = to_float(a[at_a]);
    }
    if (walk.b_inner) {
        load<VEC>(b + at_b, w);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) w[i] = to_float(b[at_b]);
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = combine(v[i], w[i]);
    store<VEC>(y + pack * VEC, v);
}

// y = factor · a, which with a factor of 1 is a conversion.
extern "C" __global__ void __launch_bounds__(THREADS) scale(const A* a, Y* y, float factor, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (first + VEC <= count) {
        float v[VEC];
        load<VEC>(a + first, v);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] *= factor;
        store<VEC>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y>(factor * to_float(a[i]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) power(const A* a, Y* y, float exponent, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) y[i] = from_float<Y>(powf(to_float(a[i]), exponent));
}

// Numbers around 1 of either sign in both storage types, to time kernels with: zeros would run faster than real data.
extern "C" __global__ void __launch_bounds__(THREADS) noise(uint4* to, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const uint4 words = philox((u32)i, (u32)(i >> 32), 0, 0, 1, 2);
    const u32 keep = 0x80ff80ffu, set = 0x3f003f00u;
    to[i] = make_uint4((words.x & keep) | set, (words.y & keep) | set, (words.z & keep) | set, (words.w & keep) | set);
}
