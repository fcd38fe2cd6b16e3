// What convolutions on Hopper's tensor cores have in common: where results lie, which pixels they meet, and how those
// come into shared memory.
//
// Tiles are rows of 64 bf16, 128 bytes, swizzled: 16-byte chunk j of row r lies at chunk j ^ (r % 8). A result that
// meets padding gets zeros, which the copy writes by itself.

constexpr int ROW_BYTES = 128;

// A division by a number known beforehand, of numbers below 2^31.
struct Divisor {
    u32 divisor, factor, shift;
};
static __device__ __forceinline__ u32 quotient(u32 n, const Divisor &by) {
    return (__umulhi(by.factor, n) + n) >> by.shift;
}

// Results, place after place: images of height by width places.
struct Places {
    u32 count;
    Divisor height, width;
    // Elements from an image, a row and a place to the next.
    u32 image, row, column;
};

struct Place {
    u32 image, y, x;
};
static __device__ __forceinline__ Place place_of(u32 index, const Places &places) {
    const u32 rows = quotient(index, places.width), image = quotient(rows, places.height);
    return {image, rows - image * places.height.divisor, index - rows * places.width.divisor};
}

// What a place meets: taps_y by taps_x pixels with `channels` elements each, of images of height by width pixels.
struct Reach {
    u32 height, width;
    // Elements from an image, a row and a pixel to the next.
    u32 image, row, column;
    // The pixel of the first place's first tap, and how far it is to the next place's and to the next tap's.
    int first_y, first_x;
    int step_y, step_x;
    int tap_y, tap_x;
    u32 taps_y, taps_x;
    u32 channels;
};

// The pixel of a place's first tap, which may lie outside the image; and of no place at all.
struct Start {
    int y, x, offset;
};
static __device__ __forceinline__ Start start_of(u32 index, const Places &places, const Reach &reach) {
    if (index >= places.count) return {-0x40000000, 0, 0};
    const Place at = place_of(index, places);
    const int y = reach.first_y + (int)at.y * reach.step_y, x = reach.first_x + (int)at.x * reach.step_x;
    return {y, x, (int)(at.image * reach.image) + y * (int)reach.row + x * (int)reach.column};
}

// Copies 16 bytes in the background, or writes zeros: through the first-level cache, which neighbouring taps find again,
// or past it.
static __device__ __forceinline__ void copy_cached(u32 to, const void *from, bool real) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copy_once(u32 to, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// What was written is there for the tensor cores too.
static __device__ __forceinline__ void show_to_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The descriptor of a tile at `address`: eight rows are 1024 bytes apart; tiles of 64 columns are `apart` bytes apart,
// which only operands with rows along m or n use.
static __device__ __forceinline__ u64 tile(u32 address, u32 apart) {
    return (u64)(1024 >> 4 | 1u << 30) << 32 | (apart >> 4) << 16 | (address & 0x3ffff) >> 4;
}
