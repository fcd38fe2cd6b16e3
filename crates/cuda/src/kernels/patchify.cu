// Images to patches, each flattened as [channels, patch_height, patch_width], and back.
//
// VEC: the elements of a thread in `patchify`. INDEX: a type that can count its vectors. X, Y: storage types.

#define THREADS 256

struct PatchGrid {
    u32 height, width, channels;
    u32 patch_height, patch_width;
    // Patches of an image, down and across.
    u32 rows, columns;
    // Strides of the image in elements, for `patchify`; `unpatchify` writes a dense image.
    u64 image_stride, y_stride, x_stride, channel_stride;
};

// patches [n, rows, columns, channels, patch_height, patch_width]. A thread has VEC elements of a patch's row, which
// are consecutive in the image as well; VEC is 1 for a channels-last image.
extern "C" __global__ void __launch_bounds__(THREADS)
    patchify(const X* __restrict__ image, Y* __restrict__ patches, const PatchGrid grid, u64 vectors) {
    const u64 vector = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (vector >= vectors) return;
    INDEX rest = (INDEX)vector;
    const u32 kx = unravel(rest, grid.patch_width / VEC) * VEC, ky = unravel(rest, grid.patch_height);
    const u32 channel = unravel(rest, grid.channels), px = unravel(rest, grid.columns), py = unravel(rest, grid.rows);
    const u64 n = rest;
    const u64 from = n * grid.image_stride + (u64)(py * grid.patch_height + ky) * grid.y_stride +
                     (u64)(px * grid.patch_width + kx) * grid.x_stride + channel * grid.channel_stride;
    float v[VEC];
    load<VEC>(image + from, v);
    store<VEC>(patches + vector * VEC, v);
}

// The inverse, to an image [n, height, width, channels], or if `channels_first` [n, channels, height, width]. Pixels
// outside the grid become zero. A thread has one element.
extern "C" __global__ void __launch_bounds__(THREADS)
    unpatchify(const X* patches, Y* image, const PatchGrid grid, u32 channels_first, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    u32 channel, x, y;
    u64 rest = i;
    if (channels_first) {
        x = unravel(rest, grid.width), y = unravel(rest, grid.height), channel = unravel(rest, grid.channels);
    } else {
        channel = unravel(rest, grid.channels), x = unravel(rest, grid.width), y = unravel(rest, grid.height);
    }
    const u32 py = y / grid.patch_height, px = x / grid.patch_width;
    float v = 0.0f;
    if (py < grid.rows && px < grid.columns) {
        const u64 patch = (rest * grid.rows + py) * grid.columns + px;
        const u32 ky = y % grid.patch_height, kx = x % grid.patch_width;
        v = to_float(patches[((patch * grid.channels + channel) * grid.patch_height + ky) * grid.patch_width + kx]);
    }
    image[i] = from_float<Y>(v);
}
