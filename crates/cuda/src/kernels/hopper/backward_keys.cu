// dK and dV. A unit is TILES tiles of keys of one head; queries and dout are streamed. Reads the delta that
// attention_backward_q wrote. Compiled after tiles.cu, which describes the macros, units and slots, and steps_keys.cu.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_backward_kv(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                          const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
                          const float *lse, const float *delta, u16 *dk, u16 *dv, i64 kv_stride, int batch, int heads,
                          int queries, int keys, float scale) {
    const SharedMemory shared(4 * TILES, 4 * TILES);
    const Ring ring = shared.ring;
    const int key_groups = ceil_div(ceil_div(keys, 64), TILES), query_blocks = SINGLE ? 1 : ceil_div(queries, ROWS);
    const int units = batch * heads * key_groups, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    using Schedule = SlotSchedule<2>; // K and V, then Q and dout of every block of queries

    if (threadIdx.x >= CONSUMERS) {
        decrease_registers();
        if (warp == 0) {
            u32 local_unit = 0;
            for (int unit = blockIdx.x; unit < units && lane == 0; unit += gridDim.x, local_unit++) {
                const int sample_head = unit / key_groups, sample = sample_head / heads, head = sample_head % heads;
                const int row = unit % key_groups * TILES * 64;
                ring.load(Schedule::resident(local_unit, 0), &k_map, sample, head, row);
                ring.load(Schedule::resident(local_unit, 1), &v_map, sample, head, row);
                for (int query_block = 0; query_block < query_blocks; query_block++) {
                    ring.load(Schedule::streamed(local_unit, query_blocks, query_block, 0), &q_map, sample,
                              head, query_block * ROWS);
                    ring.load(Schedule::streamed(local_unit, query_blocks, query_block, 1), &dout_map, sample,
                              head, query_block * ROWS);
                }
            }
        } else {
            u32 stage = 0;
            for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
                const i64 start = (i64)(unit / key_groups) * queries;
                for (int query_block = 0; query_block < query_blocks; query_block++, stage++) {
                    float *stats = shared.stats + stage % 2 * 2 * ROWS;
                    mbarrier_wait(shared.stats_empty + stage % 2 * 8, (stage / 2 & 1) ^ 1);
                    for (int i = (warp - 1) * 32 + lane; i < ROWS; i += 96) {
                        const int row = query_block * ROWS + i;
                        stats[i] = row < queries ? lse[start + row] * LOG2E : INFINITY;
                        stats[ROWS + i] = row < queries ? delta[start + row] : 0.0f;
                    }
                    __syncwarp();
                    if (lane == 0) mbarrier_arrive(shared.stats_full + stage % 2 * 8);
                }
            }
        }
    } else {
        increase_registers();
        for (int item = threadIdx.x / 128;; item += WARPGROUPS) {
            const int local_unit = item / TILES, tile = item % TILES, unit = blockIdx.x + local_unit * gridDim.x;
            if (unit >= units) break;
            const int sample_head = unit / key_groups, sample = sample_head / heads, head = sample_head % heads;
            const int row0 = (unit % key_groups * TILES + tile) * 64 + warp * 16;
            const bool active = row0 < keys; // whether this warp has a valid row
            const SlotUse k = Schedule::resident(local_unit, 0), v = Schedule::resident(local_unit, 1);
            u32 stage = local_unit * query_blocks;

            float sums_k[D / 2], sums_v[D / 2];
            ring.wait(k), ring.wait(v);
            for (int query_block = 0; query_block < query_blocks; query_block++, stage++) {
                const SlotUse q = Schedule::streamed(local_unit, query_blocks, query_block, 0),
                              dout_slot = Schedule::streamed(local_unit, query_blocks, query_block, 1);
                mbarrier_wait(shared.stats_full + stage % 2 * 8, stage / 2 & 1);
                ring.wait(q), ring.wait(dout_slot);
                slot_keys(sums_k, sums_v, ring.address(k) + tile * 64 * PITCH, ring.address(v) + tile * 64 * PITCH,
                          ring.address(q), ring.address(dout_slot), shared.stats + stage % 2 * 2 * ROWS, scale * LOG2E,
                          active, query_block == 0);
                wgmma_wait<0>();
                fence_accumulators<D / 2>(sums_k), fence_accumulators<D / 2>(sums_v);
                ring.release(q), ring.release(dout_slot);
                if (lane == 0) mbarrier_arrive(shared.stats_empty + stage % 2 * 8);
            }
            ring.release(k), ring.release(v);
            if (active) {
                const i64 start = (i64)sample * keys * kv_stride + head * HEAD_DIM;
                store_rows(sums_k, dk + start, kv_stride, row0, keys, scale, scale);
                store_rows(sums_v, dv + start, kv_stride, row0, keys, 1.0f, 1.0f);
            }
        }
    }
}
