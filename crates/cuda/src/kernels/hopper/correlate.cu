// The gradient of a convolution's filters by implicit GEMM with split-K: for every filter, tap and channel, the sum of
// dy · x over all output pixels. Splits of the pixels are partial sums, which sum_split_k (conv_layout.cu) adds in
// order.
//
// A block of two warpgroups has BLOCK_M filters and BLOCK_N columns (taps and channels). With 128 filters each
// warpgroup has 64 of them; with 64 both have all, and each sums half of the pixels into a separate split.
//
// Compiled after gather.cu, which defines InputTaps, OutputPixels, the tiles and the pipeline.
//
// Macros:
//   BLOCK_M         64 or 128
//   BLOCK_N         128 or 192
//   STAGES          at least 3
//   BLOCKS_PER_SM   resident blocks of a multiprocessor

constexpr int THREADS = 256;
constexpr int TILE_BYTES = 64 * ROW_BYTES;
constexpr int TILES_M = BLOCK_M / 64, TILES_N = BLOCK_N / 64;
constexpr int STAGE_BYTES = (TILES_M + TILES_N) * TILE_BYTES;

// partials [splits, filter_count, columns] from dense dy [pixels, filter_count] and x; columns are [taps, channels]. A
// block sums `steps` times 64 pixels, in stages [TILES_M + TILES_N][64 pixels][64 filters or columns]. Consecutive
// blocks have the same filters and different columns.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    correlate(const bf16 *dy, const bf16 *x, float *partials, const OutputPixels pixels, const InputTaps taps,
              u32 filter_count, u32 columns, u32 steps) {
    DYNAMIC_SHARED(unsigned char, memory);
    const u32 first_stage = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 blocks_n = (columns + BLOCK_N - 1) / BLOCK_N;
    const u32 first_filter = blockIdx.x / blocks_n * BLOCK_M, first_column = blockIdx.x % blocks_n * BLOCK_N;
    const u32 row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const u32 swizzled = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
    u32 next_pixel = blockIdx.y * steps * 64 + row;

    // The offsets of this thread's columns from a pixel's first tap: in input pixels down and across, and in elements.
    int shift_y[TILES_N], shift_x[TILES_N], shift[TILES_N];
#pragma unroll
    for (int n = 0; n < TILES_N; n++) {
        const u32 column = first_column + n * 64 + chunk * 8, tap = column / taps.channels;
        const u32 tap_y = tap / taps.taps_x, tap_x = tap - tap_y * taps.taps_x;
        shift_y[n] = column < columns ? (int)tap_y * taps.tap_step_y : OUTSIDE;
        shift_x[n] = (int)tap_x * taps.tap_step_x;
        shift[n] = (int)tap_y * taps.tap_step_y * (int)taps.row_stride + shift_x[n] * (int)taps.column_stride +
                   (int)(column - tap * taps.channels);
    }
    const u32 filter = first_filter + chunk * 8;

    auto load_stage = [&](u32 stage) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 to = stage + swizzled + i * 32 * ROW_BYTES, index = next_pixel + i * 32;
            const bool inside = index < pixels.count;
#pragma unroll
            for (int m = 0; m < TILES_M; m++) {
                const bool valid = inside && filter + m * 64 < filter_count;
                cp_async_cg(to + m * TILE_BYTES, dy + (valid ? (u64)index * filter_count + filter + m * 64 : 0), valid);
            }
            const FirstTap start = first_tap_of(index, pixels, taps);
#pragma unroll
            for (int n = 0; n < TILES_N; n++) {
                const bool valid =
                    (u32)(start.y + shift_y[n]) < taps.height && (u32)(start.x + shift_x[n]) < taps.width;
                cp_async_ca(to + (TILES_M + n) * TILE_BYTES, x + (valid ? start.offset + shift[n] : 0), valid);
            }
        }
        next_pixel += 64;
    };

    float sums[BLOCK_N / 2];
    const u32 warpgroup = threadIdx.x / 128;
    run_pipeline<STAGES, STAGE_BYTES>(sums, first_stage, steps, load_stage, [&](u32 stage) {
        const u32 first = stage + (BLOCK_M == 64 ? warpgroup * 32 * ROW_BYTES : 0);
        const u32 a = first + (BLOCK_M == 64 ? 0 : warpgroup * TILE_BYTES), b = first + TILES_M * TILE_BYTES;
#pragma unroll
        for (int k = 0; k < (BLOCK_M == 64 ? 32 : 64); k += 16)
            Wgmma<BLOCK_N>::tt(sums, tile_descriptor(a + k * ROW_BYTES, TILE_BYTES),
                               tile_descriptor(b + k * ROW_BYTES, TILE_BYTES));
    });
    const u32 split = BLOCK_M == 64 ? blockIdx.y * 2 + warpgroup : blockIdx.y;
    const u32 warp = threadIdx.x / 32 - (BLOCK_M == 64 ? warpgroup * 4 : 0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row_filter = first_filter + warp * 16 + threadIdx.x % 32 / 4 + 8 * half;
        if (row_filter >= filter_count) continue;
        float *to = partials + ((u64)split * filter_count + row_filter) * columns;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++) {
            const u32 column = first_column + j * 8 + threadIdx.x % 4 * 2;
            const float v[2] = {sums[j * 4 + 2 * half], sums[j * 4 + 2 * half + 1]};
            if (column < columns) store<2>(to + column, v);
        }
    }
}
