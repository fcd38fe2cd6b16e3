// The header of every kernel file: storage types, vectorised loads and stores, reductions in a fixed order, Philox.
//
// Values are stored as `float`, `bf16`, `f16` or `e4m3` and computed in f32. The storage types of a kernel's operands
// are macros that its file is compiled with (compile/sources.rs). A template parameter ends in `_` where a kernel file
// is compiled with a macro of that name.

typedef unsigned int u32;
typedef unsigned long long u64;

// NVRTC has no <math.h>.
#define INFINITY __int_as_float(0x7f800000)
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]

// The upper 16 bits of a float.
struct bf16 {
    unsigned short bits;
};

// IEEE half precision: 5 exponent bits, 10 mantissa bits.
struct f16 {
    unsigned short bits;
};

// fp8: 4 exponent bits, 3 mantissa bits, no infinities, at most 448. The stored value is the element times the
// quantisation scale of its tensor. Conversions here are of stored values; kernels apply the scale.
struct e4m3 {
    unsigned char bits;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
__device__ __forceinline__ float to_float(f16 v) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(v.bits));
    return result;
}
__device__ __forceinline__ float to_float(e4m3 v) {
    const u32 magnitude = v.bits & 0x7fu;
    // The exponent bias is 7 in e4m3 and 127 in f32.
    const float absolute = magnitude == 0x7fu ? INFINITY - INFINITY : __uint_as_float(magnitude << 20) * 0x1p120f;
    return v.bits & 0x80u ? -absolute : absolute;
}

// Two floats rounded to nearest, ties to even; `low` is in the lower half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ u32 pack_f16(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// The nearest e4m3, ties to even, in the lowest byte; saturates at 448, also for infinities. NaN stays NaN.
__device__ __forceinline__ u32 e4m3_bits(float v) {
    const u32 bits = __float_as_uint(v), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fu;
    if (magnitude >= 0x43e00000u) return sign | 0x7eu; // 448
    // Subnormals are multiples of 2^-9, the unit in the last place of floats from 2^14 on.
    if (magnitude < 0x3c800000u) return sign | (__float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u);
    return sign | (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20;
}

__device__ __forceinline__ u32 pack_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return e4m3_bits(low) | e4m3_bits(high) << 8;
#endif
}

// max(x, 0); NaN stays NaN, unlike with fmaxf.
__device__ __forceinline__ float relu(float x) {
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

// dy times the derivative of relu at x; NaN where x or dy is.
__device__ __forceinline__ float relu_grad(float x, float dy) { return x > 0.0f ? dy : relu(x) + (dy - dy); }

// Two elements of a 16-bit type; `low` is in the lower half.
template <class T> __device__ __forceinline__ u32 pack_pair(float low, float high);
template <> __device__ __forceinline__ u32 pack_pair<bf16>(float low, float high) { return pack_bf16(low, high); }
template <> __device__ __forceinline__ u32 pack_pair<f16>(float low, float high) { return pack_f16(low, high); }

template <class T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float v) {
    bf16 result;
    result.bits = (unsigned short)pack_bf16(v, 0.0f);
    return result;
}
template <> __device__ __forceinline__ f16 from_float<f16>(float v) {
    f16 result;
    result.bits = (unsigned short)pack_f16(v, 0.0f);
    return result;
}
template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float v) {
    e4m3 result;
    result.bits = (unsigned char)pack_e4m3(v, 0.0f);
    return result;
}

// v after rounding to T.
template <class T> __device__ __forceinline__ float rounded(float v) { return to_float(from_float<T>(v)); }

// For softmax in powers of two: e^x is 2^(x LOG2E), ln x is LN2 log2 x.
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;

// e^x, 2^x, log2 x and 1 / x by the approximate instructions, with relative errors of a few ulp, but two exceptions:
// the error of e^x grows with |x|, since x log2(e) is rounded first; near x = 1 log2 x is exact only to about 2^-22.
__device__ __forceinline__ float exp_approx(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * LOG2E));
    return r;
}

__device__ __forceinline__ float exp2_approx(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float log2_approx(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Vectorised loads and stores of N (1, 2, 4 or 8) consecutive elements; the address must be aligned to N elements.
template <int N> __device__ __forceinline__ void load(const float* from, float (&v)[N]) {
    if (N == 1) {
        v[0] = *from;
    } else if (N == 2) {
        const float2 pair = *(const float2*)from;
        v[0] = pair.x, v[N - 1] = pair.y;
    } else {
#pragma unroll
        for (int i = 0; i + 3 < N; i += 4) {
            const float4 quad = *(const float4*)(from + i);
            v[i] = quad.x, v[i + 1] = quad.y, v[i + 2] = quad.z, v[i + 3] = quad.w;
        }
    }
}

// The two bf16 of a word as floats.
__device__ __forceinline__ float lower_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float upper_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

template <class T> __device__ __forceinline__ void unpack_pair(u32 pair, float& low, float& high);
template <> __device__ __forceinline__ void unpack_pair<bf16>(u32 pair, float& low, float& high) {
    low = lower_half(pair), high = upper_half(pair);
}
template <> __device__ __forceinline__ void unpack_pair<f16>(u32 pair, float& low, float& high) {
    f16 half;
    half.bits = (unsigned short)pair, low = to_float(half);
    half.bits = (unsigned short)(pair >> 16), high = to_float(half);
}

// For bf16 and f16. Indices modulo N keep the branches for other N, which are compiled too, within the array.
template <class T, int N> __device__ __forceinline__ void load_16_bits(const T* from, float (&v)[N]) {
    if (N == 1) {
        v[0] = to_float(*from);
    } else if (N == 2) {
        unpack_pair<T>(*(const u32*)from, v[0], v[N - 1]);
    } else if (N == 4) {
        const uint2 pairs = *(const uint2*)from;
        unpack_pair<T>(pairs.x, v[0], v[1 % N]), unpack_pair<T>(pairs.y, v[2 % N], v[3 % N]);
    } else {
        const uint4 pairs = *(const uint4*)from;
        unpack_pair<T>(pairs.x, v[0], v[1 % N]), unpack_pair<T>(pairs.y, v[2 % N], v[3 % N]);
        unpack_pair<T>(pairs.z, v[4 % N], v[5 % N]), unpack_pair<T>(pairs.w, v[6 % N], v[7 % N]);
    }
}

template <int N> __device__ __forceinline__ void load(const bf16* from, float (&v)[N]) { load_16_bits(from, v); }
template <int N> __device__ __forceinline__ void load(const f16* from, float (&v)[N]) { load_16_bits(from, v); }

template <int N> __device__ __forceinline__ void store(float* to, const float (&v)[N]) {
    if (N == 1) {
        *to = v[0];
    } else if (N == 2) {
        *(float2*)to = make_float2(v[0], v[N - 1]);
    } else {
#pragma unroll
        for (int i = 0; i + 3 < N; i += 4) *(float4*)(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
}

template <class T, int N> __device__ __forceinline__ void store_16_bits(T* to, const float (&v)[N]) {
    if (N == 1) {
        *to = from_float<T>(v[0]);
    } else if (N == 2) {
        *(u32*)to = pack_pair<T>(v[0], v[N - 1]);
    } else if (N == 4) {
        *(uint2*)to = make_uint2(pack_pair<T>(v[0], v[1 % N]), pack_pair<T>(v[2 % N], v[3 % N]));
    } else {
        *(uint4*)to = make_uint4(pack_pair<T>(v[0], v[1 % N]), pack_pair<T>(v[2 % N], v[3 % N]),
                                 pack_pair<T>(v[4 % N], v[5 % N]), pack_pair<T>(v[6 % N], v[7 % N]));
    }
}

template <int N> __device__ __forceinline__ void store(bf16* to, const float (&v)[N]) { store_16_bits(to, v); }
template <int N> __device__ __forceinline__ void store(f16* to, const float (&v)[N]) { store_16_bits(to, v); }

template <int N> __device__ __forceinline__ void load(const e4m3* from, float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = to_float(from[i]);
}

template <int N> __device__ __forceinline__ void store(e4m3* to, const float (&v)[N]) {
    if (N == 1) {
        *to = from_float<e4m3>(v[0]);
    } else if (N == 2) {
        *(unsigned short*)to = (unsigned short)pack_e4m3(v[0], v[N - 1]);
    } else if (N == 4) {
        *(u32*)to = pack_e4m3(v[0], v[1 % N]) | pack_e4m3(v[2 % N], v[3 % N]) << 16;
    } else {
        *(uint2*)to = make_uint2(pack_e4m3(v[0], v[1 % N]) | pack_e4m3(v[2 % N], v[3 % N]) << 16,
                                 pack_e4m3(v[4 % N], v[5 % N]) | pack_e4m3(v[6 % N], v[7 % N]) << 16);
    }
}

// N consecutive elements, or unless `consecutive` one element N times (stride 0).
template <int N, class T>
__device__ __forceinline__ void load_or_repeat(const T* from, bool consecutive, float (&v)[N]) {
    if (consecutive) {
        load<N>(from, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = to_float(*from);
    }
}

// y[i] = f(x[i]) for N elements from `first`, a multiple of N, on, or for fewer if `count` ends before.
template <int N, class X_, class Y_, class F>
__device__ __forceinline__ void map_vector(const X_* x, Y_* y, u64 first, u64 count, F f) {
    if (first + N <= count) {
        float v[N];
        load<N>(x + first, v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = f(v[i]);
        store<N>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y_>(f(to_float(x[i])));
    }
}

// The same with two inputs.
template <int N, class A_, class B_, class Y_, class F>
__device__ __forceinline__ void map_vectors(const A_* a, const B_* b, Y_* y, u64 first, u64 count, F f) {
    if (first + N <= count) {
        float v[N], w[N];
        load<N>(a + first, v);
        load<N>(b + first, w);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = f(v[i], w[i]);
        store<N>(y + first, v);
    } else {
        for (u64 i = first; i < count; i++) y[i] = from_float<Y_>(f(to_float(a[i]), to_float(b[i])));
    }
}

// Splits the innermost coordinate, below `extent`, off a row-major linear index, which keeps the outer ones.
template <class I> __device__ __forceinline__ u32 unravel(I& index, u32 extent) {
    const u32 coordinate = (u32)(index % extent);
    index /= extent;
    return coordinate;
}

// Reductions over a warp, whose lanes must all call them. Maxima, also those of a quad or a block, ignore NaN.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

// Reductions over a quad: the four lanes that share a row of an mma or wgmma accumulator.
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Transposes over a quad: w[i] of lane t becomes what w[t] of lane i was. From an accumulator's 16-bit pairs, columns
// 8 i + 2 t and the next of a row, lane t gets columns 8 t to 8 t + 7, one 16-byte store. All lanes must call it.
__device__ __forceinline__ void quad_transpose(u32 (&w)[4]) {
    const int quad_lane = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 received = __shfl_xor_sync(~0u, quad_lane & 1 ? w[i] : w[i + 1], 1);
        if (quad_lane & 1) w[i] = received;
        else w[i + 1] = received;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 received = __shfl_xor_sync(~0u, quad_lane & 2 ? w[i] : w[i + 2], 2);
        if (quad_lane & 2) w[i] = received;
        else w[i + 2] = received;
    }
}

// The sum over a block of THREADS threads, returned to all of them. Every thread must call it.
template <int THREADS, class T> __device__ __forceinline__ T block_sum(T v) {
    __shared__ T partial[THREADS / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    T total = partial[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; warp++) total += partial[warp];
    __syncthreads();
    return total;
}

template <int THREADS> __device__ __forceinline__ float block_max(float v) {
    __shared__ float partial[THREADS / 32];
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    float largest = partial[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; warp++) largest = fmaxf(largest, partial[warp]);
    __syncthreads();
    return largest;
}

// Column sums over a block of BLOCK threads, [BLOCK / LANES_][LANES_], of which lane l has the N columns from l * N on:
// the first LANES_ * N threads get the sum of column threadIdx.x. Every thread must call it, once per kernel.
template <int BLOCK, int LANES_, int N> __device__ __forceinline__ float column_sum(const float (&v)[N]) {
    __shared__ float shared[BLOCK][N + 1];
#pragma unroll
    for (int i = 0; i < N; i++) shared[threadIdx.x][i] = v[i];
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < LANES_ * N) {
#pragma unroll 8
        for (int group = 0; group < BLOCK / LANES_; group++)
            total += shared[group * LANES_ + threadIdx.x / N][threadIdx.x % N];
    }
    return total;
}

// Philox 4x32-10 (Salmon et al., 2011), as in the graph crate: four random words for a counter and a key.
__device__ __forceinline__ uint4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0, c1 = low1;
        c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// A dropout mask: elements whose random word is at least `keep_from`, rate * 2^32, are kept and multiplied by `factor`,
// 1 / (1 - rate).
struct Mask {
    u32 stream;
    u32 keep_from;
    float factor;
};

// Block number `block` % 2^32 of a random stream, four words. `seed` is the graph's `Seed`: seed and step number, two
// words each.
__device__ __forceinline__ uint4 random_words(const u32* seed, u32 stream, u64 block) {
    return philox((u32)block, stream, seed[2], seed[3], seed[0], seed[1]);
}

// Word number `index` of a random stream.
__device__ __forceinline__ u32 random_word(const u32* seed, u32 stream, u64 index) {
    const uint4 words = random_words(seed, stream, index / 4);
    const u32 word_index = (u32)(index % 4);
    return word_index == 0 ? words.x : word_index == 1 ? words.y : word_index == 2 ? words.z : words.w;
}

// The mask at element `index`: 0 or mask.factor.
__device__ __forceinline__ float mask_factor(const Mask& mask, const u32* seed, u64 index) {
    return random_word(seed, mask.stream, index) >= mask.keep_from ? mask.factor : 0.0f;
}
