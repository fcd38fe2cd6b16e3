// Implicit GEMM on Hopper, for convolve.cu and correlate.cu: the coordinates of output pixels and of the input pixels
// under their taps, asynchronous copies of input pixels into shared memory, and the software pipeline. Compiled after
// instructions.cu.
//
// Tiles are rows of 64 bf16 (128 bytes) with the 128-byte swizzle: 16-byte chunk j of row r is at chunk j ^ (r % 8).
// Tiles begin at multiples of 1024 bytes. Taps in the padding are filled with zeros by the copy.

constexpr int ROW_BYTES = 128;

// Division of integers below 2^31 by an invariant (Granlund and Montgomery, 1994).
struct Divisor {
    u32 divisor, multiplier, shift;
};
static __device__ __forceinline__ u32 quotient(u32 n, const Divisor &d) {
    return (__umulhi(d.multiplier, n) + n) >> d.shift;
}

// Output pixels of images of height by width: the rows of the GEMM in convolve, the reduction in correlate.
struct OutputPixels {
    u32 count;
    Divisor height, width;
    // In elements, of convolve's result; correlate's dy is dense.
    u32 image_stride, row_stride, column_stride;
};

struct OutputPixel {
    u32 image, y, x;
};
static __device__ __forceinline__ OutputPixel pixel_of(u32 index, const OutputPixels &pixels) {
    const u32 image_row = quotient(index, pixels.width), image = quotient(image_row, pixels.height);
    return {image, image_row - image * pixels.height.divisor, index - image_row * pixels.width.divisor};
}

// The input pixels under an output pixel: taps_y by taps_x taps of `channels` elements, in images of height by width. In images
// of few channels (`taps_are_rows` of lower/conv/hopper/operands.rs) a tap is a row of the filter, and `channels` its padded
// width times the padded channels.
struct InputTaps {
    u32 height, width;
    // In elements of the input.
    u32 image_stride, row_stride, column_stride;
    // The input pixel under the first tap of output pixel 0, negative in the padding, and the input pixels from one
    // output pixel (the stride) or tap (the dilation) to the next.
    int first_y, first_x;
    int pixel_step_y, pixel_step_x;
    int tap_step_y, tap_step_x;
    u32 taps_y, taps_x;
    u32 channels;
};

// The input pixel under an output pixel's first tap, which may lie in the padding, and its offset in the input in
// elements. Past the last output pixel, y is OUTSIDE, so that all taps lie in the padding.
constexpr int OUTSIDE = -0x40000000;
struct FirstTap {
    int y, x, offset;
};
static __device__ __forceinline__ FirstTap first_tap_of(u32 index, const OutputPixels &pixels, const InputTaps &taps) {
    if (index >= pixels.count) return {OUTSIDE, 0, 0};
    const OutputPixel pixel = pixel_of(index, pixels);
    const int y = taps.first_y + (int)pixel.y * taps.pixel_step_y, x = taps.first_x + (int)pixel.x * taps.pixel_step_x;
    return {y, x, (int)(pixel.image * taps.image_stride) + y * (int)taps.row_stride + x * (int)taps.column_stride};
}

// Asynchronous copies of 16 bytes to shared address `to`: through L1 (ca), where neighbouring taps hit, or only through
// L2 (cg). Unless `valid`, zeros are written and nothing is read: `from` may lie past the end of the operand.
static __device__ __forceinline__ void cp_async_ca(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void cp_async_cg(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING committed groups of this thread's copies are incomplete.
template <int PENDING> static __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's completed copies visible to wgmma, after a barrier also to that of other warpgroups.
static __device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The wgmma matrix descriptor of tiles from `address` on with the 128-byte swizzle (bit 62): groups of eight rows are
// 1024 bytes apart, and, read only for MN-major operands, tiles of 64 columns `tile_stride` bytes.
static __device__ __forceinline__ u64 tile_descriptor(u32 address, u32 tile_stride) {
    return (u64)(1024 >> 4 | 1u << 30) << 32 | (tile_stride >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// The software pipeline of an implicit GEMM, with STAGES_ stages in shared memory from address first_stage on.
// load_stage(address) starts the copies of the next step; multiply(address) issues the wgmma of a step that has
// arrived, which adds to `sums`. These are cleared first and complete on return.
template <int STAGES_, int STAGE_BYTES_, int N, class Load, class Multiply>
static __device__ __forceinline__ void run_pipeline(float (&sums)[N], u32 first_stage, u32 steps, Load load_stage,
                                                    Multiply multiply) {
    // Copies run ahead, but not into the stage that is being multiplied and the one before, whose wgmma may still run.
    constexpr int AHEAD = STAGES_ - 2;
    for (u32 step = 0; step < AHEAD; step++) {
        if (step < steps) load_stage(first_stage + step * STAGE_BYTES_);
        cp_async_commit();
    }
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = 0.0f;
    fence_accumulators<N>(sums);
    u32 current = 0, next = AHEAD;
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        cp_async_wait<AHEAD - 1>();
        fence_proxy_async();
        __syncthreads();
        wgmma_fence();
        multiply(first_stage + current * STAGE_BYTES_);
        wgmma_commit();
        // No warpgroup reads stage `next` any more, which step - 2 multiplied: each passed the wgmma_wait of step - 1,
        // and then the barrier above.
        if (step + AHEAD < steps) load_stage(first_stage + next * STAGE_BYTES_);
        cp_async_commit();
        wgmma_wait<1>();
        current = current + 1 == STAGES_ ? 0 : current + 1;
        next = next + 1 == STAGES_ ? 0 : next + 1;
    }
    wgmma_wait<0>();
    fence_accumulators<N>(sums);
}
