/** A relevance map over the image it belongs to. */

/** The colour map of `vit explain`, from the smallest value to the largest. */
const HEAT = [
  '#090d24', '#17123a', '#2d0b58', '#45016b', '#5e0172', '#770474', '#910772', '#a9176b', '#bf2762',
  '#d33957', '#e54c48', '#f36235', '#fd7920', '#fe962f', '#ffaf40', '#f9c86a', '#f0dfa7', '#f3f1cc',
];

/** Opacity at the smallest and the largest value, as in the images of `vit explain`. */
const OPACITY = [0.5, 0.62];

/** RGBA for 256 values from the smallest to the largest, one word each. */
const COLOURS = new Uint32Array(Uint8ClampedArray.from(Array.from({ length: 256 }, (_, index) => {
  const share = index / 255;
  const at = share * (HEAT.length - 1);
  const before = Math.min(Math.floor(at), HEAT.length - 2);
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const rgb = [0, 1, 2].map(i => mix(channel(HEAT[before], i), channel(HEAT[before + 1], i), at - before));
  return [...rgb, 255 * mix(OPACITY[0], OPACITY[1], share)];
}).flat()).buffer);

/** A veil over the part of the image that is not the model's input. */
const VEIL = 'rgb(112 112 112 / 0.5)';

/** The longer side of the painted map. */
const SIDE = 640;

/** The colour map from left to right, as CSS. */
export const scale = () => `linear-gradient(to right, ${HEAT.join(', ')})`;

/** Paints a map of the server's answer over an image; `shape` is the image's width over its height. */
export function paint(canvas, map, shape, image) {
  canvas.width = Math.round(shape >= 1 ? SIDE : SIDE * shape);
  canvas.height = Math.round(shape >= 1 ? SIDE / shape : SIDE);
  const context = canvas.getContext('2d');
  context.filter = 'grayscale(1)';
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.filter = 'none';
  context.fillStyle = VEIL;
  context.fillRect(0, 0, canvas.width, canvas.height);
  const [left, right] = [map.region[0], map.region[0] + map.region[2]].map(x => Math.round(x * canvas.width));
  const [top, bottom] = [map.region[1], map.region[1] + map.region[3]].map(y => Math.round(y * canvas.height));
  const [width, height] = [Math.max(1, right - left), Math.max(1, bottom - top)];
  context.putImageData(new ImageData(pixels(map, width, height), width, height), left, top);
}

export function clear(canvas) {
  canvas.getContext('2d').clearRect(0, 0, canvas.width, canvas.height);
}

/** RGBA by bilinear interpolation of values between the centres of cells. */
function pixels({ grid: [rows, columns], values }, width, height) {
  const low = values.reduce((a, b) => Math.min(a, b));
  const spread = values.reduce((a, b) => Math.max(a, b)) - low || Infinity;
  const across = neighbours(width, columns);
  const words = new Uint32Array(width * height);
  let at = 0;
  for (const [above, below, down] of neighbours(height, rows)) {
    const line = Array.from({ length: columns }, (_, x) =>
      mix(values[above * columns + x], values[below * columns + x], down));
    for (const [before, after, along] of across) {
      const share = (mix(line[before], line[after], along) - low) / spread;
      words[at++] = COLOURS[Math.round(255 * share)];
    }
  }
  return new Uint8ClampedArray(words.buffer);
}

/** For each pixel along an axis, the two cells around it and the weight of the second. */
function neighbours(length, cells) {
  return Array.from({ length }, (_, pixel) => {
    const at = Math.min(Math.max((pixel + 0.5) * cells / length - 0.5, 0), cells - 1);
    const before = Math.floor(at);
    return [before, Math.min(before + 1, cells - 1), at - before];
  });
}

function mix(a, b, way) {
  return a + (b - a) * way;
}
