/** An image of this session, with the answers it got. Nothing of it outlives the tab. */

import { Problem, address, call } from './api.js';
import { shrink } from './shrink.js';

export class ImageEntry {
  #limits;
  #upload;
  #answers = new Map();

  /** `limits` are those of `GET /v1/models`. */
  constructor(file, limits) {
    this.file = file;
    this.name = file.name || 'image';
    this.url = URL.createObjectURL(file);
    this.turned = limits.apply_orientation !== false;
    this.#limits = limits;
    /** Width over height; `null` if this browser cannot show the image. */
    this.shape = null;
    /** What was changed before sending, as a sentence. */
    this.note = '';
  }

  /** Decodes the image for display. */
  async load() {
    const image = new Image();
    image.src = this.url;
    try {
      await image.decode();
    } catch {
      return this;
    }
    [this.width, this.height] = [image.naturalWidth, image.naturalHeight];
    if (!this.turned) [this.width, this.height] = await storedSize(this.file, [this.width, this.height]);
    this.shape = this.width / this.height;
    return this;
  }

  /** Frees the image. */
  release() {
    URL.revokeObjectURL(this.url);
  }

  /** The media type that is sent. */
  get type() {
    return this.#upload?.type || this.file.type || 'application/octet-stream';
  }

  /** The first result of a route for this image, with the whole answer as `answer`. Results are kept. */
  async ask(url, { signal, onWait }) {
    if (!this.#answers.has(url)) {
      const answer = await this.#post(url, { signal, onWait });
      const result = answer.results[0];
      if (result.error) throw new Problem(result.error.status, result.error);
      this.#answers.set(url, { ...result, answer });
    }
    return this.#answers.get(url);
  }

  /** A result that is already there. */
  known(url) {
    return this.#answers.get(url);
  }

  async #post(url, options) {
    this.#upload ??= await this.#fitting(this.#limits);
    try {
      return await call(url, { ...options, body: this.#upload, type: this.type });
    } catch (error) {
      if (error.status !== 413 || this.note || this.shape === null) throw error;
      // The limit was not known before.
      this.#upload = await this.#fitting({ body_bytes: error.problem.limit ?? 8 << 20, ...this.#limits });
      if (!this.note) throw error;
      return call(url, { ...options, body: this.#upload, type: this.type });
    }
  }

  /** The file itself, or a smaller copy if the server would refuse it. */
  async #fitting({ body_bytes: bytes = Infinity, pixels = Infinity }) {
    const fits = this.file.size <= bytes && (this.shape === null || this.width * this.height <= pixels);
    if (fits || this.shape === null) return this.file;
    const copy = await shrink(this.file, { bytes, pixels, turned: this.turned });
    this.note = `Sent as a JPEG of ${copy.width} × ${copy.height}: the original is larger than the server takes.`;
    return copy.blob;
  }
}

/** Addresses of what the page requests about an image. */
export const routes = {
  classify: (card, top) =>
    address('v1/classify', { model: card.model, top, threshold: card.severalLabels ? 0 : undefined }),
  embed: card => address('v1/embed', { model: card.model, normalise: true }),
  explain: (card, question) => address('v1/explain', { model: card.model, ...question }),
};

async function storedSize(file, shown) {
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: 'none' });
    const size = [bitmap.width, bitmap.height];
    bitmap.close();
    return size;
  } catch {
    return shown;
  }
}
