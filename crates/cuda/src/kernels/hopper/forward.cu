// out [batch, queries, heads, HEAD_DIM], and lse [batch, heads, queries], the log-sum-exp of every row of scores. A
// unit is TILES tiles of queries of one head; keys and values are streamed in blocks of ROWS. out_scale, a
// quantisation scale, and lse may be null. Compiled after tiles.cu, which describes the macros, units and slots.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map, OUT *out, float *lse, const float *out_scale,
                      int batch, int heads, int queries, int keys, float scale) {
    const SharedMemory shared(4 * TILES, 1);
    const Ring ring = shared.ring;
    const int query_groups = ceil_div(ceil_div(queries, 64), TILES), key_blocks = SINGLE ? 1 : ceil_div(keys, ROWS);
    const int units = batch * heads * query_groups;
    using Schedule = SlotSchedule<1>; // Q, then K and V of every block of keys

    if (threadIdx.x >= CONSUMERS) {
        decrease_registers();
        if (threadIdx.x == CONSUMERS) {
            u32 local_unit = 0;
            for (int unit = blockIdx.x; unit < units; unit += gridDim.x, local_unit++) {
                const int sample_head = unit / query_groups, sample = sample_head / heads, head = sample_head % heads;
                ring.load(Schedule::resident(local_unit, 0), &q_map, sample, head, unit % query_groups * TILES * 64);
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
        const float scale_log2 = scale * LOG2E;

        // An item is one tile of a unit. row_max is of unscaled scores.
        for (int item = threadIdx.x / 128;; item += WARPGROUPS) {
            const int local_unit = item / TILES, tile = item % TILES, unit = blockIdx.x + local_unit * gridDim.x;
            if (unit >= units) break;
            const int sample_head = unit / query_groups, sample = sample_head / heads, head = sample_head % heads;
            const int row0 = (unit % query_groups * TILES + tile) * 64 + warp * 16; // of this warp
            const bool active = row0 < queries; // whether this warp has a valid row
            const SlotUse q = Schedule::resident(local_unit, 0);
            ring.wait(q);

            float sums[D / 2], row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0.0f, 0.0f};
            for (int key_block = 0; key_block < key_blocks; key_block++) {
                const SlotUse k = Schedule::streamed(local_unit, key_blocks, key_block, 0),
                              v = Schedule::streamed(local_unit, key_blocks, key_block, 1);
                float s[ROWS / 2];
                ring.wait(k);
                wgmma_fence();
                multiply_rows<ROWS>(s, ring.address(q) + tile * 64 * PITCH, ring.address(k));
                wgmma_commit();
                wgmma_wait<0>();
                fence_accumulators<ROWS / 2>(s);
                ring.release(k);
                if (key_block == key_blocks - 1) ring.release(q);

                u32 p[ROWS / 4];
                float rescale[2];
                const int valid_keys = keys - key_block * ROWS;
#pragma unroll
                for (int i = 0; i < ROWS / 2; i++) {
                    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                    if (!SINGLE || i >= ROWS / 2 - 8)
                        if (column >= valid_keys) s[i] = -INFINITY;
                }
                float shift[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float new_max = s[2 * half];
#pragma unroll
                    for (int i = 0; i < ROWS / 8; i++)
                        new_max = fmaxf(new_max, fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
                    new_max = fmaxf(quad_max(new_max), row_max[half]);
                    shift[half] = -new_max * scale_log2;
                    rescale[half] = exp2_approx(row_max[half] * scale_log2 + shift[half]);
                    row_max[half] = new_max;
                }
                float partial_sum[2] = {0.0f, 0.0f};
#pragma unroll
                for (int i = 0; i < ROWS / 2; i += 2) {
                    const int half = i % 4 / 2;
                    float a = exp2_if(s[i] * scale_log2 + shift[half], active);
                    float b = exp2_if(s[i + 1] * scale_log2 + shift[half], active);
                    partial_sum[half] += a + b;
                    // Accumulators have the order of an A operand: rows lane / 4 and lane / 4 + 8 of eight columns,
                    // then of the next eight.
                    p[i / 2] = pack_pair<ELEMENT>(a, b);
                }
                row_sum[0] = row_sum[0] * rescale[0] + partial_sum[0];
                row_sum[1] = row_sum[1] * rescale[1] + partial_sum[1];
                if (key_block > 0) {
#pragma unroll
                    for (int i = 0; i < D / 2; i++) sums[i] *= rescale[i % 4 / 2];
                }
                ring.wait(v);
                wgmma_fence();
                accumulate<ROWS>(sums, p, ring.address(v), key_block == 0);
                wgmma_commit();
                wgmma_wait<0>();
                fence_accumulators<D / 2>(sums);
                ring.release(v);
            }

            if (active) {
                row_sum[0] = quad_sum(row_sum[0]), row_sum[1] = quad_sum(row_sum[1]);
                const i64 width = (i64)heads * HEAD_DIM;
                const float numerator = out_scale ? *out_scale : 1.0f;
                store_rows(sums, out + sample * queries * width + head * HEAD_DIM, width, row0, queries,
                           numerator / row_sum[0], numerator / row_sum[1]);
                if (lse && lane % 4 < 2) {
                    const int half = lane % 4, row = row0 + lane / 4 + 8 * half;
                    const float lse_log2 = half ? row_max[1] * scale_log2 + log2_approx(row_sum[1])
                                                : row_max[0] * scale_log2 + log2_approx(row_sum[0]);
                    if (row < queries) lse[(i64)sample_head * queries + row] = lse_log2 * LN2;
                }
            }
        }
    }
}
