// dK and dV of a tile of keys from the queries of a slot, in steps. Compiled after tiles.cu.

// A step, from N queries. The scores are computed transposed, so that weights and the gradients of scores are A
// operands of dV += P^T dO and dK += dS^T Q, or = if `first`. These two products are still pending on return.
// `scale_log2` and `lse_log2` are scale and lse times log2(e); dK is still without the scale, which the caller applies
// as it stores. Queries of padding have lse = +inf, so their P is 0; keys of padding are not masked, since their rows
// of dK and dV are not stored. `active`: whether this warp has any key that is not padding.
template <int N>
static __device__ __forceinline__ void step_keys(float *dk, float *dv, u32 k_tile, u32 v_tile, u32 q_rows,
                                                 u32 dout_rows, const float *lse_log2, const float *delta,
                                                 float scale_log2, bool active, bool first) {
    const int lane = threadIdx.x % 32;
    float s[N / 2], dp[N / 2];
    wgmma_fence();
    multiply_rows<N>(s, k_tile, q_rows);
    wgmma_commit();
    multiply_rows<N>(dp, v_tile, dout_rows);
    wgmma_commit();
    wgmma_wait<1>();
    fence_accumulators<N / 2>(s);
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
        const int column = i * 2 + lane % 4 * 2;
        const float2 row_lse = *(const float2 *)(lse_log2 + column);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float score = s[i + j] * scale_log2;
            s[i + j] = exp2_if(score - (j % 2 ? row_lse.y : row_lse.x), active);
        }
    }
    wgmma_wait<0>();
    fence_accumulators<N / 2>(dp);
    if (!first) fence_accumulators<D / 2>(dk), fence_accumulators<D / 2>(dv);
    u32 p[N / 4], ds[N / 4];
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
        const int column = i * 2 + lane % 4 * 2;
        const float2 row_delta = *(const float2 *)(delta + column);
        float weight[4], dscore[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            weight[j] = s[i + j];
            float dweight = dp[i + j];
            dscore[j] = s[i + j] * (dweight - (j % 2 ? row_delta.y : row_delta.x));
        }
        p[i / 2] = pack_bf16(weight[0], weight[1]), p[i / 2 + 1] = pack_bf16(weight[2], weight[3]);
        ds[i / 2] = pack_bf16(dscore[0], dscore[1]), ds[i / 2 + 1] = pack_bf16(dscore[2], dscore[3]);
    }
    wgmma_fence();
    accumulate<N>(dv, p, dout_rows, first);
    accumulate<N>(dk, ds, q_rows, first);
    wgmma_commit();
}

// All queries of one slot, with `stats` [lse · log2(e), delta][ROWS].
static __device__ __forceinline__ void slot_keys(float *dk, float *dv, u32 k_tile, u32 v_tile, u32 q, u32 dout,
                                                 const float *stats, float scale_log2, bool active,
                                                 bool first) {
    constexpr int FULL = ROWS / STEP_Q, REST = ROWS % STEP_Q;
#pragma unroll
    for (int step = 0; step < FULL; step++)
        step_keys<STEP_Q>(dk, dv, k_tile, v_tile, q + step * STEP_Q * PITCH, dout + step * STEP_Q * PITCH,
                          stats + step * STEP_Q, stats + ROWS + step * STEP_Q, scale_log2, active, first && step == 0);
    if constexpr (REST > 0)
        step_keys<REST>(dk, dv, k_tile, v_tile, q + FULL * STEP_Q * PITCH, dout + FULL * STEP_Q * PITCH,
                        stats + FULL * STEP_Q, stats + ROWS + FULL * STEP_Q, scale_log2, active, first && FULL == 0);
}
