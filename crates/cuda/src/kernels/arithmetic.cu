// Elementwise operations of one or two inputs, the latter with broadcasting; conversion between storage types; noise.
//
// FUNCTION: one of the structs in `functions`, which have the names of the graph's operations. A, B, Y: storage types
// of the inputs and the result. VEC: elements of a thread. INDEX: a type that can count the vectors.

#define THREADS 256

// To add a function to the graph's `Unary` or `Binary`: a struct here with its name. The second argument of a function
// of one input is the operation's parameter.
#define ELEMENTWISE(name, value)                                                                                       \
    struct name {                                                                                                      \
        static __device__ __forceinline__ float of(float a, float b) { return value; }                                 \
    }
namespace functions {
ELEMENTWISE(add, a + b);
ELEMENTWISE(sub, a - b);
ELEMENTWISE(mul, a * b);
ELEMENTWISE(scale, b * a);
ELEMENTWISE(power, powf(a, b));
ELEMENTWISE(sqrt, sqrtf(a));
ELEMENTWISE(sqrt_derivative, a == 0.0f ? 0.0f : 0.5f / sqrtf(a));
ELEMENTWISE(exp, expf(a));
ELEMENTWISE(at_most, a > b ? b : a);
ELEMENTWISE(at_most_derivative, a > b ? 0.0f : a != a ? a : 1.0f);
} // namespace functions

__device__ __forceinline__ float combine(float a, float b) { return functions::FUNCTION::of(a, b); }

// y[i] = f(a[i], parameter). With `scale` by 1 it converts from A to Y.
extern "C" __global__ void __launch_bounds__(THREADS) elementwise(const A* a, Y* y, float parameter, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    map_vector<VEC>(a, y, first, count, [=](float v) { return combine(v, parameter); });
}

// y[i] = f(a[i], b[i]).
extern "C" __global__ void __launch_bounds__(THREADS) elementwise2(const A* a, const B* b, Y* y, u64 count) {
    const u64 first = ((u64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    map_vectors<VEC>(a, b, y, first, count, combine);
}

// The strides of two operands, in elements, over the axes of the result, of which the innermost counts vectors.
struct BroadcastStrides {
    u32 axes;
    // Within a vector: 1 if the operand's elements are consecutive, 0 if all are one element.
    u32 a_inner;
    u32 b_inner;
    u32 extents[8];
    u64 a[8];
    u64 b[8];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise2_broadcast(const A* a, const B* b, Y* y, const BroadcastStrides strides, u64 vectors) {
    const u64 vector = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (vector >= vectors) return;
    INDEX rest = (INDEX)vector;
    u64 offset_a = 0, offset_b = 0;
    for (int axis = (int)strides.axes - 1; axis >= 0; axis--) {
        const INDEX coordinate = rest % strides.extents[axis];
        rest /= strides.extents[axis];
        offset_a += coordinate * strides.a[axis], offset_b += coordinate * strides.b[axis];
    }
    float v[VEC], w[VEC];
    load_or_repeat<VEC>(a + offset_a, strides.a_inner, v);
    load_or_repeat<VEC>(b + offset_b, strides.b_inner, w);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = combine(v[i], w[i]);
    store<VEC>(y + vector * VEC, v);
}

// Fills memory with values of magnitude around 1 and either sign, whether read as f32 or bf16: matrix products of zeros
// would be timed as faster than those of real data.
extern "C" __global__ void __launch_bounds__(THREADS) noise(uint4* to, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const uint4 words = philox((u32)i, (u32)(i >> 32), 0, 0, 1, 2);
    // Per 16 bits, keeps the sign and the lower 8 bits and sets the exponent to -1 or 0.
    const u32 keep = 0x80ff80ffu, set = 0x3f003f00u;
    to[i] = make_uint4((words.x & keep) | set, (words.y & keep) | set, (words.z & keep) | set, (words.w & keep) | set);
}
