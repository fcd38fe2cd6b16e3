/** A smaller copy of an image that the server would refuse. */

/** The most pixels of a copy. */
const PIXELS = 12e6;

/** A JPEG of at most so many `bytes` and `pixels`; `turned` applies the EXIF orientation, which the copy lacks. */
export async function shrink(file, { bytes, pixels, turned }) {
  const bitmap = await createImageBitmap(file, { imageOrientation: turned ? 'from-image' : 'none' });
  try {
    let scale = Math.min(1, Math.sqrt(Math.min(PIXELS, pixels) / (bitmap.width * bitmap.height)));
    for (;;) {
      const copy = await draw(bitmap, scale);
      if (copy.blob.size <= bytes || copy.width < 64) return copy;
      scale *= Math.min(0.85, Math.sqrt(bytes / copy.blob.size));
    }
  } finally {
    bitmap.close();
  }
}

async function draw(bitmap, scale) {
  const [width, height] = [bitmap.width, bitmap.height].map(side => Math.max(1, Math.floor(side * scale)));
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  // A JPEG has no transparency.
  context.fillStyle = 'white';
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return { blob: await canvas.convertToBlob({ type: 'image/jpeg', quality: 0.92 }), width, height };
}
