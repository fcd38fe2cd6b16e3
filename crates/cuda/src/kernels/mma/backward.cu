// The whole gradient where queries and keys are one tile each, so that all operands are read once. The warps of the
// queries pass weights and gradients of scores to the warps of the keys through shared memory.

constexpr int OWN = own_rows(QUERIES);
constexpr int N = passing_rows(KEYS), ROWS = round_up(N, 16);
constexpr int THREADS = (OWN > ROWS ? OWN : ROWS) * 2;
constexpr int STAGE = 2 * (OWN + ROWS) * PITCH;
// Bytes of a query's row of weights.
constexpr int SQUARE_PITCH = ROWS * 2 + 16, SQUARE = OWN * SQUARE_PITCH;

// Columns key0 .. key0 + 15 of a matrix [queries][keys] as A operands of 16 queries each.
static __device__ __forceinline__ void load_a_columns(u32 (&a)[OWN / 16][4], const u8* square, int key0) {
    const int lane = threadIdx.x % 32;
    const u8* at = square + (lane % 8 + lane / 16 * 8) * SQUARE_PITCH + (key0 + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int k = 0; k < OWN / 16; k++) ldmatrix_x4_trans(a[k], at + k * 16 * SQUARE_PITCH);
}

static __device__ __forceinline__ void store_square(const u32 (&a)[ROWS / 16][4], u8* square) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(u32*)(square + row_of(2 * half) * SQUARE_PITCH + column_of(n, 0) * 2) = a[n / 2][n % 2 * 2 + half];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward(const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const B* bias, const u32* seed,
                       const ELEMENT* dy, const float* lse, ELEMENT* dq, ELEMENT* dk, ELEMENT* dv, float* dbias,
                       const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(u8, memory);
    u8 *weights = memory + 2 * STAGE, *dscores = weights + SQUARE;
    const ThreadPairs<B, THREADS> own_bias = {(B*)(dscores + SQUARE)};
    const BlockWork work(s, 1);
    const int warp_row = threadIdx.x / 32 * 16;
    const bool has_queries = warp_row < QUERIES, has_keys = warp_row < KEYS;
    const float factor = s.scale * LOG2E;

    float next_lse[2] = {0.0f, 0.0f};
    auto prefetch = [&](u32 item) {
        const u64 sample = work.sample(s, item);
        u8* stage = memory + item % 2 * STAGE;
        const u32 column = work.head * HEAD;
        copy_rows_async<OWN, THREADS>(stage, q + sample * QUERIES * s.q_row + column, s.q_row, 0, QUERIES);
        copy_rows_async<OWN, THREADS>(stage + OWN * PITCH, dy + sample * QUERIES * s.out_row + column, s.out_row, 0,
                                      QUERIES);
        copy_rows_async<ROWS, THREADS>(stage + 2 * OWN * PITCH, k + sample * KEYS * s.k_row + column, s.k_row, 0, KEYS);
        copy_rows_async<ROWS, THREADS>(stage + (2 * OWN + ROWS) * PITCH, v + sample * KEYS * s.v_row + column, s.v_row,
                                       0, KEYS);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row_of(2 * half) < QUERIES)
                next_lse[half] = lse[(sample * s.heads + work.head) * QUERIES + row_of(2 * half)];
    };
    if (work.count > 0) prefetch(0);
    if (BIAS) read_bias<N, 1, THREADS, false>(own_bias, bias, s, work, 0);
    float bias_sums[N / 8][4];
    if (DBIAS) clear(bias_sums);

    for (u32 item = 0; item < work.count; item++) {
        cp_async_wait_all();
        __syncthreads();
        const float row_lse[2] = {next_lse[0] * LOG2E, next_lse[1] * LOG2E};
        if (item + 1 < work.count) prefetch(item + 1);
        const u64 sample = work.sample(s, item), first_row = (sample * s.heads + work.head) * QUERIES;
        const u32 column = work.head * HEAD;
        const u8 *stage_q = memory + item % 2 * STAGE, *stage_dy = stage_q + OWN * PITCH;
        const u8 *stage_k = stage_dy + OWN * PITCH, *stage_v = stage_k + ROWS * PITCH;
        if (has_queries) {
            u32 a[D / 16][4];
            float w[N / 8][4], d[N / 8][4], dot[2] = {0.0f, 0.0f};
            load_a_rows(a, stage_q, warp_row);
            multiply_rows<N>(w, a, stage_k);
            load_a_rows(a, stage_dy, warp_row);
            multiply_rows<N>(d, a, stage_v);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float pair[2] = {0.0f, 0.0f};
                    if (BIAS) own_bias.get(n * 2 + half, pair);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int e = 2 * half + i;
                        w[n][e] = exp2_fast(w[n][e] * factor + (pair[i] * LOG2E - row_lse[half]));
                        if (n == N / 8 - 1 && column_of(n, i) >= KEYS) w[n][e] = 0.0f;
                        if (DROPOUT) d[n][e] *= dropout_factor(mask, seed, first_row, row_of(e), column_of(n, e));
                        dot[half] += w[n][e] * d[n][e];
                    }
                }
            dot[0] = quad_sum(dot[0]), dot[1] = quad_sum(dot[1]);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    d[n][e] = w[n][e] * (d[n][e] - dot[e / 2]);
                    if (DBIAS) bias_sums[n][e] += d[n][e];
                    if (DROPOUT) w[n][e] *= dropout_factor(mask, seed, first_row, row_of(e), column_of(n, e));
                }
            u32 p[ROWS / 16][4];
            pack_a<N>(p, w);
            store_square(p, weights);
            pack_a<N>(p, d);
            store_square(p, dscores);
            float sums[D / 8][4];
            clear(sums);
            accumulate<ROWS / 16>(sums, p, stage_k);
            store_rows(sums, dq + sample * QUERIES * s.dq_row + column, s.dq_row, 0, QUERIES, s.scale, s.scale);
        }
        __syncthreads();
        if (has_keys) {
            u32 a[OWN / 16][4];
            float sums[D / 8][4];
            load_a_columns(a, weights, warp_row);
            clear(sums);
            accumulate<OWN / 16>(sums, a, stage_dy);
            store_rows(sums, dv + sample * KEYS * s.dv_row + column, s.dv_row, 0, KEYS, 1.0f, 1.0f);
            load_a_columns(a, dscores, warp_row);
            clear(sums);
            accumulate<OWN / 16>(sums, a, stage_q);
            store_rows(sums, dk + sample * KEYS * s.dk_row + column, s.dk_row, 0, KEYS, s.scale, s.scale);
        }
    }
    if (DBIAS && has_queries) {
        float* to = split_of(dbias, s, work);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (row_of(e) < QUERIES && column_of(n, e) < KEYS)
                    to[row_of(e) * KEYS + column_of(n, e)] = bias_sums[n][e];
    }
}
