// dq, dk, dv and dbias where queries and keys are one tile each, so that all operands are read once. Each warp has 16
// queries, for dq and dbias, and then 16 keys, for dk and dv; in between, weights and gradients of scores pass through
// shared memory. Compiled after tiles.cu, which describes the macros, the work of a block and `item`, and bias.cu.

constexpr int RESIDENT = resident_rows(QUERIES);
// Keys, and their rows in shared memory.
constexpr int N = streamed_rows(KEYS), ROWS = round_up(N, 16);
constexpr int THREADS = (RESIDENT > ROWS ? RESIDENT : ROWS) * 2;
// Bytes of a pipeline stage: q, dy, k and v.
constexpr int STAGE = 2 * (RESIDENT + ROWS) * PITCH;
// Bytes of a row, and of the whole, of the matrices [queries][keys] in shared memory.
constexpr int SCORES_PITCH = ROWS * 2 + 16, SCORES_BYTES = RESIDENT * SCORES_PITCH;

// Columns key0 .. key0 + 15 of a matrix [queries][keys], transposed, as A operands [16 keys][16 queries].
static __device__ __forceinline__ void load_a_columns(u32 (&a)[RESIDENT / 16][4], const u8* scores, int key0) {
    const int lane = threadIdx.x % 32;
    const u8* address = scores + (lane % 8 + lane / 16 * 8) * SCORES_PITCH + (key0 + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int k = 0; k < RESIDENT / 16; k++) ldmatrix_x4_trans(a[k], address + k * 16 * SCORES_PITCH);
}

// Stores this warp's rows, given as A operands, of a matrix [queries][keys].
static __device__ __forceinline__ void store_scores(const u32 (&a)[ROWS / 16][4], u8* scores) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(u32*)(scores + row_of(2 * half) * SCORES_PITCH + column_of(n, 0) * 2) = a[n / 2][n % 2 * 2 + half];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward(const bf16* q, const bf16* k, const bf16* v, const B* bias, const u32* seed,
                       const bf16* dy, const float* lse, bf16* dq, bf16* dk, bf16* dv, float* dbias,
                       const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(u8, memory);
    u8 *weights = memory + 2 * STAGE, *dscores = weights + SCORES_BYTES;
    const ThreadPairs<B, THREADS> thread_bias = {(B*)(dscores + SCORES_BYTES)};
    const BlockWork work(s, 1);
    const int warp_row = threadIdx.x / 32 * 16;
    const bool has_queries = warp_row < QUERIES, has_keys = warp_row < KEYS;
    const float scale_log2 = s.scale * LOG2E;

    float next_lse[2] = {0.0f, 0.0f};
    auto prefetch = [&](u32 item) {
        const u64 sample = work.sample(s, item);
        u8* stage = memory + item % 2 * STAGE;
        const u32 column = work.head * HEAD_DIM;
        copy_rows_async<RESIDENT, THREADS>(stage, q + sample * QUERIES * s.q_stride + column, s.q_stride, 0, QUERIES);
        copy_rows_async<RESIDENT, THREADS>(stage + RESIDENT * PITCH, dy + sample * QUERIES * s.out_stride + column,
                                           s.out_stride, 0, QUERIES);
        copy_rows_async<ROWS, THREADS>(stage + 2 * RESIDENT * PITCH, k + sample * KEYS * s.k_stride + column,
                                       s.k_stride, 0, KEYS);
        copy_rows_async<ROWS, THREADS>(stage + (2 * RESIDENT + ROWS) * PITCH, v + sample * KEYS * s.v_stride + column,
                                       s.v_stride, 0, KEYS);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row_of(2 * half) < QUERIES)
                next_lse[half] = lse[(sample * s.heads + work.head) * QUERIES + row_of(2 * half)];
    };
    if (work.count > 0) prefetch(0);
    if (BIAS) read_bias<N, 1, THREADS, false>(thread_bias, bias, s, work, 0);
    float bias_sums[N / 8][4];
    if (DBIAS) clear(bias_sums);

    for (u32 item = 0; item < work.count; item++) {
        cp_async_wait_all();
        __syncthreads();
        const float lse_log2[2] = {next_lse[0] * LOG2E, next_lse[1] * LOG2E};
        if (item + 1 < work.count) prefetch(item + 1);
        const u64 sample = work.sample(s, item), first_row = (sample * s.heads + work.head) * QUERIES;
        const u32 column = work.head * HEAD_DIM;
        const u8 *stage_q = memory + item % 2 * STAGE, *stage_dy = stage_q + RESIDENT * PITCH;
        const u8 *stage_k = stage_dy + RESIDENT * PITCH, *stage_v = stage_k + ROWS * PITCH;
        if (has_queries) {
            u32 a[D / 16][4];
            float w[N / 8][4], d[N / 8][4], delta[2] = {0.0f, 0.0f};
            load_a_rows(a, stage_q, warp_row);
            multiply_rows<N>(w, a, stage_k);
            load_a_rows(a, stage_dy, warp_row);
            multiply_rows<N>(d, a, stage_v);
            // delta = rowsum(dy * out) is also rowsum(w * d), for which `out` need not be read.
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float pair[2] = {0.0f, 0.0f};
                    if (BIAS) thread_bias.get(n * 2 + half, pair);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int e = 2 * half + i;
                        w[n][e] = exp2_approx(w[n][e] * scale_log2 + (pair[i] * LOG2E - lse_log2[half]));
                        // N is KEYS rounded up to 8.
                        if (n == N / 8 - 1 && column_of(n, i) >= KEYS) w[n][e] = 0.0f;
                        if (DROPOUT) d[n][e] *= dropout_factor(mask, seed, first_row, row_of(e), column_of(n, e));
                        delta[half] += w[n][e] * d[n][e];
                    }
                }
            delta[0] = quad_sum(delta[0]), delta[1] = quad_sum(delta[1]);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    d[n][e] = w[n][e] * (d[n][e] - delta[e / 2]);
                    if (DBIAS) bias_sums[n][e] += d[n][e];
                    if (DROPOUT) w[n][e] *= dropout_factor(mask, seed, first_row, row_of(e), column_of(n, e));
                }
            u32 p[ROWS / 16][4];
            pack_a<N>(p, w);
            store_scores(p, weights);
            pack_a<N>(p, d);
            store_scores(p, dscores);
            float sums[D / 8][4];
            clear(sums);
            accumulate<ROWS / 16>(sums, p, stage_k);
            store_rows(sums, dq + sample * QUERIES * s.dq_stride + column, s.dq_stride, 0, QUERIES, s.scale, s.scale);
        }
        __syncthreads();
        if (has_keys) {
            u32 a[RESIDENT / 16][4];
            float sums[D / 8][4];
            load_a_columns(a, weights, warp_row);
            clear(sums);
            accumulate<RESIDENT / 16>(sums, a, stage_dy);
            store_rows(sums, dv + sample * KEYS * s.dv_stride + column, s.dv_stride, 0, KEYS, 1.0f, 1.0f);
            load_a_columns(a, dscores, warp_row);
            clear(sums);
            accumulate<RESIDENT / 16>(sums, a, stage_q);
            store_rows(sums, dk + sample * KEYS * s.dk_stride + column, s.dk_stride, 0, KEYS, s.scale, s.scale);
        }
    }
    if (DBIAS && has_queries) {
        float* to = split_partials(dbias, s, work);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (row_of(e) < QUERIES && column_of(n, e) < KEYS)
                    to[row_of(e) * KEYS + column_of(n, e)] = bias_sums[n][e];
    }
}
