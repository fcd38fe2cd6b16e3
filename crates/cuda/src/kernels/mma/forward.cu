// out and, unless `lse` is null, the log-sum-exp of every row of scores. The resident tile is queries; keys and values
// are streamed, with an online softmax over their tiles. Compiled after tiles.cu, which describes the macros, the work
// of a block and `item`, and bias.cu.

constexpr int RESIDENT = resident_rows(QUERIES), RESIDENT_TILES = tiles_of(QUERIES);
// Keys of a streamed tile, and their rows in shared memory.
constexpr int N = streamed_rows(KEYS), ROWS = round_up(N, 16), TILES = tiles_of(KEYS);
constexpr int THREADS = RESIDENT * 2;
// Bytes of a pipeline stage: q, k and v.
constexpr int STAGE = (RESIDENT + 2 * ROWS) * PITCH;

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_forward(const bf16* q, const bf16* k, const bf16* v, const B* bias, const u32* seed,
                      bf16* out, float* lse, const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(u8, memory);
    const ThreadPairs<B, THREADS> thread_bias = {(B*)(memory + 2 * STAGE)};
    const BlockWork work(s, RESIDENT_TILES);
    const int begin = work.tile * RESIDENT, warp_row = threadIdx.x / 32 * 16;
    const float scale_log2 = s.scale * LOG2E;

    auto prefetch = [&](u32 item) {
        const u64 sample = work.sample(s, item / TILES);
        const int tile = item % TILES, first = tile * N, end = first + N < KEYS ? first + N : KEYS;
        u8* stage = memory + item % 2 * STAGE;
        if (tile == 0)
            copy_rows_async<RESIDENT, THREADS>(stage, q + sample * QUERIES * s.q_stride + work.head * HEAD_DIM,
                                               s.q_stride, begin, QUERIES);
        copy_rows_async<ROWS, THREADS>(stage + RESIDENT * PITCH, k + sample * KEYS * s.k_stride + work.head * HEAD_DIM,
                                       s.k_stride, first, end);
        copy_rows_async<ROWS, THREADS>(stage + (RESIDENT + ROWS) * PITCH,
                                       v + sample * KEYS * s.v_stride + work.head * HEAD_DIM, s.v_stride, first, end);
    };
    const u32 items = work.count * TILES;
    if (items > 0) prefetch(0);
    if (BIAS) read_bias<N, TILES, THREADS, false>(thread_bias, bias, s, work, begin);

    u32 a[D / 16][4];
    // row_max: of scores times log2(e).
    float sums[D / 8][4], row_max[2], row_sum[2];
    for (u32 item = 0; item < items; item++) {
        cp_async_wait_all();
        __syncthreads();
        if (item + 1 < items) prefetch(item + 1);
        const u64 sample = work.sample(s, item / TILES), first_row = (sample * s.heads + work.head) * QUERIES;
        const int tile = item % TILES;
        const u8* stage = memory + item % 2 * STAGE;
        if (tile == 0) {
            load_a_rows(a, stage, warp_row);
            clear(sums);
            row_max[0] = row_max[1] = -INFINITY, row_sum[0] = row_sum[1] = 0.0f;
        }
        float w[N / 8][4];
        multiply_rows<N>(w, a, stage + RESIDENT * PITCH);
        float new_max[2] = {row_max[0], row_max[1]};
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float pair[2] = {0.0f, 0.0f};
                if (BIAS) thread_bias.get((tile * N / 8 + n) * 2 + half, pair);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& x = w[n][2 * half + i];
                    x = x * scale_log2 + pair[i] * LOG2E;
                    // With one tile, N is KEYS rounded up to 8: only the last 8 columns can lie past the last key.
                    if ((TILES > 1 || n == N / 8 - 1) && tile * N + column_of(n, i) >= KEYS) x = -INFINITY;
                    new_max[half] = fmaxf(new_max[half], x);
                }
            }
        float shift[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            new_max[half] = quad_max(new_max[half]);
            // A bias of -inf may have masked every key so far; -inf - -inf would be NaN.
            shift[half] = new_max[half] == -INFINITY ? 0.0f : new_max[half];
            const float rescale = exp2_approx(row_max[half] - shift[half]);
            row_max[half] = new_max[half];
            row_sum[half] *= rescale;
            if (TILES > 1)
#pragma unroll
                for (int n = 0; n < D / 8; n++) sums[n][2 * half] *= rescale, sums[n][2 * half + 1] *= rescale;
        }
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                w[n][i] = exp2_approx(w[n][i] - shift[i / 2]);
                row_sum[i / 2] += w[n][i];
                if (DROPOUT)
                    w[n][i] *= dropout_factor(mask, seed, first_row, begin + row_of(i), tile * N + column_of(n, i));
            }
        u32 p[ROWS / 16][4];
        pack_a<N>(p, w);
        accumulate<ROWS / 16>(sums, p, stage + (RESIDENT + ROWS) * PITCH);

        if (tile == TILES - 1) {
            row_sum[0] = quad_sum(row_sum[0]), row_sum[1] = quad_sum(row_sum[1]);
            store_rows(sums, out + sample * QUERIES * s.out_stride + work.head * HEAD_DIM, s.out_stride, begin, QUERIES,
                       1.0f / row_sum[0], 1.0f / row_sum[1]);
            const int quad_lane = threadIdx.x % 4, row = begin + row_of(2 * quad_lane);
            if (lse && quad_lane < 2 && row < QUERIES)
                lse[first_row + row] =
                    LN2 * (quad_lane ? row_max[1] + log2_approx(row_sum[1]) : row_max[0] + log2_approx(row_sum[0]));
        }
    }
}
