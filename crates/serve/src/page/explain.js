/** The map over a panel's image: which one is chosen, by which controls, and its request. */

import { Unreachable } from './api.js';
import { element, select } from './dom.js';
import { routes } from './entry.js';
import { METHODS, nameOf } from './models.js';

/** A pointer rests so many milliseconds on a class before its map is requested. */
const REST = 120;

export class MapChoice {
  #page;
  #stage;
  #card;
  #entry = null;
  #method;
  #layer;
  #head = null;
  #pinned = null;
  #pointed = null;
  #abort = new AbortController();

  /** Maps of `card`'s model appear on `stage`. */
  constructor(page, stage, card) {
    this.#page = page;
    this.#stage = stage;
    this.#card = card;
    this.#method = card.methods[0] ?? 'off';
    this.#layer = card.layers - 1;
    this.controls = element('div', { class: 'controls' });
    this.status = element('p', { class: 'hint' });
    this.#drawControls();
  }

  /** The class whose map stays, if any. */
  get pinned() {
    return this.#pinned?.class;
  }

  /** Another image; it has no map until its classes are known (`update`). */
  show(entry) {
    this.close();
    this.#entry = entry;
    [this.#pinned, this.#pointed] = [null, null];
    this.#stage.show(entry);
    this.status.textContent = '';
  }

  /** Stops what is under way. */
  close() {
    this.#abort.abort();
  }

  /** The class under the pointer or the keyboard's focus, or `null`. */
  point(prediction) {
    this.#pointed = prediction;
    this.update();
  }

  /** Keeps the map of a class, or of none. */
  pin(prediction) {
    this.#pinned = prediction;
    if (!prediction) this.#pointed = null;
    this.update();
  }

  /** Shows the chosen map, from an earlier answer or after a request. */
  async update() {
    this.#abort.abort();
    const abort = this.#abort = new AbortController();
    const [entry, question] = [this.#entry, this.#question()];
    if (!question || entry.shape === null) {
      this.#stage.showMap(null);
      this.status.textContent = this.#hint(question);
      return;
    }
    const url = routes.explain(this.#card, question.query);
    const working = () => { this.status.textContent = 'Computing the map …'; };
    try {
      if (!entry.known(url)) {
        await rest(abort.signal);
        working();
      }
      const onWait = seconds => (seconds ? this.status.textContent = busy(seconds) : working());
      const result = await entry.ask(url, { signal: abort.signal, onWait });
      if (abort.signal.aborted) return;
      const map = result.maps.find(candidate => candidate.class === question.class) ?? result.maps.at(-1);
      this.#stage.showMap(map, question.title);
      this.status.textContent = this.#hint(question);
      this.#page.did(entry, url);
    } catch (error) {
      if (abort.signal.aborted) return;
      this.#stage.showMap(null);
      this.status.textContent = `No map: ${error.message}`;
      if (error instanceof Unreachable) this.#page.gone();
    }
  }

  /** The chosen map as options of `/v1/explain`; `null` for none. */
  #question() {
    const method = this.#method;
    if (method === 'off') return null;
    if (method === 'attention') {
      const [layer, head] = [this.#layer, this.#head];
      const heads = head === null ? 'mean of all heads' : `head ${head}`;
      return { query: { method, layer, head }, title: `Attention of layer ${layer}, ${heads}` };
    }
    if (!METHODS[method].byClass) return { query: { method }, title: 'Attention rollout' };
    const prediction = this.#pointed ?? this.#pinned;
    return prediction && {
      query: { method, class: nameOf(this.#card, prediction) },
      class: prediction.class,
      title: `Evidence for ${prediction.label}`,
    };
  }

  #hint(question) {
    if (question && this.#entry.shape === null) return 'There are maps only over images that this browser can show.';
    if (this.#method === 'off' || !this.#card.classes) return '';
    if (!METHODS[this.#method].byClass) return 'This map is the same for every class.';
    return question ? '' : 'Point at a class to see where its evidence lies; choose it to keep the map.';
  }

  #drawControls() {
    const { methods } = this.#card;
    if (methods.length === 0) return;
    const options = [...methods.map(method => [method, METHODS[method].title]), ['off', 'none']];
    const method = select('Map', options, this.#method, value => {
      this.#method = value;
      this.#drawControls();
      this.controls.querySelector('select').focus();
      this.update();
    });
    this.controls.replaceChildren(method, ...this.#method === 'attention' ? this.#attentionControls() : []);
  }

  #attentionControls() {
    const numbers = count => Array.from({ length: count }, (_, i) => [String(i), String(i)]);
    const layer = select('Layer', numbers(this.#card.layers), String(this.#layer), value => {
      this.#layer = Number(value);
      // Layers may differ in their heads.
      if (this.#head >= this.#card.heads[this.#layer]) this.#head = null;
      this.#drawControls();
      this.controls.querySelectorAll('select')[1].focus();
      this.update();
    });
    const heads = [['', 'mean of all'], ...numbers(this.#card.heads[this.#layer])];
    const head = select('Head', heads, String(this.#head ?? ''), value => {
      this.#head = value === '' ? null : Number(value);
      this.update();
    });
    return [layer, head];
  }
}

/** What is said while an overloaded server is given time. */
export const busy = seconds => `The server is busy. Next attempt in ${seconds} s.`;

function rest(signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, REST);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
