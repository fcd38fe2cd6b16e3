// Attention with bias and dropout for up to 256 tokens, in 16 bits, by the tensor cores of every GPU since Ampere. Scores
// never reach device memory, sums are f32, and nothing is added atomically: two runs give the same bits.
//
// A block has one head, one group of samples that share a bias, and a tile of up to 64 tokens of its own; it goes through
// the samples of its share in order. So a bias is read once per block, and its gradient stays with the threads until the
// end. Each warp has 16 of the own tokens; the others pass by in tiles, each brought into shared memory while the one
// before is computed with.
//
// Macros, which `lower/attention/mma.rs` gives:
//   HEAD           the head size, a multiple of 8, at most 128
//   QUERIES, KEYS  tokens, at most 256
//   B              storage of the bias
//   BIAS, DROPOUT  whether there is one
//   DBIAS          whether the gradient of the bias is wanted

constexpr __device__ int round_up(int n, int to) { return (n + to - 1) / to * to; }
constexpr __device__ int tiles_of(int tokens) { return (tokens + 63) / 64; }
// Tokens of a tile of which warps have rows, and of one that passes by.
constexpr __device__ int own_rows(int tokens) { return round_up((tokens + tiles_of(tokens) - 1) / tiles_of(tokens), 16); }
constexpr __device__ int passing_rows(int tokens) { return round_up((tokens + tiles_of(tokens) - 1) / tiles_of(tokens), 8); }

constexpr int D = round_up(HEAD, 16);
// Bytes from one row to the next in shared memory: an odd number of 16, so that eight rows meet all banks.
constexpr int PITCH = D * 2 + 16;

typedef unsigned char Byte;

struct Shape {
    u32 heads;
    // Samples share a bias in groups; sample b has that of group b mod groups.
    u32 groups, batch;
    // Samples that a block goes through.
    u32 share;
    float scale;
    // Elements from one token to the next.
    u64 q_row, k_row, v_row, out_row;
    u64 dq_row, dk_row, dv_row;
};

// What a block has to do.
struct Walk {
    u32 head, tile, group, first, count;

    __device__ __forceinline__ Walk(const Shape& s, u32 tiles) {
        // Heads of a token lie beside one another; their blocks are started together.
        u32 rest = blockIdx.x;
        head = rest % s.heads, rest /= s.heads;
        tile = rest % tiles, rest /= tiles;
        group = rest % s.groups;
        first = rest / s.groups * s.share;
        const u32 members = s.batch / s.groups;
        count = first >= members ? 0 : first + s.share < members ? s.share : members - first;
    }
    __device__ __forceinline__ u64 sample(const Shape& s, u32 i) const { return (u64)(first + i) * s.groups + group; }
};

// Starts to bring tokens begin … end - 1 of one head into ROWS rows of shared memory; zeros where there are no more.
template <int ROWS, int THREADS>
static __device__ __forceinline__ void fetch(Byte* tile, const ELEMENT* from, u64 row, int begin, int end) {
    constexpr int PACKS = D / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PACKS; i += THREADS) {
        const int r = i / PACKS, c = i % PACKS;
        const bool wanted = begin + r < end && c * 8 < HEAD;
        copy_16(tile + r * PITCH + c * 16, wanted ? from + (u64)(begin + r) * row + c * 8 : from, wanted);
    }
}

// Rows row0 … row0 + 15 of a tile as left-hand operands, one for every 16 columns.
static __device__ __forceinline__ void left_rows(u32 (&a)[D / 16][4], const Byte* tile, int row0) {
    const int lane = threadIdx.x % 32;
    const Byte* at = tile + (row0 + lane % 16) * PITCH + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < D / 16; k++) load_matrices(a[k], at + k * 32);
}

// sums[16][N] = A[16][D] tile[N][D]^T
template <int N>
static __device__ __forceinline__ void multiply_rows(float (&sums)[N / 8][4], const u32 (&a)[D / 16][4], const Byte* tile) {
    const int lane = threadIdx.x % 32;
    const Byte* at = tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
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
            load_matrices(b, at + n * 8 * PITCH + k * 32);
            multiply_add(sums[n], a[k], b[0], b[1]);
            if (n + 1 < N / 8) multiply_add(sums[n + 1], a[k], b[2], b[3]);
        }
    }
}

// sums[16][D] += A[16][16 K] tile[16 K][D]
template <int K>
static __device__ __forceinline__ void accumulate(float (&sums)[D / 8][4], const u32 (&a)[K][4], const Byte* tile) {
    const int lane = threadIdx.x % 32;
    const Byte* at = tile + lane % 16 * PITCH + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 b[4];
            load_transposed(b, at + k * 16 * PITCH + n * 32);
            multiply_add(sums[2 * n], a[k], b[0], b[1]);
            multiply_add(sums[2 * n + 1], a[k], b[2], b[3]);
        }
}

// Sums of 16 rows as left-hand operands, one for every 16 columns: a lane has already what it needs.
template <int N>
static __device__ __forceinline__ void left_sums(u32 (&a)[(N + 15) / 16][4], const float (&sums)[N / 8][4]) {
#pragma unroll
    for (int n = 0; n < (N + 15) / 16 * 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            a[n / 2][n % 2 * 2 + half] = n < N / 8 ? pair_of(sums[n][2 * half], sums[n][2 * half + 1]) : 0;
}

template <int N> static __device__ __forceinline__ void clear(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
}

// The row of a tile and the column that element i of sums[n] is.
static __device__ __forceinline__ int row_of(int i) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8; }
static __device__ __forceinline__ int column_of(int n, int i) { return n * 8 + threadIdx.x % 4 * 2 + i % 2; }

static __device__ __forceinline__ float sum_of_four(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

static __device__ __forceinline__ float max_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Writes factor[half] * sums to the rows of this warp that are before `end`, 16 bytes at a time: the four lanes that share a
// row exchange their pairs so that each has eight neighbouring columns.
static __device__ __forceinline__ void store_rows(const float (&sums)[D / 8][4], ELEMENT* to, u64 row, int begin, int end,
                                                  float factor0, float factor1) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int own = begin + row_of(2 * half);
        const float factor = half ? factor1 : factor0;
#pragma unroll
        for (int first = 0; first < D / 8; first += 4) {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int n = first + i < D / 8 ? first + i : 0;
                w[i] = pair_of(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
            }
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const u32 got = __shfl_xor_sync(~0u, t & 1 ? w[i] : w[i + 1], 1);
                if (t & 1) w[i] = got;
                else w[i + 1] = got;
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 got = __shfl_xor_sync(~0u, t & 2 ? w[i] : w[i + 2], 2);
                if (t & 2) w[i] = got;
                else w[i + 2] = got;
            }
            if (own < end && (first + t) * 8 < HEAD)
                *(uint4*)(to + (u64)own * row + (first + t) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// Numbers that belong to the scores of a block, PAIRS pairs for each thread, in shared memory that only this thread uses.
template <class T, int THREADS> struct Own {
    T* memory;

    __device__ __forceinline__ void get(int pair, float (&v)[2]) const {
        load<2>(memory + (pair * THREADS + threadIdx.x) * 2, v);
    }
    __device__ __forceinline__ void set(int pair, const float (&v)[2]) const {
        store<2>(memory + (pair * THREADS + threadIdx.x) * 2, v);
    }
};

// What dropout multiplies the weight of key j for query i with.
static __device__ __forceinline__ float kept(const Mask& mask, const u32* seed, u64 first_row, int i, int j) {
    if (!DROPOUT || i >= QUERIES || j >= KEYS) return 1.0f;
    return mask_factor(mask, seed, (first_row + i) * KEYS + j);
}
