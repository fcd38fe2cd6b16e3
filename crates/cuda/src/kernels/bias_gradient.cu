// The last step of the gradient of an attention's bias: partial sums [splits, count] to [count], in a fixed order.
// DX: storage type of the result, dbias.

#define THREADS 256

// A block has 32 elements, one per lane; each of its 8 warps sums every eighth split.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_gradient(const float* partials, DX* dbias, u32 splits, u64 count) {
    __shared__ float sums[THREADS / 32][32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 element = (u64)blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (element < count)
#pragma unroll 4
        for (u32 split = warp; split < splits; split += THREADS / 32) sum += partials[split * count + element];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || element >= count) return;
#pragma unroll
    for (u32 other_warp = 1; other_warp < THREADS / 32; other_warp++) sum += sums[other_warp][lane];
    dbias[element] = from_float<DX>(sum);
}
