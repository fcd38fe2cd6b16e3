// Rotary position embedding (Su et al., 2021), its tables, and their gradients; random values for its augmentation.
//
// Layouts: x and y [batch, tokens, heads, 2 · pairs]; tables in f32 [groups, tokens - prefix, pairs].
//
// ADJACENT: pairs are channels 2 i and 2 i + 1 of a head of size d, otherwise i and i + d / 2. VEC: pairs of a thread
// in `rotary`, which divides d / 2. INDEX: a type that can count its threads. X, DY, Y: storage types.

#define THREADS 256

struct RotaryExtents {
    u32 tokens;
    // Heads of a token, of which the first `rotated` are rotated: of packed q, k and v, those of q and k.
    u32 heads;
    u32 rotated;
    // Tokens before those with a position.
    u32 prefix;
    // Head j uses group j % groups of the tables.
    u32 groups;
    // d / 2.
    u32 pairs;
    // The first token and the number of heads that `rotary` writes. In place, those that are not rotated are left out.
    u32 first_token;
    u32 written;
    // 1, or -1 to rotate by the negative angles.
    float sign;
};

// VEC pairs from `pair` on are two vectors of VEC channels: the first channel of the first vector in its head, and the
// distance from there to the second vector.
__device__ __forceinline__ u32 first_channel(u32 pair) { return ADJACENT ? 2 * pair : pair; }
__device__ __forceinline__ u32 distance_to_second(u32 pairs) { return ADJACENT ? VEC : pairs; }

// Pair i of the vectors v and w is (channel_a, channel_b). `% VEC` only keeps the index of the operand that is not
// selected within its array.
__device__ __forceinline__ float& channel_a(float (&v)[VEC], float (&w)[VEC], int i) {
    return !ADJACENT ? v[i] : 2 * i < VEC ? v[2 * i % VEC] : w[(2 * i - VEC) % VEC];
}
__device__ __forceinline__ float& channel_b(float (&v)[VEC], float (&w)[VEC], int i) {
    return !ADJACENT ? w[i] : 2 * i + 1 < VEC ? v[(2 * i + 1) % VEC] : w[(2 * i + 1 - VEC) % VEC];
}

// (a, b) to (a cos - b sin, a sin + b cos). A thread has VEC pairs of a head; x and y may be the same.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary(const X* x, const float* __restrict__ cosines, const float* __restrict__ sines, Y* y, const RotaryExtents e,
           u64 count) {
    const u64 index = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    INDEX rest = (INDEX)index;
    const u32 pair = unravel(rest, e.pairs / VEC) * VEC;
    const u32 head = unravel(rest, e.written);
    const u32 token = e.first_token + unravel(rest, e.tokens - e.first_token);
    const u64 offset = (((u64)rest * e.tokens + token) * e.heads + head) * 2 * e.pairs + first_channel(pair);
    const u64 second = offset + distance_to_second(e.pairs);
    float v[VEC], w[VEC];
    load<VEC>(x + offset, v);
    load<VEC>(x + second, w);
    if (token >= e.prefix && head < e.rotated) {
        const u64 entry = ((u64)(head % e.groups) * (e.tokens - e.prefix) + token - e.prefix) * e.pairs + pair;
        float cosine[VEC], sine[VEC];
        load<VEC>(cosines + entry, cosine);
        load<VEC>(sines + entry, sine);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float a = channel_a(v, w, i), b = channel_b(v, w, i), s = e.sign * sine[i];
            channel_a(v, w, i) = a * cosine[i] - b * s;
            channel_b(v, w, i) = a * s + b * cosine[i];
        }
    }
    store<VEC>(y + offset, v);
    store<VEC>(y + second, w);
}

// Pairs of a block of the gradients of tables and frequencies.
#define LANES 32

// dcos = dy_a x_a + dy_b x_b and dsin = sign (dy_b x_a - dy_a x_b), summed over samples and the heads of a group;
// either may be null. A block has one position of one group and LANES pairs; its rows of threads divide the samples.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_grad(const DY* dy, const X* x, float* dcos, float* dsin, const RotaryExtents e, u32 batch) {
    const u32 position = blockIdx.x, group = blockIdx.y, first = blockIdx.z * LANES;
    const u32 pair = first + threadIdx.x % LANES;
    float sums[2] = {};
    if (pair < e.pairs) {
        const u32 a = ADJACENT ? 2 * pair : pair, b = a + (ADJACENT ? 1 : e.pairs);
        for (u32 sample = threadIdx.x / LANES; sample < batch; sample += THREADS / LANES) {
            const u64 token = ((u64)sample * e.tokens + e.prefix + position) * e.heads;
            for (u32 head = group; head < e.rotated; head += e.groups) {
                const u64 offset = (token + head) * 2 * e.pairs;
                const float x_a = to_float(x[offset + a]), x_b = to_float(x[offset + b]);
                const float dy_a = to_float(dy[offset + a]), dy_b = to_float(dy[offset + b]);
                sums[0] += dy_a * x_a + dy_b * x_b;
                sums[1] += e.sign * (dy_b * x_a - dy_a * x_b);
            }
        }
    }
    const float total = column_sum<THREADS, LANES, 2>(sums);
    // Thread 2 i has the sum of dcos of lane i, thread 2 i + 1 that of dsin.
    const u32 summed_pair = first + threadIdx.x / 2;
    float* to = threadIdx.x % 2 ? dsin : dcos;
    if (threadIdx.x < 2 * LANES && summed_pair < e.pairs && to)
        to[((u64)group * (e.tokens - e.prefix) + position) * e.pairs + summed_pair] = total;
}

// Cosines and sines [groups, positions, pairs] of coordinates [positions, axes] · frequencies [axes, groups, pairs];
// either may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_tables(const float* coordinates, const float* frequencies, float* cosines, float* sines, u32 axes,
                  u32 positions, u32 groups, u32 pairs) {
    const u64 index = (u64)blockIdx.x * THREADS + threadIdx.x;
    u64 rest = index;
    const u32 i = unravel(rest, pairs), position = unravel(rest, positions), group = (u32)rest;
    if (group >= groups) return;
    float angle = 0.0f;
    for (u32 axis = 0; axis < axes; axis++)
        angle += coordinates[position * axes + axis] * frequencies[((u64)axis * groups + group) * pairs + i];
    if (cosines) cosines[index] = cosf(angle);
    if (sines) sines[index] = sinf(angle);
}

// The gradient of the frequencies: coordinates · (cos dsin - sin dcos), summed over positions. A block has one axis,
// one group and LANES pairs; its rows of threads divide the positions.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_tables_grad(const float* dcos, const float* dsin, const float* cosines, const float* sines,
                       const float* coordinates, float* dfrequencies, u32 positions, u32 pairs) {
    const u32 axis = blockIdx.x, group = blockIdx.y, first = blockIdx.z * LANES;
    const u32 axes = gridDim.x, groups = gridDim.y, pair = first + threadIdx.x % LANES;
    float sum[1] = {};
    if (pair < pairs) {
        for (u32 position = threadIdx.x / LANES; position < positions; position += THREADS / LANES) {
            const u64 at = ((u64)group * positions + position) * pairs + pair;
            sum[0] += coordinates[position * axes + axis] * (cosines[at] * dsin[at] - sines[at] * dcos[at]);
        }
    }
    const float total = column_sum<THREADS, LANES, 1>(sum);
    if (threadIdx.x < LANES && first + threadIdx.x < pairs)
        dfrequencies[((u64)axis * groups + group) * pairs + first + threadIdx.x] = total;
}

// low + (high - low) · u, with u from the upper 24 bits of a random word.
extern "C" __global__ void __launch_bounds__(THREADS)
    uniform(const u32* seed, float* y, u32 stream, float low, float high, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 word = random_word(seed, stream, i);
    y[i] = __fadd_rn(low, __fmul_rn(high - low, (float)(word >> 8) * 0x1p-24f));
}
