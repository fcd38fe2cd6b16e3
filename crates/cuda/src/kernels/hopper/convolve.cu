// Convolution of bf16 images by implicit GEMM: y[pixel][filter] is the sum over taps and channels of x · filters. The
// gradient of the image is the same kernel, with dy as the image.
//
// A block has 64 output pixels (rows of A) for every warpgroup and BLOCK_N filters (rows of B). Steps of 64 elements of
// the reduction go through a software pipeline of STAGES stages in shared memory, [BLOCK_M + BLOCK_N][64] each: while
// the tensor cores multiply one step, all threads load a later one.
//
// Compiled after gather.cu, which defines InputTaps, OutputPixels, the tiles and the pipeline. Channels and filters are
// multiples of 8: chunks of 16 bytes are loaded and stored.
//
// Macros:
//   WARPGROUPS, BLOCK_N   the block tile; BLOCK_N is 64 or 128
//   STAGES                at least 3
//   BLOCKS_PER_SM         resident blocks of a multiprocessor
//   CHANNEL_BLOCKED       1 where channels are a multiple of 64: the reduction runs over [channels / 64][taps][64], so
//                         that neighbouring taps hit the cache; 0: over [taps][channels]
//   Y                     storage type of bias and result

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int BLOCK_M = 64 * WARPGROUPS;
constexpr int A_BYTES = BLOCK_M * ROW_BYTES;
constexpr int STAGE_BYTES = A_BYTES + BLOCK_N * ROW_BYTES;
// Rows that all threads load at a time, a multiple of the swizzle's 8, and how often they do so for each operand.
constexpr int ROWS_PER_LOAD = THREADS / 8;
constexpr int LOADS_A = BLOCK_M / ROWS_PER_LOAD;
constexpr int LOADS_B = (BLOCK_N + ROWS_PER_LOAD - 1) / ROWS_PER_LOAD;

// The loads of one thread: a chunk of 16 bytes, number `chunk` of 8, of every ROWS_PER_LOAD-th row of A and B.
struct TileLoader {
    const bf16 *x, *filters;
    const InputTaps &taps;
    // `swizzled`: the byte offset of the thread's first chunk in the tile of either operand.
    u32 chunk, swizzled;
    FirstTap first_taps[LOADS_A];
    // The filters from the block's first on, and the elements of a filter.
    u32 filters_left, depth;
    // The tap and channel of the thread's chunk in the next step.
    u32 tap_y, tap_x, channel;

    __device__ __forceinline__ TileLoader(const bf16 *x, const bf16 *filters, const OutputPixels &pixels,
                                          const InputTaps &taps, u32 first_pixel, u32 first_filter, u32 filter_count,
                                          u32 depth)
        : x(x), taps(taps), depth(depth) {
        const u32 row = threadIdx.x / 8;
        chunk = threadIdx.x % 8;
        swizzled = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
#pragma unroll
        for (int i = 0; i < LOADS_A; i++)
            first_taps[i] = first_tap_of(first_pixel + row + i * ROWS_PER_LOAD, pixels, taps);
        filters_left = filter_count - first_filter;
        this->filters = filters + (u64)(first_filter + row) * depth + chunk * 8;
        const u32 tap = CHANNEL_BLOCKED ? 0 : chunk * 8 / taps.channels;
        channel = chunk * 8 - tap * taps.channels;
        tap_y = tap / taps.taps_x, tap_x = tap - tap_y * taps.taps_x;
    }

    __device__ __forceinline__ void next_tap() {
        if (++tap_x == taps.taps_x) tap_x = 0, tap_y++;
    }

    // `stage`: its address in shared memory.
    __device__ __forceinline__ void load_stage(u32 stage) {
        const int tap_dy = (int)tap_y * taps.tap_step_y, tap_dx = (int)tap_x * taps.tap_step_x;
        const int tap_offset = tap_dy * (int)taps.row_stride + tap_dx * (int)taps.column_stride + (int)channel;
        const u32 to = stage + swizzled;
#pragma unroll
        for (int i = 0; i < LOADS_A; i++) {
            const FirstTap &start = first_taps[i];
            const bool valid = (u32)(start.y + tap_dy) < taps.height && (u32)(start.x + tap_dx) < taps.width &&
                              (CHANNEL_BLOCKED || tap_y < taps.taps_y);
            cp_async_ca(to + i * ROWS_PER_LOAD * ROW_BYTES, x + (valid ? start.offset + tap_offset : 0), valid);
        }
#pragma unroll
        for (int i = 0; i < LOADS_B; i++) {
            const u32 row = threadIdx.x / 8 + i * ROWS_PER_LOAD;
            const bool valid = row < filters_left;
            if (BLOCK_N % ROWS_PER_LOAD == 0 || row < BLOCK_N)
                cp_async_cg(to + A_BYTES + i * ROWS_PER_LOAD * ROW_BYTES,
                            filters + (valid ? (u64)i * ROWS_PER_LOAD * depth : 0), valid);
        }
        filters += 64;
        if (CHANNEL_BLOCKED) {
            next_tap();
            if (tap_y == taps.taps_y) tap_y = 0, channel += 64;
        } else {
            channel += 64;
            while (channel >= taps.channels) channel -= taps.channels, next_tap();
        }
    }
};

// Stores row lane / 4 + 8 half of this warp's accumulators, columns below `count`, plus `bias` unless that is null.
// `to` is null past the last pixel; lanes there must still take part in the transpose.
static __device__ __forceinline__ void store_row(const float *sums, int half, bf16 *to, const bf16 *bias, u32 count) {
    const int quad_lane = threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < BLOCK_N / 8; first += 4) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int element = (first + i) * 4 + 2 * half;
            float v[2] = {sums[element], sums[element + 1]};
            const u32 column = (first + i) * 8 + quad_lane * 2;
            if (bias && column < count) v[0] += to_float(bias[column]), v[1] += to_float(bias[column + 1]);
            w[i] = pack_bf16(v[0], v[1]);
        }
        quad_transpose(w);
        const u32 column = (first + quad_lane) * 8;
        if (to && column < count) *(uint4 *)(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

static __device__ __forceinline__ void store_row(const float *sums, int half, float *to, const float *bias, u32 count) {
    if (!to) return;
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++) {
        const u32 column = j * 8 + threadIdx.x % 4 * 2;
        float v[2] = {sums[j * 4 + 2 * half], sums[j * 4 + 2 * half + 1]};
        if (column >= count) continue;
        if (bias) v[0] += bias[column], v[1] += bias[column + 1];
        store<2>(to + column, v);
    }
}

// filters [filter_count][64 · steps] in the order of the reduction, padded with zeros (order_filters of
// conv_layout.cu). `bias` may be null. Consecutive blocks have the same pixels and different filters.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    convolve(const bf16 *x, const bf16 *filters, const Y *bias, Y *y, const OutputPixels pixels, const InputTaps taps,
             u32 filter_count, u32 steps) {
    DYNAMIC_SHARED(unsigned char, memory);
    const u32 first_stage = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 blocks_n = (filter_count + BLOCK_N - 1) / BLOCK_N;
    const u32 first_pixel = blockIdx.x / blocks_n * BLOCK_M, first_filter = blockIdx.x % blocks_n * BLOCK_N;
    TileLoader loader(x, filters, pixels, taps, first_pixel, first_filter, filter_count, steps * 64);
    float sums[BLOCK_N / 2];
    const u32 warpgroup = threadIdx.x / 128;
    run_pipeline<STAGES, STAGE_BYTES>(
        sums, first_stage, steps, [&](u32 stage) { loader.load_stage(stage); },
        [&](u32 stage) {
            const u32 a = stage + warpgroup * 64 * ROW_BYTES, b = stage + A_BYTES;
#pragma unroll
            for (int k = 0; k < 64; k += 16)
                Wgmma<BLOCK_N>::ss(sums, tile_descriptor(a + 2 * k, 0), tile_descriptor(b + 2 * k, 0), 1);
        });
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 index = first_pixel + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
        const OutputPixel pixel = pixel_of(index, pixels);
        Y *to = y + (u64)pixel.image * pixels.image_stride + pixel.y * pixels.row_stride +
                pixel.x * pixels.column_stride + first_filter;
        store_row(sums, half, index < pixels.count ? to : nullptr, bias ? bias + first_filter : nullptr,
                  filter_count - first_filter);
    }
}
