// dQ, dK and dV. A unit is one whole head with as many queries as keys; each operand fills one slot. It has TILES items
// of dK and dV (tiles of keys), then TILES items of dQ (tiles of queries). `stats` are lse and delta = rowsum(dout *
// out) of all queries. Compiled after tiles.cu, which describes the macros, units and slots, and both files of steps.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                       const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
                       const u16 *out, const u16 *dout, const float *lse, u16 *dq, u16 *dk, u16 *dv, i64 q_stride,
                       i64 kv_stride, int batch, int heads, int tokens, float scale) {
    const SharedMemory shared(4 * 2 * TILES, 4 * 2 * TILES);
    const Ring ring = shared.ring;
    const int units = batch * heads, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;

    if (threadIdx.x >= CONSUMERS) {
        decrease_registers();
        if (warp == 0) {
            u32 use = 0;
            for (int unit = blockIdx.x; unit < units && lane == 0; unit += gridDim.x) {
                const int sample = unit / heads, head = unit % heads;
                ring.load(round_robin(use++), &k_map, sample, head, 0);
                ring.load(round_robin(use++), &q_map, sample, head, 0);
                ring.load(round_robin(use++), &v_map, sample, head, 0);
                ring.load(round_robin(use++), &dout_map, sample, head, 0);
            }
        } else {
            u32 local_unit = 0;
            for (int unit = blockIdx.x; unit < units; unit += gridDim.x, local_unit++) {
                const i64 width = (i64)heads * HEAD_DIM;
                const i64 start = (i64)(unit / heads) * tokens * width + unit % heads * HEAD_DIM;
                float *stats = shared.stats + local_unit % 2 * 2 * ROWS;
                mbarrier_wait(shared.stats_empty + local_unit % 2 * 8, (local_unit / 2 & 1) ^ 1);
#pragma unroll 2
                for (int row = (warp - 1) * 8 + lane / 4; row < ROWS; row += 24) {
                    const bool valid = row < tokens;
                    const i64 offset = start + (valid ? row : 0) * width;
                    const float delta = row_dot(out + offset, dout + offset);
                    if (lane % 4 == 0) {
                        stats[row] = valid ? lse[(i64)unit * tokens + row] * LOG2E : INFINITY;
                        stats[ROWS + row] = valid ? delta : 0.0f;
                    }
                }
                __syncwarp();
                if (lane == 0) mbarrier_arrive(shared.stats_full + local_unit % 2 * 8);
            }
        }
    } else {
        increase_registers();
        const float scale_log2 = scale * LOG2E;
        for (int item = threadIdx.x / 128;; item += WARPGROUPS) {
            const int local_unit = item / (2 * TILES), item_tile = item % (2 * TILES);
            const int unit = blockIdx.x + local_unit * gridDim.x;
            if (unit >= units) break;
            const int sample = unit / heads, head = unit % heads, tile = item_tile % TILES;
            const int row0 = tile * 64 + warp * 16;
            const bool active = row0 < tokens; // whether this warp has a valid row
            const u32 use = local_unit * 4, k = ring.address(round_robin(use)), q = ring.address(round_robin(use + 1)),
                      v = ring.address(round_robin(use + 2)), dout_slot = ring.address(round_robin(use + 3)),
                      tile_offset = tile * 64 * PITCH;
            const float *stats = shared.stats + local_unit % 2 * 2 * ROWS;
            mbarrier_wait(shared.stats_full + local_unit % 2 * 8, local_unit / 2 & 1);
#pragma unroll
            for (int i = 0; i < 4; i++) ring.wait(round_robin(use + i));
            const i64 column = head * HEAD_DIM;
            if (item_tile < TILES) {
                float sums_k[D / 2], sums_v[D / 2];
                slot_keys(sums_k, sums_v, k + tile_offset, v + tile_offset, q, dout_slot, stats, scale_log2, active,
                          true);
                wgmma_wait<0>();
                fence_accumulators<D / 2>(sums_k), fence_accumulators<D / 2>(sums_v);
#pragma unroll
                for (int i = 0; i < 4; i++) ring.release(round_robin(use + i));
                if (lane == 0) mbarrier_arrive(shared.stats_empty + local_unit % 2 * 8);
                if (active) {
                    const i64 start = sample * tokens * kv_stride + column;
                    store_rows(sums_k, dk + start, kv_stride, row0, tokens, scale, scale);
                    store_rows(sums_v, dv + start, kv_stride, row0, tokens, 1.0f, 1.0f);
                }
            } else {
                float sums[D / 2], lse_log2[2] = {0.0f, 0.0f}, delta[2] = {0.0f, 0.0f};
                if (active) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int row = row0 + lane / 4 + 8 * half;
                        lse_log2[half] = stats[row], delta[half] = stats[ROWS + row];
                    }
                }
                slot_queries(sums, q + tile_offset, dout_slot + tile_offset, k, v, lse_log2, delta, scale_log2, active,
                             true, tokens);
                wgmma_wait<0>();
                fence_accumulators<D / 2>(sums);
#pragma unroll
                for (int i = 0; i < 4; i++) ring.release(round_robin(use + i));
                if (lane == 0) mbarrier_arrive(shared.stats_empty + local_unit % 2 * 8);
                if (active)
                    store_rows(sums, dq + sample * tokens * q_stride + column, q_stride, row0, tokens, scale, scale);
            }
        }
    }
}
