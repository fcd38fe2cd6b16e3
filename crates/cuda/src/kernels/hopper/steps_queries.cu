// dQ of a tile of queries from the keys of a slot, in steps. Compiled after tiles.cu.

// A step, from N keys: dQ += dS K, or = if `first`, still pending on return. `scale_log2` and `lse_log2` are scale and
// lse times log2(e), lse and delta those of this lane's two rows; dQ is still without the scale, which the caller
// applies as it stores. If `masked`, keys from valid_keys on are padding, else none. Queries of padding are not masked,
// since their rows of dQ are not stored. `active`: whether this warp has any query that is not padding.
template <int N>
static __device__ __forceinline__ void step_queries(float *dq, u32 q_tile, u32 dout_tile, u32 k_rows, u32 v_rows,
                                                    const float *lse_log2, const float *delta, float scale_log2,
                                                    bool active, bool first, bool masked, int valid_keys) {
    const int lane = threadIdx.x % 32;
    float s[N / 2], dp[N / 2];
    wgmma_fence();
    multiply_rows<N>(s, q_tile, k_rows);
    wgmma_commit();
    multiply_rows<N>(dp, dout_tile, v_rows);
    wgmma_commit();
    wgmma_wait<1>();
    fence_accumulators<N / 2>(s);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, half = i % 4 / 2;
        float score = s[i] * scale_log2;
        if (masked && (!SINGLE || i >= N / 2 - 8))
            if (column >= valid_keys) score = -INFINITY;
        s[i] = exp2_if(score - lse_log2[half], active);
    }
    wgmma_wait<0>();
    fence_accumulators<N / 2>(dp);
    if (!first) fence_accumulators<D / 2>(dq);
    u32 ds[N / 4];
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        const int half = i % 4 / 2;
        float dscore[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float dweight = dp[i + j];
            dscore[j] = s[i + j] * (dweight - delta[half]);
        }
        ds[i / 2] = pack_bf16(dscore[0], dscore[1]);
    }
    wgmma_fence();
    accumulate<N>(dq, ds, k_rows, first);
    wgmma_commit();
}

// All keys of one slot, of which the first `valid_keys` are valid.
static __device__ __forceinline__ void slot_queries(float *dq, u32 q_tile, u32 dout_tile, u32 k, u32 v,
                                                    const float *lse_log2, const float *delta, float scale_log2,
                                                    bool active, bool first, int valid_keys) {
    constexpr int FULL = ROWS / STEP_K, REST = ROWS % STEP_K;
#pragma unroll
    for (int step = 0; step < FULL; step++)
        step_queries<STEP_K>(dq, q_tile, dout_tile, k + step * STEP_K * PITCH, v + step * STEP_K * PITCH, lse_log2,
                             delta, scale_log2, active, first && step == 0,
                             !SINGLE || (step == FULL - 1 && REST == 0), valid_keys - step * STEP_K);
    if constexpr (REST > 0)
        step_queries<REST>(dq, q_tile, dout_tile, k + FULL * STEP_K * PITCH, v + FULL * STEP_K * PITCH, lse_log2, delta,
                           scale_log2, active, first && FULL == 0, true, valid_keys - FULL * STEP_K);
}
