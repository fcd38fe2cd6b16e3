// dq and dbias for more than one tile of tokens. The resident tile is queries; keys and values are streamed. Also
// writes delta = rowsum(out * dy), which the gradients of all scores of a row contain, for backward_keys.cu. Compiled
// after tiles.cu, which describes the macros, the work of a block and `item`, and bias.cu.

constexpr int RESIDENT = resident_rows(QUERIES), RESIDENT_TILES = tiles_of(QUERIES);
// Keys of a streamed tile, and their rows in shared memory.
constexpr int N = streamed_rows(KEYS), ROWS = round_up(N, 16), TILES = tiles_of(KEYS);
constexpr int THREADS = RESIDENT * 2;
// Bytes of a pipeline stage: q, dy, k and v.
constexpr int STAGE = 2 * (RESIDENT + ROWS) * PITCH;

// A lane's part of the dot product of two rows: every fourth group of 8 columns.
static __device__ __forceinline__ float row_dot(const bf16* a, const bf16* b) {
    float sum = 0.0f;
#pragma unroll
    for (int c = threadIdx.x % 4 * 8; c < HEAD_DIM; c += 32) {
        float x[8], y[8];
        load<8>(a + c, x);
        load<8>(b + c, y);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += x[i] * y[i];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_queries(const bf16* q, const bf16* k, const bf16* v, const B* bias, const u32* seed,
                               const bf16* out, const bf16* dy, const float* lse, float* delta, bf16* dq,
                               float* dbias, const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(u8, memory);
    const ThreadPairs<float, THREADS> bias_sums = {(float*)(memory + 2 * STAGE)};
    const ThreadPairs<B, THREADS> thread_bias = {(B*)(bias_sums.memory + (DBIAS ? TILES * N * RESIDENT : 0))};
    const BlockWork work(s, RESIDENT_TILES);
    const int begin = work.tile * RESIDENT, warp_row = threadIdx.x / 32 * 16;
    const float scale_log2 = s.scale * LOG2E;
    const u32 column = work.head * HEAD_DIM;

    auto prefetch = [&](u32 item) {
        const u64 sample = work.sample(s, item / TILES);
        const int tile = item % TILES, first = tile * N, end = first + N < KEYS ? first + N : KEYS;
        u8* stage = memory + item % 2 * STAGE;
        if (tile == 0) {
            copy_rows_async<RESIDENT, THREADS>(stage, q + sample * QUERIES * s.q_stride + column, s.q_stride, begin,
                                               QUERIES);
            copy_rows_async<RESIDENT, THREADS>(stage + RESIDENT * PITCH, dy + sample * QUERIES * s.out_stride + column,
                                               s.out_stride, begin, QUERIES);
        }
        copy_rows_async<ROWS, THREADS>(stage + 2 * RESIDENT * PITCH, k + sample * KEYS * s.k_stride + column,
                                       s.k_stride, first, end);
        copy_rows_async<ROWS, THREADS>(stage + (2 * RESIDENT + ROWS) * PITCH, v + sample * KEYS * s.v_stride + column,
                                       s.v_stride, first, end);
    };
    const u32 items = work.count * TILES;
    if (items > 0) prefetch(0);
    if (BIAS) read_bias<N, TILES, THREADS, false>(thread_bias, bias, s, work, begin);
    if (DBIAS) {
        const float zeros[2] = {0.0f, 0.0f};
        for (int pair = 0; pair < TILES * N / 4; pair++) bias_sums.set(pair, zeros);
    }

    u32 a_q[D / 16][4], a_dy[D / 16][4];
    float sums[D / 8][4], lse_log2[2], row_delta[2];
    for (u32 item = 0; item < items; item++) {
        cp_async_wait_all();
        __syncthreads();
        if (item + 1 < items) prefetch(item + 1);
        const u64 sample = work.sample(s, item / TILES), first_row = (sample * s.heads + work.head) * QUERIES;
        const int tile = item % TILES;
        const u8 *stage = memory + item % 2 * STAGE, *stage_k = stage + 2 * RESIDENT * PITCH,
                 *stage_v = stage_k + ROWS * PITCH;
        if (tile == 0) {
            load_a_rows(a_q, stage, warp_row);
            load_a_rows(a_dy, stage + RESIDENT * PITCH, warp_row);
            clear(sums);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = begin + row_of(2 * half);
                const u64 offset = (sample * QUERIES + row) * s.out_stride + column;
                lse_log2[half] = row < QUERIES ? lse[first_row + row] * LOG2E : 0.0f;
                row_delta[half] = quad_sum(row < QUERIES ? row_dot(out + offset, dy + offset) : 0.0f);
                if (threadIdx.x % 4 == 0 && row < QUERIES) delta[first_row + row] = row_delta[half];
            }
        }
        float w[N / 8][4], d[N / 8][4];
        multiply_rows<N>(w, a_q, stage_k);
        multiply_rows<N>(d, a_dy, stage_v);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pair_index = (tile * N / 8 + n) * 2 + half;
                float pair[2] = {0.0f, 0.0f};
                if (BIAS) thread_bias.get(pair_index, pair);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int e = 2 * half + i, key = tile * N + column_of(n, i);
                    float weight = exp2_approx(w[n][e] * scale_log2 + (pair[i] * LOG2E - lse_log2[half]));
                    if (key >= KEYS) weight = 0.0f;
                    if (DROPOUT) d[n][e] *= dropout_factor(mask, seed, first_row, begin + row_of(e), key);
                    d[n][e] = weight * (d[n][e] - row_delta[half]);
                }
                if (DBIAS) {
                    bias_sums.get(pair_index, pair);
                    pair[0] += d[n][2 * half], pair[1] += d[n][2 * half + 1];
                    bias_sums.set(pair_index, pair);
                }
            }
        u32 p[ROWS / 16][4];
        pack_a<N>(p, d);
        accumulate<ROWS / 16>(sums, p, stage_k);
        if (tile == TILES - 1)
            store_rows(sums, dq + sample * QUERIES * s.dq_stride + column, s.dq_stride, begin, QUERIES, s.scale,
                       s.scale);
    }
    if (DBIAS) {
        float* to = split_partials(dbias, s, work);
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float pair[2];
                    bias_sums.get((tile * N / 8 + n) * 2 + half, pair);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int row = begin + row_of(2 * half), key = tile * N + column_of(n, i);
                        if (row < QUERIES && key < KEYS) to[row * KEYS + key] = pair[i];
                    }
                }
    }
}
