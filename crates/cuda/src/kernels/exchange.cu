// The addition of a reduce-scatter by sends and receives (run/exchange/nccl.rs), with the bits of vit_cluster::tree_sum, which
// NCCL's own all-reduce does not have.

#define THREADS 256

// values[i] becomes the sum over all ranks, added in a binary tree: ((0 + 1) + (2 + 3)) + ...; if the number of ranks
// is no power of two, the left subtree has the largest power of two below it. `values` [count] are those of this rank,
// `others` [ranks - 1][count] those of the other ranks in ascending order.
extern "C" __global__ void __launch_bounds__(THREADS)
    tree_sum(float* values, const float* others, u32 rank, u32 ranks, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    // subtrees[l]: the sum of a complete subtree of 2^l ranks whose sibling is incomplete. After `leaf` ranks there is
    // one for every bit that is set in `leaf`.
    float subtrees[32];
    for (u32 leaf = 0; leaf < ranks; leaf++) {
        float sum = leaf == rank ? values[i] : others[(u64)(leaf < rank ? leaf : leaf - 1) * count + i];
        u32 level = 0;
        for (; leaf >> level & 1; level++) sum = subtrees[level] + sum;
        subtrees[level] = sum;
    }
    u32 level = __ffs(ranks) - 1;
    float sum = subtrees[level];
    for (level++; level < 32; level++) {
        if (ranks >> level & 1) sum = subtrees[level] + sum;
    }
    values[i] = sum;
}
