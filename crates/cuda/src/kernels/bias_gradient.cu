// The last step of the gradient of an attention's bias: [shares][count] to [count], added up in order.

#define THREADS 256

// A block has 32 elements; each of its warps adds up every eighth share.
extern "C" __global__ void __launch_bounds__(THREADS) bias_gradient(const float* shares, DX* dbias, u32 number, u64 count) {
    __shared__ float sums[THREADS / 32][32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 element = (u64)blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (element < count)
#pragma unroll 4
        for (u32 share = warp; share < number; share += THREADS / 32) sum += shares[share * count + element];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || element >= count) return;
#pragma unroll
    for (u32 other = 1; other < THREADS / 32; other++) sum += sums[other][lane];
    dbias[element] = from_float<DX>(sum);
}
