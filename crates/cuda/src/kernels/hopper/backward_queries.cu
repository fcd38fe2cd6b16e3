// dQ, and delta = rowsum(dout * out), which attention_backward_kv reads. A unit is TILES tiles of queries of one head;
// keys and values are streamed. Compiled after tiles.cu, which describes the macros, units and slots, and
// steps_queries.cu.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_backward_q(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                         const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
                         const u16 *out, const u16 *dout, const float *lse, float *delta_out, u16 *dq,
                         i64 q_stride, int batch, int heads, int queries, int keys, float scale) {
    const SharedMemory shared(4 * TILES, 1);
    const Ring ring = shared.ring;
    const int query_groups = ceil_div(ceil_div(queries, 64), TILES), key_blocks = SINGLE ? 1 : ceil_div(keys, ROWS);
    const int units = batch * heads * query_groups;
    using Schedule = SlotSchedule<2>; // Q and dout, then K and V of every block of keys

    if (threadIdx.x >= CONSUMERS) {
        decrease_registers();
        if (threadIdx.x == CONSUMERS) {
            u32 local_unit = 0;
            for (int unit = blockIdx.x; unit < units; unit += gridDim.x, local_unit++) {
                const int sample_head = unit / query_groups, sample = sample_head / heads, head = sample_head % heads;
                const int row = unit % query_groups * TILES * 64;
                ring.load(Schedule::resident(local_unit, 0), &q_map, sample, head, row);
                ring.load(Schedule::resident(local_unit, 1), &dout_map, sample, head, row);
                for (int key_block = 0; key_block < key_blocks; key_block++) {
                    ring.load(Schedule::streamed(local_unit, key_blocks, key_block, 0), &k_map, sample,
                              head, key_block * ROWS);
                    ring.load(Schedule::streamed(local_unit, key_blocks, key_block, 1), &v_map, sample,
                              head, key_block * ROWS);
                }
            }
        }
    } else {
        increase_registers();
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        for (int item = threadIdx.x / 128;; item += WARPGROUPS) {
            const int local_unit = item / TILES, tile = item % TILES, unit = blockIdx.x + local_unit * gridDim.x;
            if (unit >= units) break;
            const int sample_head = unit / query_groups, sample = sample_head / heads, head = sample_head % heads;
            const int row0 = (unit % query_groups * TILES + tile) * 64 + warp * 16;
            const bool active = row0 < queries; // whether this warp has a valid row
            const SlotUse q = Schedule::resident(local_unit, 0), dout_slot = Schedule::resident(local_unit, 1);

            float sums[D / 2], lse_log2[2] = {0.0f, 0.0f}, delta[2] = {0.0f, 0.0f};
            if (active) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = row0 + lane / 4 + 8 * half;
                    const bool valid = row < queries;
                    const i64 offset = ((i64)(sample * queries + (valid ? row : 0)) * heads + head) * HEAD_DIM;
                    delta[half] = row_dot(out + offset, dout + offset);
                    if (valid) lse_log2[half] = lse[(i64)sample_head * queries + row] * LOG2E;
                    if (valid && lane % 4 == 0) delta_out[(i64)sample_head * queries + row] = delta[half];
                }
            }
            ring.wait(q), ring.wait(dout_slot);
            for (int key_block = 0; key_block < key_blocks; key_block++) {
                const SlotUse k = Schedule::streamed(local_unit, key_blocks, key_block, 0),
                              v = Schedule::streamed(local_unit, key_blocks, key_block, 1);
                ring.wait(k), ring.wait(v);
                slot_queries(sums, ring.address(q) + tile * 64 * PITCH, ring.address(dout_slot) + tile * 64 * PITCH,
                             ring.address(k), ring.address(v), lse_log2, delta, scale * LOG2E, active, key_block == 0,
                             keys - key_block * ROWS);
                wgmma_wait<0>();
                fence_accumulators<D / 2>(sums);
                ring.release(k), ring.release(v);
            }
            ring.release(q), ring.release(dout_slot);
            if (active)
                store_rows(sums, dq + (i64)sample * queries * q_stride + head * HEAD_DIM, q_stride, row0, queries,
                           scale, scale);
        }
    }
}
