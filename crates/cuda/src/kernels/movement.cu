// One strided copy for permutations, slices, padding, concatenation and broadcasts.
//
// X, Y: storage types of source and destination; integers are copied as floats, bit by bit. VEC: elements of a vector;
// where it is more than 1, the innermost stride is 1 in the destination and 0 or 1 in the source. INDEX: a type that
// can count the vectors.

#define THREADS 256

// Strides and offsets in elements. The innermost axis counts vectors.
struct CopyStrides {
    u32 axes;
    // Within a vector of the source: 1 if its elements are consecutive, 0 if all are one element.
    u32 from_inner;
    u32 extents[8];
    u64 from[8];
    u64 to[8];
    u64 from_offset;
    u64 to_offset;
};

extern "C" __global__ void __launch_bounds__(THREADS) copy(const X* x, Y* y, const CopyStrides strides, u64 vectors) {
    const u64 vector = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (vector >= vectors) return;
    INDEX rest = (INDEX)vector;
    u64 from = strides.from_offset, to = strides.to_offset;
    for (int axis = (int)strides.axes - 1; axis >= 0; axis--) {
        const INDEX coordinate = rest % strides.extents[axis];
        rest /= strides.extents[axis];
        from += coordinate * strides.from[axis], to += coordinate * strides.to[axis];
    }
    float v[VEC];
    load_or_repeat<VEC>(x + from, strides.from_inner, v);
    store<VEC>(y + to, v);
}
