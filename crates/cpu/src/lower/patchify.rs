//! Cutting images into patches and putting them together again.

use vit_graph::Type;
use vit_graph::ops::{Layout, Patchify, Unpatchify};

use super::Lowered;

/// Where the runs of neighbouring pixels of one patch lie.
#[derive(Clone, Copy)]
struct Cut {
    /// Height, width and channels of the image.
    image: [usize; 3],
    grid: [usize; 2],
    patch: [usize; 2],
    layout: Layout,
}

impl Cut {
    fn new(op: &Patchify, image: &[usize]) -> Self {
        let [_, h, w, c] = op.extents(image);
        Cut { image: [h, w, c], grid: op.grid(image), patch: op.patch, layout: op.layout }
    }

    fn patch_len(&self) -> usize {
        self.image[2] * self.patch[0] * self.patch[1]
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    /// Calls `run(place in the patch, place in the image, step in the image)` for every row of every channel.
    fn rows(&self, patch: usize, mut run: impl FnMut(usize, usize, usize)) {
        let ([h, w, channels], [ph, pw]) = (self.image, self.patch);
        let (top, left) = (patch / self.grid[1] * ph, patch % self.grid[1] * pw);
        for c in 0..channels {
            for y in 0..ph {
                let (from, step) = match self.layout {
                    Layout::ChannelsFirst => ((c * h + top + y) * w + left, 1),
                    Layout::ChannelsLast => (((top + y) * w + left) * channels + c, channels),
                };
                run((c * ph + y) * pw, from, step);
            }
        }
    }
}

pub(super) fn patchify(op: &Patchify, image: &Type) -> Lowered {
    let cut = Cut::new(op, &image.shape);
    let (patches, width) = (cut.grid[0] * cut.grid[1], cut.patch[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], cut.patch_len().max(1), &|index, patch| {
            let image = &inputs[0][index / patches * cut.image_len()..][..cut.image_len()];
            cut.rows(index % patches, |to, from, step| {
                let row = &mut patch[to..to + width];
                if step == 1 {
                    row.copy_from_slice(&image[from..from + width]);
                } else {
                    row.iter_mut().enumerate().for_each(|(x, v)| *v = image[from + x * step]);
                }
            });
        });
    })
}

pub(super) fn unpatchify(op: &Unpatchify) -> Lowered {
    let cut = Cut::new(&op.patchify, &op.image);
    let (patches, width) = (cut.grid[0] * cut.grid[1], cut.patch[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], cut.image_len().max(1), &|index, image| {
            image.fill(0.0);
            for patch in 0..patches {
                let data = &inputs[0][(index * patches + patch) * cut.patch_len()..][..cut.patch_len()];
                cut.rows(patch, |from, to, step| {
                    data[from..from + width].iter().enumerate().for_each(|(x, v)| image[to + x * step] = *v);
                });
            }
        });
    })
}
