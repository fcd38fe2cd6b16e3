// The resident tile is queries; keys and values are streamed, with an online softmax over their tiles.

constexpr int OWN = own_rows(QUERIES), OWN_TILES = tiles_of(QUERIES);
constexpr int N = passing_rows(KEYS), ROWS = round_up(N, 16), TILES = tiles_of(KEYS);
constexpr int THREADS = OWN * 2;
constexpr int STAGE = (OWN + 2 * ROWS) * PITCH;

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_forward(const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const B* bias, const u32* seed,
                      ELEMENT* out, float* lse, const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(u8, memory);
    const ThreadPairs<B, THREADS> own_bias = {(B*)(memory + 2 * STAGE)};
    const BlockWork work(s, OWN_TILES);
    const int begin = work.tile * OWN, warp_row = threadIdx.x / 32 * 16;
    const float factor = s.scale * LOG2E;

    auto prefetch = [&](u32 item) {
        const u64 sample = work.sample(s, item / TILES);
        const int tile = item % TILES, first = tile * N, end = first + N < KEYS ? first + N : KEYS;
        u8* stage = memory + item % 2 * STAGE;
        if (tile == 0)
            copy_rows_async<OWN, THREADS>(stage, q + sample * QUERIES * s.q_row + work.head * HEAD, s.q_row, begin,
                                          QUERIES);
        copy_rows_async<ROWS, THREADS>(stage + OWN * PITCH, k + sample * KEYS * s.k_row + work.head * HEAD, s.k_row,
                                       first, end);
        copy_rows_async<ROWS, THREADS>(stage + (OWN + ROWS) * PITCH, v + sample * KEYS * s.v_row + work.head * HEAD,
                                       s.v_row, first, end);
    };
    const u32 items = work.count * TILES;
    if (items > 0) prefetch(0);
    if (BIAS) read_bias<N, TILES, THREADS, false>(own_bias, bias, s, work, begin);

    u32 a[D / 16][4];
    float sums[D / 8][4], top[2], total[2];
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
            top[0] = top[1] = -INFINITY, total[0] = total[1] = 0.0f;
        }
        float w[N / 8][4];
        multiply_rows<N>(w, a, stage + OWN * PITCH);
        float best[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float pair[2] = {0.0f, 0.0f};
                if (BIAS) own_bias.get((tile * N / 8 + n) * 2 + half, pair);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& x = w[n][2 * half + i];
                    x = x * factor + pair[i] * LOG2E;
                    // With one tile, only the last columns can lie past the last key.
                    if ((TILES > 1 || n == N / 8 - 1) && tile * N + column_of(n, i) >= KEYS) x = -INFINITY;
                    best[half] = fmaxf(best[half], x);
                }
            }
        float shift[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            best[half] = quad_max(best[half]);
            // A bias of -inf may have masked every key so far.
            shift[half] = best[half] == -INFINITY ? 0.0f : best[half];
            const float shrink = exp2_fast(top[half] - shift[half]);
            top[half] = best[half];
            total[half] *= shrink;
            if (TILES > 1)
#pragma unroll
                for (int n = 0; n < D / 8; n++) sums[n][2 * half] *= shrink, sums[n][2 * half + 1] *= shrink;
        }
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                w[n][i] = exp2_fast(w[n][i] - shift[i / 2]);
                total[i / 2] += w[n][i];
                if (DROPOUT)
                    w[n][i] *= dropout_factor(mask, seed, first_row, begin + row_of(i), tile * N + column_of(n, i));
            }
        u32 p[ROWS / 16][4];
        pack_a<N>(p, w);
        accumulate<ROWS / 16>(sums, p, stage + (OWN + ROWS) * PITCH);

        if (tile == TILES - 1) {
            total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
            store_rows(sums, out + sample * QUERIES * s.out_row + work.head * HEAD, s.out_row, begin, QUERIES,
                       1.0f / total[0], 1.0f / total[1]);
            const int half = threadIdx.x % 4, row = begin + row_of(2 * half);
            if (lse && half < 2 && row < QUERIES)
                lse[first_row + row] = LN2 * (half ? top[1] + log2_fast(total[1]) : top[0] + log2_fast(total[0]));
        }
    }
}
