// Attention in bf16 for up to 256 tokens, with or without bias and dropout, with mma.sync (Ampere and later). Scores
// are never written to device memory, sums are f32, and there are no atomics: two runs give the same bits.
//
// A block has one head, one group of samples that share a bias, and one resident tile of up to 64 queries (or keys), 16
// for each warp. It loops over the samples of its split, so that the bias is read once and its gradient is summed in
// shared memory or registers. For each sample, the keys (or queries) are streamed in tiles, each prefetched into shared
// memory while the one before is multiplied. Compiled after instructions.cu. Kernels number the pairs of sample and
// streamed tile as `item`.
//
// Operands, results and their gradients are [batch, tokens, heads, HEAD_DIM] with a stride for tokens; lse (natural
// logarithms) and delta are [batch, heads, QUERIES]. Of accumulators, `w` are scores and then weights, `d` the
// gradients of weights and then of scores.
//
// Macros (lower/attention/mma.rs):
//   HEAD_DIM       the head size, a multiple of 8, at most 128
//   QUERIES, KEYS  tokens, at most 256
//   B              storage type of the bias
//   BIAS, DROPOUT  1 with a bias, with dropout
//   DBIAS          1 to compute the gradient of the bias

constexpr __device__ int round_up(int n, int to) { return (n + to - 1) / to * to; }
constexpr __device__ int tiles_of(int tokens) { return (tokens + 63) / 64; }
// Tokens are divided evenly among tiles. Those of a resident tile are rounded up to the 16 rows of a warp, those of a
// streamed tile, N, to 8, the n of mma. In shared memory the latter has round_up(N, 16) rows, since N is the k of the
// next product, in steps of 16.
constexpr __device__ int resident_rows(int tokens) {
    return round_up((tokens + tiles_of(tokens) - 1) / tiles_of(tokens), 16);
}
constexpr __device__ int streamed_rows(int tokens) {
    return round_up((tokens + tiles_of(tokens) - 1) / tiles_of(tokens), 8);
}

// The head size with its padding.
constexpr int D = round_up(HEAD_DIM, 16);
// Bytes of a row in shared memory: an odd multiple of 16, so that ldmatrix reads eight rows without bank conflicts.
constexpr int PITCH = D * 2 + 16;

typedef unsigned char u8;

struct AttentionShape {
    u32 heads;
    // Sample b has the bias of group b mod groups.
    u32 groups, batch;
    u32 samples_per_split;
    float scale;
    // From one token to the next, in elements; dy has that of `out`.
    u64 q_stride, k_stride, v_stride, out_stride;
    u64 dq_stride, dk_stride, dv_stride;
};

// A block's head, resident tile, group, and `count` samples from first_sample on, counted within the group.
struct BlockWork {
    u32 head, tile, group, first_sample, count;

    __device__ __forceinline__ BlockWork(const AttentionShape& s, u32 tiles) {
        // Heads are innermost: their rows are adjacent in memory, and their blocks run at the same time.
        u32 rest = blockIdx.x;
        head = rest % s.heads, rest /= s.heads;
        tile = rest % tiles, rest /= tiles;
        group = rest % s.groups;
        first_sample = rest / s.groups * s.samples_per_split;
        const u32 members = s.batch / s.groups;
        count = first_sample >= members                         ? 0
                : first_sample + s.samples_per_split < members ? s.samples_per_split
                                                               : members - first_sample;
    }
    // The index in the batch of sample i of the block.
    __device__ __forceinline__ u64 sample(const AttentionShape& s, u32 i) const {
        return (u64)(first_sample + i) * s.groups + group;
    }
};

// Copies tokens begin .. end - 1 of one head asynchronously into ROWS rows of PITCH bytes, with zeros past the last and
// past HEAD_DIM. `from` points to the head of token 0.
template <int ROWS, int THREADS>
static __device__ __forceinline__ void copy_rows_async(u8* tile, const bf16* from, u64 stride, int begin, int end) {
    constexpr int PACKS = D / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PACKS; i += THREADS) {
        const int r = i / PACKS, c = i % PACKS;
        const bool valid = begin + r < end && c * 8 < HEAD_DIM;
        cp_async_16(tile + r * PITCH + c * 16, valid ? from + (u64)(begin + r) * stride + c * 8 : from, valid);
    }
}

// Rows row0 .. row0 + 15 of a tile as A operands: a[k] has columns 16 k to 16 k + 15.
static __device__ __forceinline__ void load_a_rows(u32 (&a)[D / 16][4], const u8* tile, int row0) {
    const int lane = threadIdx.x % 32;
    const u8* address = tile + (row0 + lane % 16) * PITCH + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < D / 16; k++) ldmatrix_x4(a[k], address + k * 32);
}

// sums[16][N] = A[16][D] tile[N][D]^T. The tile has round_up(N, 16) rows: if N / 8 is odd, 8 more are loaded and not
// used.
template <int N>
static __device__ __forceinline__ void multiply_rows(float (&sums)[N / 8][4], const u32 (&a)[D / 16][4],
                                                     const u8* tile) {
    const int lane = threadIdx.x % 32;
    const u8* address = tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[n][i] = 0.0f;
            if (n + 1 < N / 8) sums[n + 1][i] = 0.0f;
        }
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            u32 b[4];
            ldmatrix_x4(b, address + n * 8 * PITCH + k * 32);
            mma_m16n8k16(sums[n], a[k], b[0], b[1]);
            if (n + 1 < N / 8) mma_m16n8k16(sums[n + 1], a[k], b[2], b[3]);
        }
    }
}

// sums[16][D] += A[16][16 K] tile[16 K][D]. Rows past the tokens add nothing: copy_rows_async makes them 0.
template <int K>
static __device__ __forceinline__ void accumulate(float (&sums)[D / 8][4], const u32 (&a)[K][4], const u8* tile) {
    const int lane = threadIdx.x % 32;
    const u8* address = tile + lane % 16 * PITCH + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 b[4];
            ldmatrix_x4_trans(b, address + k * 16 * PITCH + n * 32);
            mma_m16n8k16(sums[2 * n], a[k], b[0], b[1]);
            mma_m16n8k16(sums[2 * n + 1], a[k], b[2], b[3]);
        }
}

// Accumulators [16][N] as A operands [16][16], with zeros past N; the layouts agree, so no data moves between lanes.
template <int N>
static __device__ __forceinline__ void pack_a(u32 (&a)[(N + 15) / 16][4], const float (&sums)[N / 8][4]) {
#pragma unroll
    for (int n = 0; n < (N + 15) / 16 * 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            a[n / 2][n % 2 * 2 + half] = n < N / 8 ? pack_bf16(sums[n][2 * half], sums[n][2 * half + 1]) : 0;
}

template <int N> static __device__ __forceinline__ void clear(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
}

// The row and the column of element i of a thread's accumulators sums[n] in the block's resident and streamed tile.
static __device__ __forceinline__ int row_of(int i) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8; }
static __device__ __forceinline__ int column_of(int n, int i) { return n * 8 + threadIdx.x % 4 * 2 + i % 2; }

// Stores the sums of this warp's rows of a tile from token `begin` on, as far as they are below `end`, 16 bytes at a
// time: those of row lane / 4 times factor0, those of row lane / 4 + 8 times factor1. `to` is the head of token 0.
static __device__ __forceinline__ void store_rows(const float (&sums)[D / 8][4], bf16* to, u64 stride, int begin,
                                                  int end, float factor0, float factor1) {
    const int quad_lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int token = begin + row_of(2 * half);
        const float factor = half ? factor1 : factor0;
#pragma unroll
        for (int first = 0; first < D / 8; first += 4) {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // Past D any register will do: the lane that it goes to does not store it.
                const int n = first + i < D / 8 ? first + i : 0;
                w[i] = pack_bf16(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
            }
            quad_transpose(w);
            if (token < end && (first + quad_lane) * 8 < HEAD_DIM)
                *(uint4*)(to + (u64)token * stride + (first + quad_lane) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// A value for each score of a thread (its bias, or a sum of its gradient), in pairs of adjacent columns, in shared
// memory where each thread accesses its own alone: [pairs][THREADS][2]. Elements 2 half and 2 half + 1 of accumulators
// sums[n] of a streamed tile are pair (tile * N / 8 + n) * 2 + half.
template <class T, int THREADS> struct ThreadPairs {
    T* memory;

    __device__ __forceinline__ void get(int pair, float (&v)[2]) const {
        load<2>(memory + (pair * THREADS + threadIdx.x) * 2, v);
    }
    __device__ __forceinline__ void set(int pair, const float (&v)[2]) const {
        store<2>(memory + (pair * THREADS + threadIdx.x) * 2, v);
    }
};

// The dropout factor of the weight of key j for query i; 1 without dropout and past the last query or key. first_row is
// the row of query 0 in scores [batch, heads, QUERIES][KEYS], whose elements the mask numbers.
static __device__ __forceinline__ float dropout_factor(const Mask& mask, const u32* seed, u64 first_row, int i, int j) {
    if (!DROPOUT || i >= QUERIES || j >= KEYS) return 1.0f;
    return mask_factor(mask, seed, (first_row + i) * KEYS + j);
}
