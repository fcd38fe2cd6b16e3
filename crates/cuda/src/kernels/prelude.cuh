// What every kernel file starts with: storage types, vector loads, reductions in a fixed order, Philox.
//
// Values are stored as `float`, `bf16`, `f16` or `e4m3` and computed with in f32. Which type an operand has is a macro that
// the file is compiled with, so that one kernel text serves every combination.

typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
// NVRTC has no <math.h>.
#define INFINITY __int_as_float(0x7f800000)
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

// The upper half of a float.
struct bf16 {
    unsigned short bits;
};

// Half precision: 5 bits of exponent, 10 of mantissa.
struct f16 {
    unsigned short bits;
};

// Eight bits: 4 of exponent, 3 of mantissa, no infinities; 448 is the largest. What is stored is the number times a factor
// that belongs to the whole tensor.
struct e4m3 {
    unsigned char bits;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
__device__ __forceinline__ float to_float(f16 v) {
#ifdef __CUDACC__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(v.bits));
    return result;
#else
    return emulated_from_f16(v.bits);
#endif
}
__device__ __forceinline__ float to_float(e4m3 v) {
    const u32 magnitude = v.bits & 0x7fu;
    // The exponent's offset is 7 here and 127 there.
    const float size = magnitude == 0x7fu ? INFINITY - INFINITY : __uint_as_float(magnitude << 20) * 0x1p120f;
    return v.bits & 0x80u ? -size : size;
}

// Rounds two floats to the nearest bf16, ties to even; the first lies in the lower half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
#ifdef __CUDACC__
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return (u32)emulated_bf16(low) | (u32)emulated_bf16(high) << 16;
#endif
}

__device__ __forceinline__ u32 pack_f16(float low, float high) {
#ifdef __CUDACC__
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return (u32)emulated_f16(low) | (u32)emulated_f16(high) << 16;
#endif
}

// The nearest e4m3, ties to even; beyond the largest it is the largest.
__device__ __forceinline__ u32 e4m3_bits(float v) {
    const u32 bits = __float_as_uint(v), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fu;
    if (magnitude >= 0x43e00000u) return sign | 0x7eu; // 448
    // Below 2^-6 steps are 2^-9: as the last bit of a number that large.
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

// max(x, 0), and NaN for NaN, which fmaxf would lose.
__device__ __forceinline__ float relu(float x) {
#ifdef __CUDACC__
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
#else
    return x > 0.0f || x != x ? x : 0.0f;
#endif
}

// dy times the derivative of relu at x; NaN where either is.
__device__ __forceinline__ float relu_grad(float x, float dy) { return x > 0.0f ? dy : relu(x) + (dy - dy); }

// Two numbers of a type with 16 bits; the first lies in the lower half.
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

// What is left of a number that is stored as T and read again.
template <class T> __device__ __forceinline__ float rounded(float v) { return to_float(from_float<T>(v)); }

// e^x and 1 / x by one instruction, with an error of a few units in the last place of an f32.
__device__ __forceinline__ float exp_rough(float x) {
#ifdef __CUDACC__
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
    return r;
#else
    return expf(x);
#endif
}

__device__ __forceinline__ float reciprocal_rough(float x) {
#ifdef __CUDACC__
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return 1.0f / x;
#endif
}

// N neighbours at once; N is 1, 2, 4 or 8, and the address is a multiple of N elements.
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

__device__ __forceinline__ float lower_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float upper_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

template <int N> __device__ __forceinline__ void load(const bf16* from, float (&v)[N]) {
    if (N == 1) {
        v[0] = to_float(*from);
    } else if (N == 2) {
        const u32 pair = *(const u32*)from;
        v[0] = lower_half(pair), v[N - 1] = upper_half(pair);
    } else if (N == 4) {
        const uint2 pairs = *(const uint2*)from;
        v[0] = lower_half(pairs.x), v[1 % N] = upper_half(pairs.x);
        v[2 % N] = lower_half(pairs.y), v[3 % N] = upper_half(pairs.y);
    } else {
        const uint4 pairs = *(const uint4*)from;
        v[0] = lower_half(pairs.x), v[1 % N] = upper_half(pairs.x);
        v[2 % N] = lower_half(pairs.y), v[3 % N] = upper_half(pairs.y);
        v[4 % N] = lower_half(pairs.z), v[5 % N] = upper_half(pairs.z);
        v[6 % N] = lower_half(pairs.w), v[7 % N] = upper_half(pairs.w);
    }
}

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

template <int N> __device__ __forceinline__ void store(bf16* to, const float (&v)[N]) {
    if (N == 1) {
        *to = from_float<bf16>(v[0]);
    } else if (N == 2) {
        *(u32*)to = pack_bf16(v[0], v[N - 1]);
    } else if (N == 4) {
        *(uint2*)to = make_uint2(pack_bf16(v[0], v[1 % N]), pack_bf16(v[2 % N], v[3 % N]));
    } else {
        *(uint4*)to = make_uint4(pack_bf16(v[0], v[1 % N]), pack_bf16(v[2 % N], v[3 % N]),
                                 pack_bf16(v[4 % N], v[5 % N]), pack_bf16(v[6 % N], v[7 % N]));
    }
}

__device__ __forceinline__ void unpack_f16(u32 pair, float& low, float& high) {
    f16 half;
    half.bits = (unsigned short)pair, low = to_float(half);
    half.bits = (unsigned short)(pair >> 16), high = to_float(half);
}

template <int N> __device__ __forceinline__ void load(const f16* from, float (&v)[N]) {
    if (N == 1) {
        v[0] = to_float(*from);
    } else if (N == 2) {
        unpack_f16(*(const u32*)from, v[0], v[N - 1]);
    } else if (N == 4) {
        const uint2 pairs = *(const uint2*)from;
        unpack_f16(pairs.x, v[0], v[1 % N]), unpack_f16(pairs.y, v[2 % N], v[3 % N]);
    } else {
        const uint4 pairs = *(const uint4*)from;
        unpack_f16(pairs.x, v[0], v[1 % N]), unpack_f16(pairs.y, v[2 % N], v[3 % N]);
        unpack_f16(pairs.z, v[4 % N], v[5 % N]), unpack_f16(pairs.w, v[6 % N], v[7 % N]);
    }
}

template <int N> __device__ __forceinline__ void store(f16* to, const float (&v)[N]) {
    if (N == 1) {
        *to = from_float<f16>(v[0]);
    } else if (N == 2) {
        *(u32*)to = pack_f16(v[0], v[N - 1]);
    } else if (N == 4) {
        *(uint2*)to = make_uint2(pack_f16(v[0], v[1 % N]), pack_f16(v[2 % N], v[3 % N]));
    } else {
        *(uint4*)to = make_uint4(pack_f16(v[0], v[1 % N]), pack_f16(v[2 % N], v[3 % N]),
                                 pack_f16(v[4 % N], v[5 % N]), pack_f16(v[6 % N], v[7 % N]));
    }
}

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

// The sum over a block of THREADS threads, known to all of them. Every thread must call it.
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

// Adds up columns over a block, each thread of which has N columns, BESIDE of them beside one another: the sum of column
// threadIdx.x, for the first BESIDE * N threads. Every thread must call it, once per kernel.
template <int BLOCK, int BESIDE, int N> __device__ __forceinline__ float column_sum(const float (&v)[N]) {
    __shared__ float shared[BLOCK][N + 1];
#pragma unroll
    for (int i = 0; i < N; i++) shared[threadIdx.x][i] = v[i];
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < BESIDE * N) {
#pragma unroll 8
        for (int group = 0; group < BLOCK / BESIDE; group++)
            total += shared[group * BESIDE + threadIdx.x / N][threadIdx.x % N];
    }
    return total;
}

// Philox 4x32-10: four random words for one counter and key, as the graph crate defines them.
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

// A dropout mask: `keep_from` is the smallest random word that is kept, `factor` what kept elements are multiplied with.
struct Mask {
    u32 stream;
    u32 keep_from;
    float factor;
};

__device__ __forceinline__ uint4 random_words(const u32* seed, u32 stream, u64 block) {
    return philox((u32)block, stream, seed[2], seed[3], seed[0], seed[1]);
}

__device__ __forceinline__ float mask_factor(const Mask& mask, const u32* seed, u64 index) {
    const uint4 words = random_words(seed, mask.stream, index / 4);
    const u32 at = (u32)(index % 4);
    const u32 word = at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
    return word >= mask.keep_from ? mask.factor : 0.0f;
}
