// dk and dv for more than one tile of tokens. The resident tile is keys; queries and dy are streamed, with their
// log-sum-exp and delta. Scores are computed transposed, so that they are A operands of dv = P^T dy and dk = dS^T q.
// Compiled after tiles.cu, which describes the macros, the work of a block and `item`, and bias.cu.

constexpr int RESIDENT = resident_rows(KEYS), RESIDENT_TILES = tiles_of(KEYS);
// Queries of a streamed tile, and their rows in shared memory.
constexpr int N = streamed_rows(QUERIES), ROWS = round_up(N, 16), TILES = tiles_of(QUERIES);
constexpr int THREADS = RESIDENT * 2;
// Bytes of a pipeline stage: k, v, q and dy, then lse and delta of the queries at STATISTICS.
constexpr int STATISTICS = 2 * (RESIDENT + ROWS) * PITCH, STAGE = STATISTICS + 2 * ROWS * 4;

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_keys(const bf16* q, const bf16* k, const bf16* v, const B* bias, const u32* seed,
                            const bf16* dy, const float* lse, const float* delta, bf16* dk, bf16* dv,
                            const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(u8, memory);
    const ThreadPairs<B, THREADS> thread_bias = {(B*)(memory + 2 * STAGE)};
    const BlockWork work(s, RESIDENT_TILES);
    const int begin = work.tile * RESIDENT, warp_row = threadIdx.x / 32 * 16;
    const float scale_log2 = s.scale * LOG2E;
    const u32 column = work.head * HEAD_DIM;

    auto prefetch = [&](u32 item) {
        const u64 sample = work.sample(s, item / TILES), first_row = (sample * s.heads + work.head) * QUERIES;
        const int tile = item % TILES, first = tile * N, end = first + N < QUERIES ? first + N : QUERIES;
        u8* stage = memory + item % 2 * STAGE;
        if (tile == 0) {
            copy_rows_async<RESIDENT, THREADS>(stage, k + sample * KEYS * s.k_stride + column, s.k_stride, begin, KEYS);
            copy_rows_async<RESIDENT, THREADS>(stage + RESIDENT * PITCH, v + sample * KEYS * s.v_stride + column,
                                               s.v_stride, begin, KEYS);
        }
        copy_rows_async<ROWS, THREADS>(stage + 2 * RESIDENT * PITCH, q + sample * QUERIES * s.q_stride + column,
                                       s.q_stride, first, end);
        copy_rows_async<ROWS, THREADS>(stage + (2 * RESIDENT + ROWS) * PITCH,
                                       dy + sample * QUERIES * s.out_stride + column, s.out_stride, first, end);
        float* statistics = (float*)(stage + STATISTICS);
        for (int i = threadIdx.x; i < 2 * ROWS; i += THREADS) {
            const bool valid = first + i % ROWS < end;
            const float* from = i < ROWS ? lse : delta;
            cp_async_4(statistics + i, valid ? from + first_row + first + i % ROWS : from, valid);
        }
    };
    const u32 items = work.count * TILES;
    if (items > 0) prefetch(0);
    if (BIAS) read_bias<N, TILES, THREADS, true>(thread_bias, bias, s, work, begin);

    u32 a_k[D / 16][4], a_v[D / 16][4];
    float sums_k[D / 8][4], sums_v[D / 8][4];
    for (u32 item = 0; item < items; item++) {
        cp_async_wait_all();
        __syncthreads();
        if (item + 1 < items) prefetch(item + 1);
        const u64 sample = work.sample(s, item / TILES), first_row = (sample * s.heads + work.head) * QUERIES;
        const int tile = item % TILES;
        const u8 *stage = memory + item % 2 * STAGE, *stage_q = stage + 2 * RESIDENT * PITCH,
                 *stage_dy = stage_q + ROWS * PITCH;
        const float *row_lse = (const float*)(stage + STATISTICS), *row_delta = row_lse + ROWS;
        if (tile == 0) {
            load_a_rows(a_k, stage, warp_row);
            load_a_rows(a_v, stage + RESIDENT * PITCH, warp_row);
            clear(sums_k);
            clear(sums_v);
        }
        float w[N / 8][4], d[N / 8][4];
        multiply_rows<N>(w, a_k, stage_q);
        multiply_rows<N>(d, a_v, stage_dy);
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float columns_lse[2], columns_delta[2];
            load<2>(row_lse + column_of(n, 0), columns_lse);
            load<2>(row_delta + column_of(n, 0), columns_delta);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float pair[2] = {0.0f, 0.0f};
                if (BIAS) thread_bias.get((tile * N / 8 + n) * 2 + half, pair);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int e = 2 * half + i, query = tile * N + column_of(n, i);
                    float weight = exp2_approx(w[n][e] * scale_log2 + (pair[i] - columns_lse[i]) * LOG2E);
                    // Past the last query or key there is no score.
                    if (query >= QUERIES || begin + row_of(e) >= KEYS) weight = 0.0f;
                    const float dropout =
                        DROPOUT ? dropout_factor(mask, seed, first_row, query, begin + row_of(e)) : 1.0f;
                    w[n][e] = weight * dropout;
                    d[n][e] = weight * (d[n][e] * dropout - columns_delta[i]);
                }
            }
        }
        u32 p[ROWS / 16][4];
        pack_a<N>(p, w);
        accumulate<ROWS / 16>(sums_v, p, stage_dy);
        pack_a<N>(p, d);
        accumulate<ROWS / 16>(sums_k, p, stage_q);
        if (tile == TILES - 1) {
            store_rows(sums_v, dv + sample * KEYS * s.dv_stride + column, s.dv_stride, begin, KEYS, 1.0f, 1.0f);
            store_rows(sums_k, dk + sample * KEYS * s.dk_stride + column, s.dk_stride, begin, KEYS, s.scale, s.scale);
        }
    }
}
