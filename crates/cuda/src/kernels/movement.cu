// Elements that move: one strided copy does permutations, slices, padding, concatenation and broadcasts.
//
// X, Y: storage types; integers move as floats, whose bits nothing here touches. VEC: elements that move together; a source stride along the
// innermost axis is 0 or 1 where VEC is more than 1. INDEX: a type that can count the packs.

#define THREADS 256

// Strides and offsets in elements; the innermost axis is counted in packs.
struct Walk {
    u32 axes;
    u32 from_inner;
    u32 extents[8];
    u64 from[8];
    u64 to[8];
    u64 from_offset;
    u64 to_offset;
};

extern "C" __global__ void __launch_bounds__(THREADS) copy(const X* x, Y* y, const Walk walk, u64 packs) {
    const u64 pack = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (pack >= packs) return;
    INDEX rest = (INDEX)pack;
    u64 from = walk.from_offset, to = walk.to_offset;
    for (int axis = (int)walk.axes - 1; axis >= 0; axis--) {
        const INDEX position = rest % walk.extents[axis];
        rest /= walk.extents[axis];
        from += position * walk.from[axis], to += position * walk.to[axis];
    }
    float v[VEC];
    if (walk.from_inner) {
        load<VEC>(x + from, v);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = to_float(x[from]);
    }
    store<VEC>(y + to, v);
}
