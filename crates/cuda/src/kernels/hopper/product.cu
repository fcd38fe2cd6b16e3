// Linear layers around an activation in bf16 on Hopper: the product with everything that an element needs while its sum
// is in registers, so that the widest values of a model are written once and read once.
//
// A block is persistent: it takes tiles blockIdx.x, blockIdx.x + gridDim.x, ... of 128 rows by COLUMNS columns, columns
// first. One thread feeds STAGES stages of shared memory, each 64 elements along k of both operands, by TMA (rows and
// columns past the end arrive as zeros). Two warpgroups multiply 64 rows each. Loads run ahead into the next tile while
// the last one is finished.
//
// Macros:
//   BACKWARD   0: value = activation(a bᵀ + bias) and its argument, for b [n, k]
//              1: result = (a b) · slope of the activation at the argument, and its sums over every 128 rows, for b [k, n]
//   KIND       the activation, as functions.cu has it
//   STAGES     of shared memory

constexpr int TILE_ROWS = 128, COLUMNS = 256, DEPTH = 64;
constexpr int A_BYTES = TILE_ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;

// Operands with rows along k lie as [rows][64], those with rows along n as chunks of [64][64], swizzled over 128 bytes.
constexpr int CHUNK_BYTES = 64 * DEPTH * 2;

// The descriptor of an operand that starts at `address`: eight rows are 1024 bytes apart, chunks CHUNK_BYTES.
static __device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64)(1024 >> 4 | 1u << 30) << 32 | (u64)(CHUNK_BYTES >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// sums[64][128] += A[64][16] B[16][128]; both with rows along k, or b with rows along n.
static __device__ __forceinline__ void multiply(float *sums, u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LIST7 "}, %64, %65, p, 1, 1, 0, %67;\n}"
                 : SUMS7(sums)
                 : "l"(a), "l"(b), "r"(add), "n"(BACKWARD));
}

// The four lanes that share a row exchange words: word i of lane t becomes word t of lane i.
static __device__ __forceinline__ void exchange(u32 (&w)[4]) {
    const int t = threadIdx.x % 4;
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
}

// The place of a block's tile number `tile`.
struct Tile {
    int row, column;
    __device__ __forceinline__ Tile(int tile, int across)
        : row(tile / across * TILE_ROWS), column(tile % across * COLUMNS) {}
};

// Sums of columns over the rows of every warp, for two tiles in turn.
constexpr int SUMS_BYTES = BACKWARD ? 2 * 8 * COLUMNS * 4 : 0;

// `bias` may be missing. Forward, `argument` and `value` are written; backward, `argument` is read, `value` is the result
// and `sums [tiles of rows, n]` is written.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const bf16 *bias,
            bf16 *argument, bf16 *value, float *sums, int m, int n, int k) {
    extern __shared__ unsigned char memory[];
    const u32 base = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 full = base + STAGES * STAGE_BYTES + SUMS_BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, CONSUMERS / 32);
        barrier_init_fence();
    }
    __syncthreads();
    const int across = (n + COLUMNS - 1) / COLUMNS, tiles = (m + TILE_ROWS - 1) / TILE_ROWS * across;
    u32 use = 0; // of stages, one after another

    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x != CONSUMERS) return;
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            const Tile tile(number, across);
            for (int at = 0; at < k; at += DEPTH, use++) {
                const u32 stage = use % STAGES, barrier = full + 8 * stage, to = base + stage * STAGE_BYTES;
                barrier_wait(empty + 8 * stage, (use / STAGES & 1) ^ 1);
                barrier_expect(barrier, STAGE_BYTES);
                tma_load(to, &a_map, barrier, at, 0, tile.row, 0);
                if (!BACKWARD) {
                    tma_load(to + A_BYTES, &b_map, barrier, at, 0, tile.column, 0);
                } else {
#pragma unroll
                    for (int c = 0; c < COLUMNS / 64; c++)
                        tma_load(to + A_BYTES + c * CHUNK_BYTES, &b_map, barrier, tile.column + 64 * c, 0, at, 0);
                }
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
    const u32 own_rows = threadIdx.x / 128 * 64 * 128; // bytes to this warpgroup's rows of a
    u32 turn = 0;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x, turn++) {
        const Tile tile(number, across);
        const int row = tile.row + warp * 16 + lane / 4; // and the eighth after it
        // What the end of a tile reads is asked for early: four packs before the product, the others as these are used.
        uint4 before[2][4];
        const auto ask = [&](int half, int c) {
            const int column = tile.column + 32 * c + 8 * t;
            const bool real = row + 8 * half < m && column < n;
            const bf16 *from = argument + (i64)(row + 8 * half) * n + column;
            before[half][c % 4] = real ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        };
        if (BACKWARD) {
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int c = 0; c < 4; c++) ask(half, c);
        }

        float acc[2][64];
        const int steps = (k + DEPTH - 1) / DEPTH;
        for (int step = 0; step < steps; step++, use++) {
            const u32 stage = use % STAGES, from = base + stage * STAGE_BYTES;
            barrier_wait(full + 8 * stage, use / STAGES & 1);
            const u64 a = descriptor(from + own_rows), b = descriptor(from + A_BYTES);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) {
                const int along_k = 32 * i >> 4, of_b = BACKWARD ? 2048 * i >> 4 : along_k;
                multiply(acc[0], a + along_k, b + of_b, step > 0 || i > 0);
                multiply(acc[1], a + along_k, b + of_b + (2 * CHUNK_BYTES >> 4), step > 0 || i > 0);
            }
            wgmma_commit();
            if (step > 0) {
                wgmma_wait<1>();
                if (lane == 0) barrier_arrive(empty + 8 * ((use - 1) % STAGES));
            }
        }
        wgmma_wait<0>();
        settle<64>(acc[0]);
        settle<64>(acc[1]);
        if (lane == 0) barrier_arrive(empty + 8 * ((use - 1) % STAGES));

        float *shared_sums = (float *)(memory + (base - shared_address(memory)) + STAGES * STAGE_BYTES);
        shared_sums += turn % 2 * 8 * COLUMNS;
#pragma unroll
        for (int c = 0; c < COLUMNS / 32; c++) {
            float added[4][2];
            float2 shift[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column = tile.column + 32 * c + 8 * i + 2 * t;
                shift[i] = make_float2(0.0f, 0.0f);
                if (!BACKWARD && bias && column < n) {
                    const u32 pair = *(const u32 *)(bias + column);
                    shift[i] = make_float2(lower_half(pair), upper_half(pair));
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 w[4], v[4];
                if (BACKWARD) {
                    const uint4 words = before[half][c % 4];
                    w[0] = words.x, w[1] = words.y, w[2] = words.z, w[3] = words.w;
                    if (c + 4 < COLUMNS / 32) ask(half, c + 4);
                    exchange(w);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = (c % 4 * 4 + i) * 4 + 2 * half;
                    float x = acc[c / 4][at], y = acc[c / 4][at + 1];
                    if (BACKWARD) {
                        x *= derivative<bf16>(lower_half(w[i])), y *= derivative<bf16>(upper_half(w[i]));
                        added[i][0] = half ? added[i][0] + x : x, added[i][1] = half ? added[i][1] + y : y;
                    } else {
                        x += shift[i].x, y += shift[i].y;
                        w[i] = pack_bf16(x, y);
                        x = activate<bf16>(x), y = activate<bf16>(y);
                    }
                    v[i] = pack_bf16(x, y);
                }
                exchange(v);
                const int column = tile.column + 32 * c + 8 * t;
                const bool real = row + 8 * half < m && column < n;
                const i64 at = (i64)(row + 8 * half) * n + column;
                if (real) *(uint4 *)(value + at) = make_uint4(v[0], v[1], v[2], v[3]);
                if (!BACKWARD) {
                    exchange(w);
                    if (real) *(uint4 *)(argument + at) = make_uint4(w[0], w[1], w[2], w[3]);
                }
            }
            if (BACKWARD) {
                // Over the warp's rows; rows past the end have a product of zero.
#pragma unroll
                for (int i = 0; i < 4; i++) {
#pragma unroll
                    for (int j = 0; j < 2; j++)
#pragma unroll
                        for (int step = 4; step < 32; step *= 2)
                            added[i][j] += __shfl_xor_sync(~0u, added[i][j], step);
                    if (lane < 4)
                        *(float2 *)(shared_sums + warp * COLUMNS + 32 * c + 8 * i + 2 * t) =
                            make_float2(added[i][0], added[i][1]);
                }
            }
        }
        if (BACKWARD) {
            asm volatile("bar.sync 1, 256;" ::: "memory");
            const int column = tile.column + threadIdx.x;
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < CONSUMERS / 32; i++) total += shared_sums[i * COLUMNS + threadIdx.x];
            if (column < n) sums[(i64)(tile.row / TILE_ROWS) * n + column] = total;
        }
    }
}
