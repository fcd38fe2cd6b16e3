// Attention in 16 bits on Hopper: softmax(scale * Q K^T) V and its gradient, with wgmma and TMA, warp-specialised as in
// FlashAttention-3 (Shah et al., 2024). Scores are never written to device memory, sums are f32, and there are no
// atomics: two runs give the same bits.
//
// Operands and results are [batch, tokens, heads, HEAD_DIM]; where neither a tensor map nor an argument has the stride
// of tokens, they are dense. lse (natural logarithms) and delta are [batch, heads, queries]. `scale` must be positive:
// the forward pass takes the maxima of unscaled scores.
//
// Blocks are persistent: each computes the work units blockIdx.x, blockIdx.x + gridDim.x, ..., which kernels count as
// `local_unit`. A unit is TILES tiles of 64 rows of one head. A producer warpgroup loads ROWS rows of q, k, v or dout
// at a time by TMA into a ring of SLOTS slots of shared memory (rows past the sample's last token and columns past
// HEAD_DIM are zeros). WARPGROUPS consumer warpgroups compute the tiles in turn; a warp has 16 rows of a tile. Loads
// run ahead as far as there are free slots, so that they overlap with the arithmetic of earlier units. Compiled after
// instructions.cu.
//
// Macros (lower/attention/tiling.rs):
//   HEAD_DIM       a multiple of 8, at most 128
//   ROWS           rows of a slot, a multiple of 16, at most 320
//   TILES          tiles of a unit, TILES * 64 < ROWS + 64
//   WARPGROUPS     consumers; as many as TILES where SINGLE is 0
//   SLOTS          slots of the ring
//   STEP_Q, STEP_K queries per step for dK and dV, keys per step for dQ: they bound the registers
//   BLOCKS_PER_SM  resident blocks of a multiprocessor
//   CONSUMER_REGS, PRODUCER_REGS   registers of a thread (setmaxnreg); 0: as compiled
//   ELEMENT, OUT   storage types of the operands and of the forward result; gradients are compiled for bf16 alone
//   SINGLE         1 where the streamed rows of a unit fit one slot and fill all but at most 15 of its rows; else 0

// The head size with its padding.
constexpr int D = (HEAD_DIM + 15) / 16 * 16;
// A slot is [D / CHUNK][ROWS][CHUNK], swizzled in spans of PITCH bytes, a row of a chunk.
constexpr int CHUNK = D % 64 == 0 ? 64 : D % 32 == 0 ? 32 : 16;
constexpr int PITCH = CHUNK * 2;
constexpr int CHUNK_BYTES = ROWS * PITCH;
constexpr int SLOT_BYTES = ROWS * D * 2;
// A slot is filled by one box of TMA, or by two, since a box has at most 256 rows.
constexpr int BOXES = ROWS > 256 ? 2 : 1;
constexpr int BOX_ROWS = ROWS / BOXES;
// The bytes that the last tile reads past the last slot, for rows whose results are discarded.
constexpr int OVERREAD = TILES * 64 > ROWS ? (TILES * 64 - ROWS) * PITCH : 0;
// Threads of the consumer warpgroups; those of the producer follow.
constexpr int CONSUMERS = WARPGROUPS * 128;
constexpr int THREADS = CONSUMERS + 128;
// The swizzle of 128, 64 or 32 bytes in a wgmma matrix descriptor.
constexpr u32 SWIZZLE = CHUNK == 64 ? 1 : CHUNK == 32 ? 2 : 3;

// The lower word of the wgmma matrix descriptor of an operand at `address`: the address in units of 16 bytes, and the
// leading byte offset, from one chunk to the next (read only for MN-major operands).
static __device__ __forceinline__ u32 descriptor_low(u32 address) {
    return opaque((address & 0x3ffff) >> 4 | (u32)(CHUNK_BYTES >> 4) << 16);
}
// The descriptor `bytes` after that. The upper word has the stride byte offset, between groups of eight rows.
static __device__ __forceinline__ u64 descriptor_at(u32 low, int bytes) {
    constexpr u32 upper = (PITCH * 8 >> 4) | SWIZZLE << 30;
    return (u64)upper << 32 | (low + bytes / 16);
}

// sums[64][N] = A[64][16] B[N][16]^T, or += if `add`, for operands a and b bytes from a_low and b_low, in as few wgmma
// of at most 128 columns as there can be. Callers of this and the next two fence, commit and wait.
template <int N>
static __device__ __forceinline__ void multiply_columns(float *sums, u32 a_low, int a, u32 b_low, int b, bool add) {
    constexpr int PARTS = (N + 127) / 128, FIRST = PARTS == 1 ? N : (N / PARTS + 15) / 16 * 16;
    Wgmma<FIRST>::ss(sums, descriptor_at(a_low, a), descriptor_at(b_low, b), add);
    if constexpr (FIRST < N) multiply_columns<N - FIRST>(sums + FIRST / 2, a_low, a, b_low, b + FIRST * PITCH, add);
}

// sums[64][N] = A[64][D] B[N][D]^T for rows of two slots, from addresses a and b on.
template <int N> static __device__ __forceinline__ void multiply_rows(float *sums, u32 a, u32 b) {
    const u32 a_low = descriptor_low(a), b_low = descriptor_low(b);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        const int k_offset = k / CHUNK * CHUNK_BYTES + k % CHUNK * 2;
        multiply_columns<N>(sums, a_low, k_offset, b_low, k_offset, k > 0);
    }
}

// sums[64][D] += A[64][K] B[K][D], or = if `first`, for A in registers and B rows of a slot from address b on.
template <int K> static __device__ __forceinline__ void accumulate(float *sums, const u32 *a, u32 b, bool first) {
    const u32 b_low = descriptor_low(b);
#pragma unroll
    for (int k = 0; k < K; k += 16) Wgmma<D>::rs(sums, a + k / 4, descriptor_at(b_low, k * PITCH), k > 0 || !first);
}

// A slot, and how often it was filled before: the parity of `round` is the phase of its mbarriers.
struct SlotUse {
    u32 slot, round;
};

// Use number `use` of all slots in round-robin order.
static __device__ __forceinline__ SlotUse round_robin(u32 use) { return {use % SLOTS, use / SLOTS}; }

// The slots of the operands of a unit: RESIDENT operands, which the unit reads until its end, and pairs of streamed
// operands. With one pair (SINGLE), all slots are used round-robin, so that the next unit is prefetched early. With
// more pairs, resident operands have separate slots: a pair in a resident operand's slot would wait for the end of the
// unit, and the unit for the pair.
template <int RESIDENT> struct SlotSchedule {
    static __device__ __forceinline__ SlotUse resident(u32 local_unit, u32 operand) {
        if (SINGLE) return round_robin(local_unit * (RESIDENT + 2) + operand);
        return {operand, local_unit};
    }
    static __device__ __forceinline__ SlotUse streamed(u32 local_unit, u32 pairs, u32 pair, u32 operand) {
        if (SINGLE) return round_robin(local_unit * (RESIDENT + 2) + RESIDENT + operand);
        const u32 use = (local_unit * pairs + pair) * 2 + operand;
        return {RESIDENT + use % (SLOTS - RESIDENT), use / (SLOTS - RESIDENT)};
    }
};

// The slots with their full and empty mbarriers, 8 bytes each, by their addresses in shared memory.
struct Ring {
    u32 slots, full, empty;

    __device__ __forceinline__ u32 address(SlotUse use) const { return slots + use.slot * SLOT_BYTES; }
    // Waits until the slot is filled.
    __device__ __forceinline__ void wait(SlotUse use) const { mbarrier_wait(full + use.slot * 8, use.round & 1); }
    // Each warp that reads a slot calls this once when it is done.
    __device__ __forceinline__ void release(SlotUse use) const {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + use.slot * 8);
    }
    // Fills the slot with ROWS rows of a head, from `row` on, as soon as it is empty. Called by one thread.
    __device__ __forceinline__ void load(SlotUse use, const TensorMap *map, int sample, int head, int row) const {
        mbarrier_wait(empty + use.slot * 8, (use.round & 1) ^ 1);
        mbarrier_expect_tx(full + use.slot * 8, SLOT_BYTES);
#pragma unroll
        for (int c = 0; c < D; c += CHUNK)
#pragma unroll
            for (int box = 0; box < BOXES; box++)
                tma_load(address(use) + c / CHUNK * CHUNK_BYTES + box * BOX_ROWS * PITCH, map, full + use.slot * 8, c,
                         head, row + box * BOX_ROWS, sample);
    }
};

// Shared memory: the slots, room for reads past the last, two stages of statistics, and the mbarriers.
struct SharedMemory {
    Ring ring;
    // [stage][lse · log2(e), delta][ROWS], which warps 1 to 3 of the producer write in kernels that compute dK and dV.
    float *stats;
    u32 stats_full, stats_empty;

    // readers: warps that release a slot before it is empty again; stats_readers likewise for a stage of statistics.
    __device__ __forceinline__ SharedMemory(u32 readers, u32 stats_readers) {
        extern __shared__ unsigned char memory[];
        u32 base = (shared_address(memory) + 1023) / 1024 * 1024;
        ring.slots = base;
        u32 stats_address = base + SLOTS * SLOT_BYTES + OVERREAD;
        stats = (float *)(memory + (stats_address - shared_address(memory)));
        ring.full = stats_address + 16 * ROWS;
        ring.empty = ring.full + 8 * SLOTS;
        stats_full = ring.empty + 8 * SLOTS;
        stats_empty = stats_full + 16;
        if (threadIdx.x == 0) {
            for (int s = 0; s < SLOTS; s++)
                mbarrier_init(ring.full + 8 * s, 1), mbarrier_init(ring.empty + 8 * s, readers);
            for (int s = 0; s < 2; s++)
                mbarrier_init(stats_full + 8 * s, 3), mbarrier_init(stats_empty + 8 * s, stats_readers);
            mbarrier_init_fence();
        }
        __syncthreads();
    }
};

// Stores the sums of this warp's rows from row0 on, as far as they are below `rows`, eight columns at a time: those of
// row row0 + lane / 4 times factor0, those of row row0 + lane / 4 + 8 times factor1. `to` is row 0. As ELEMENT, or
// as e4m3 if T is.
template <class T>
static __device__ __forceinline__ void store_rows(const float *sums, T *to, i64 stride, int row0, int rows,
                                                  float factor0, float factor1) {
    const int quad_lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + threadIdx.x % 32 / 4 + 8 * half;
        const float factor = half ? factor1 : factor0;
#pragma unroll
        for (int first = 0; first < D / 8; first += 4) {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int element = (first + i) * 4 + 2 * half;
                const float a = first + i < D / 8 ? sums[element] * factor : 0.0f,
                            b = first + i < D / 8 ? sums[element + 1] * factor : 0.0f;
                w[i] = sizeof(T) == 1 ? pack_e4m3(a, b) : pack_pair<ELEMENT>(a, b);
            }
            quad_transpose(w);
            if (row < rows && (first + quad_lane) * 8 < HEAD_DIM) {
                T *address = to + row * stride + (first + quad_lane) * 8;
                if (sizeof(T) == 1) *(uint2 *)address = make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
                else *(uint4 *)address = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    }
}

// The dot product of a row of out and of dout, both bf16, by the quad of the row. All lanes of the warp must call it.
static __device__ __forceinline__ float row_dot(const u16 *a, const u16 *b) {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < HEAD_DIM; c += 32) {
        const int column = c + threadIdx.x % 4 * 8;
        if (column < HEAD_DIM) {
            uint4 x = *(const uint4 *)(a + column), y = *(const uint4 *)(b + column);
            sum += lower_half(x.x) * lower_half(y.x) + upper_half(x.x) * upper_half(y.x) +
                   lower_half(x.y) * lower_half(y.y) + upper_half(x.y) * upper_half(y.y);
            sum += lower_half(x.z) * lower_half(y.z) + upper_half(x.z) * upper_half(y.z) +
                   lower_half(x.w) * lower_half(y.w) + upper_half(x.w) * upper_half(y.w);
        }
    }
    return quad_sum(sum);
}

static __device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }
