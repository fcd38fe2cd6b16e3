//! Partitions a channels-last image into windows and reverses it, pixel by pixel.

use vit_graph::Type;
use vit_graph::ops::{Unwindows, Windows};

use super::Lowered;

/// A task is a window.
pub(super) fn partition(op: &Windows, image: &Type) -> Lowered {
    let (op, [h, w, channels]) = (*op, [image.shape[1], image.shape[2], image.shape[3]]);
    let ([rows, columns], [window_h, window_w]) = (op.grid(&image.shape), op.size);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], window_h * window_w * channels, &|window, out| {
            let (b, row, column) = (window / (rows * columns), window / columns % rows, window % columns);
            for (token, out) in out.chunks_exact_mut(channels).enumerate() {
                let (y, x) = (op.source(0, row, token / window_w, h), op.source(1, column, token % window_w, w));
                match y.zip(x) {
                    Some((y, x)) => out.copy_from_slice(&inputs[0][((b * h + y) * w + x) * channels..][..channels]),
                    None => out.fill(0.0),
                }
            }
        });
    })
}

/// A task is a row of pixels.
pub(super) fn reverse(op: &Unwindows) -> Lowered {
    let (windows, image) = (op.windows, op.image.clone());
    let [h, w, channels] = [image[1], image[2], image[3]];
    let ([rows, columns], [window_h, window_w]) = (windows.grid(&image), windows.size);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], w * channels, &|row, out| {
            // Windows are those of the image rolled up and left by `shift`: y and x are positions in the rolled image.
            let (b, y) = (row / h, (row % h + h - windows.shift[0] % h) % h);
            for (x, out) in out.chunks_exact_mut(channels).enumerate() {
                let x = (x + w - windows.shift[1] % w) % w;
                let window = (b * rows + y / window_h) * columns + x / window_w;
                let token = window * window_h * window_w + y % window_h * window_w + x % window_w;
                out.copy_from_slice(&inputs[0][token * channels..][..channels]);
            }
        });
    })
}
