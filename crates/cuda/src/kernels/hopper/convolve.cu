// Convolution of bf16 images as a matrix product whose left-hand side is never written down: y[place][filter] is the sum
// over taps and channels of x · filters. The same kernel computes the gradient of the image, where a pixel is a place
// that meets results.
//
// A block has 64 places for every warpgroup and BLOCK_N filters. Steps of 64 channels pass through STAGES stages of
// shared memory. While the tensor cores work on one step, all threads fetch a later one.
//
// Macros:
//   WARPGROUPS, BLOCK_N   the block; BLOCK_N is 64, 128 or 256
//   STAGES                at least 3
//   BLOCKS_PER_SM         blocks meant to share a multiprocessor
//   WHOLE_STEPS           1 where channels are a multiple of 64: all taps of 64 channels follow one another, so that the
//                         cache holds the pixels that they share; 0: all channels of a tap follow one another
//   Y                     what results are stored as

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int BLOCK_M = 64 * WARPGROUPS;
constexpr int A_BYTES = BLOCK_M * ROW_BYTES;
constexpr int STAGE_BYTES = A_BYTES + BLOCK_N * ROW_BYTES;
constexpr int AHEAD = STAGES - 2;
// Rows that all threads fetch at once, and how often they do for each operand.
constexpr int FETCHED = THREADS / 8;
constexpr int FETCHES_A = BLOCK_M / FETCHED;
constexpr int FETCHES_B = (BLOCK_N + FETCHED - 1) / FETCHED;
constexpr int PART_N = BLOCK_N < 128 ? BLOCK_N : 128;

// A thread's share of all fetches: chunk `chunk` of every FETCHED-th row.
struct Fetcher {
    const bf16 *x, *filters;
    const Reach &reach;
    u32 chunk, swizzled;
    Start starts[FETCHES_A];
    u32 filters_left, depth;
    // The tap and the channel that come next.
    u32 tap_y, tap_x, channel;

    __device__ __forceinline__ Fetcher(const bf16 *x, const bf16 *filters, const Places &places, const Reach &reach,
                                       u32 first_place, u32 first_filter, u32 filter_count, u32 depth)
        : x(x), reach(reach), depth(depth) {
        const u32 row = threadIdx.x / 8;
        chunk = threadIdx.x % 8;
        swizzled = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
#pragma unroll
        for (int i = 0; i < FETCHES_A; i++) starts[i] = start_of(first_place + row + i * FETCHED, places, reach);
        filters_left = filter_count - first_filter;
        this->filters = filters + (u64)(first_filter + row) * depth + chunk * 8;
        const u32 at = WHOLE_STEPS ? 0 : chunk * 8 / reach.channels;
        channel = chunk * 8 - at * reach.channels;
        tap_y = at / reach.taps_x, tap_x = at - tap_y * reach.taps_x;
    }

    __device__ __forceinline__ void next_tap() {
        if (++tap_x == reach.taps_x) tap_x = 0, tap_y++;
    }

    __device__ __forceinline__ void fetch(u32 stage) {
        const int y = (int)tap_y * reach.tap_y, x = (int)tap_x * reach.tap_x;
        const int shift = y * (int)reach.row + x * (int)reach.column + (int)channel;
        const u32 to = stage + swizzled;
#pragma unroll
        for (int i = 0; i < FETCHES_A; i++) {
            const Start &start = starts[i];
            const bool real = (u32)(start.y + y) < reach.height && (u32)(start.x + x) < reach.width &&
                              (WHOLE_STEPS || tap_y < reach.taps_y);
            copy_cached(to + i * FETCHED * ROW_BYTES, this->x + (real ? start.offset + shift : 0), real);
        }
#pragma unroll
        for (int i = 0; i < FETCHES_B; i++) {
            const u32 row = threadIdx.x / 8 + i * FETCHED;
            const bool real = row < filters_left;
            if (BLOCK_N % FETCHED == 0 || row < BLOCK_N)
                copy_once(to + A_BYTES + i * FETCHED * ROW_BYTES, filters + (real ? (u64)i * FETCHED * depth : 0), real);
        }
        filters += 64;
        if (WHOLE_STEPS) {
            next_tap();
            if (tap_y == reach.taps_y) tap_y = 0, channel += 64;
        } else {
            channel += 64;
            while (channel >= reach.channels) channel -= reach.channels, next_tap();
        }
    }
};

// Writes a lane's eight neighbouring results of a row at a time: the four lanes that share a row exchange their pairs.
static __device__ __forceinline__ void store_row(const float *sums, int half, bf16 *to, const bf16 *bias, u32 count) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < BLOCK_N / 8; first += 4) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (first + i) * 4 + 2 * half;
            float v[2] = {sums[at], sums[at + 1]};
            const u32 column = (first + i) * 8 + t * 2;
            if (bias && column < count) v[0] += to_float(bias[column]), v[1] += to_float(bias[column + 1]);
            w[i] = pack_bf16(v[0], v[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const u32 got = __shfl_xor_sync(~0u, t & 1 ? w[i] : w[i + 1], 1);
            if (t & 1) w[i] = got;
            else w[i + 1] = got;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 got = __shfl_xor_sync(~0u, t & 2 ? w[i] : w[i + 2], 2);
            if (t & 2) w[i] = got;
            else w[i + 2] = got;
        }
        const u32 column = (first + t) * 8;
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

// `filters` are rows of 64 · steps elements, in the order in which the channels of all taps are met. Blocks go through
// the filters first.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    convolve(const bf16 *x, const bf16 *filters, const Y *bias, Y *y, const Places places, const Reach reach,
             u32 filter_count, u32 steps) {
    DYNAMIC_SHARED(unsigned char, memory);
    const u32 stages = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 columns = (filter_count + BLOCK_N - 1) / BLOCK_N;
    const u32 first_place = blockIdx.x / columns * BLOCK_M, first_filter = blockIdx.x % columns * BLOCK_N;
    Fetcher fetcher(x, filters, places, reach, first_place, first_filter, filter_count, steps * 64);
    for (u32 step = 0; step < AHEAD; step++) {
        if (step < steps) fetcher.fetch(stages + step * STAGE_BYTES);
        copies_commit();
    }
    float sums[BLOCK_N / 2];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) sums[i] = 0.0f;
    settle<BLOCK_N / 2>(sums);
    const u32 warpgroup = threadIdx.x / 128;
    u32 current = 0, later = AHEAD;
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        copies_wait<AHEAD - 1>();
        show_to_tensor_cores();
        __syncthreads();
        const u32 a = stages + current * STAGE_BYTES + warpgroup * 64 * ROW_BYTES;
        const u32 b = stages + current * STAGE_BYTES + A_BYTES;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 64; k += 16) {
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += PART_N)
                Wgmma<PART_N>::ss(sums + n / 2, tile(a + 2 * k, 0), tile(b + n * ROW_BYTES + 2 * k, 0), 1);
        }
        wgmma_commit();
        // The tensor cores are done with this stage in all warpgroups: each waited below before the barrier above.
        if (step + AHEAD < steps) fetcher.fetch(stages + later * STAGE_BYTES);
        copies_commit();
        wgmma_wait<1>();
        current = current + 1 == STAGES ? 0 : current + 1;
        later = later + 1 == STAGES ? 0 : later + 1;
    }
    wgmma_wait<0>();
    settle<BLOCK_N / 2>(sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 index = first_place + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
        const Place at = place_of(index, places);
        Y *to = y + (u64)at.image * places.image + at.y * places.row + at.x * places.column + first_filter;
        store_row(sums, half, index < places.count ? to : nullptr, bias ? bias + first_filter : nullptr,
                  filter_count - first_filter);
    }
}
