//! Images as patches, and back. A row of patches is `[patch][channel][patch row][patch column]`.

use vit_graph::Type;
use vit_graph::ops::{ImageLayout, Patchify, Unpatchify};

use super::Lowered;

/// The addressing of the patches of an image.
#[derive(Clone, Copy)]
struct PatchAddressing {
    /// Height, width and channels of the image.
    image: [usize; 3],
    /// Rows and columns of patches.
    grid: [usize; 2],
    /// Height and width of a patch.
    patch: [usize; 2],
    layout: ImageLayout,
}

impl PatchAddressing {
    fn new(op: &Patchify, image: &[usize]) -> Self {
        let [_, h, w, c] = op.extents(image);
        PatchAddressing { image: [h, w, c], grid: op.grid(image), patch: op.patch, layout: op.layout }
    }

    /// Elements of a row of patches.
    fn row_len(&self) -> usize {
        self.grid[1] * self.image[2] * self.patch[0] * self.patch[1]
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    /// Calls `f(offset in the patches, offset in the image, stride in the image)` for every run of a row of patches:
    /// the elements of one channel in one row of a patch. Runs are in the order of a channels-first image, which is
    /// then accessed sequentially.
    fn for_each_run(&self, row: usize, mut f: impl FnMut(usize, usize, usize)) {
        let ([h, w, channels], [ph, pw]) = (self.image, self.patch);
        for c in 0..channels {
            for y in 0..ph {
                for patch in 0..self.grid[1] {
                    let (top, left) = (row * ph + y, patch * pw);
                    let (from, step) = match self.layout {
                        ImageLayout::ChannelsFirst => ((c * h + top) * w + left, 1),
                        ImageLayout::ChannelsLast => ((top * w + left) * channels + c, channels),
                    };
                    f(((patch * channels + c) * ph + y) * pw, from, step);
                }
            }
        }
    }
}

pub(super) fn patchify(op: &Patchify, image: &Type) -> Lowered {
    let addressing = PatchAddressing::new(op, &image.shape);
    let (rows, width) = (addressing.grid[0], addressing.patch[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], addressing.row_len().max(1), &|index, patches| {
            let image = &inputs[0][index / rows * addressing.image_len()..][..addressing.image_len()];
            addressing.for_each_run(index % rows, |to, from, step| {
                let run = &mut patches[to..to + width];
                if step == 1 {
                    run.copy_from_slice(&image[from..from + width]);
                } else {
                    run.iter_mut().enumerate().for_each(|(x, v)| *v = image[from + x * step]);
                }
            });
        });
    })
}

pub(super) fn unpatchify(op: &Unpatchify) -> Lowered {
    let addressing = PatchAddressing::new(&op.patchify, &op.image);
    let (rows, width) = (addressing.grid[0], addressing.patch[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], addressing.image_len().max(1), &|index, image| {
            // Pixels beyond the last whole patch belong to none.
            image.fill(0.0);
            for row in 0..rows {
                let patches = &inputs[0][(index * rows + row) * addressing.row_len()..][..addressing.row_len()];
                addressing.for_each_run(row, |from, to, step| {
                    patches[from..from + width].iter().enumerate().for_each(|(x, v)| image[to + x * step] = *v);
                });
            }
        });
    })
}
