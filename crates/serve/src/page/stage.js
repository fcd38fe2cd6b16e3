/** The image of a panel, and a map over it. */

import { element } from './dom.js';
import { clear, paint, scale } from './overlay.js';

export class Stage {
  #frame = element('div', { class: 'frame plain' });
  #canvas = element('canvas', { 'aria-hidden': 'true' });
  #caption = element('span', {});
  #legend;
  #entry = null;

  constructor() {
    const colours = element('span', { class: 'scale', role: 'img', 'aria-label': 'dark blue, red, light yellow' });
    colours.style.background = scale();
    const strength = element('input', {
      type: 'range', min: 0, max: 100, value: 100,
      input: () => this.#canvas.style.setProperty('--strength', strength.value / 100),
    });
    this.#legend = element('span', { class: 'range', hidden: true }, 'least', colours, 'most',
      element('label', {}, 'opacity', strength));
    this.root = element('figure', { class: 'stage' }, this.#frame,
      element('figcaption', { class: 'legend' }, this.#caption, this.#legend));
  }

  /** Shows an image without a map. */
  show(entry) {
    this.#entry = entry;
    this.#frame.classList.toggle('unturned', !entry.turned);
    this.#frame.classList.toggle('empty', entry.shape === null);
    this.#frame.style.setProperty('--shape', entry.shape ?? 1);
    const view = entry.shape === null
      ? element('p', { class: 'blank' }, `This browser cannot show ${entry.name}.`)
      : element('img', { src: entry.url, alt: entry.name });
    this.#frame.replaceChildren(view, this.#canvas);
    clear(this.#canvas);
    this.showMap(null);
  }

  /** Lays a map of the server's answer over the image, or removes it. */
  showMap(map, title = '') {
    this.#frame.classList.toggle('plain', !map);
    this.#legend.hidden = !map;
    const { name, shape, width, height } = this.#entry;
    if (map) {
      paint(this.#canvas, map, shape, this.#frame.querySelector('img'));
      const cropped = map.region[2] * map.region[3] < 0.99;
      this.#caption.textContent = cropped ? `${title} · grey: cropped away` : title;
    } else {
      this.#caption.textContent = shape === null ? name : `${name} · ${width} × ${height}`;
    }
  }
}
