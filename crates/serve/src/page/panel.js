/** One model's view of the current image: its answer, a map, its card. */

import { Problem, Unreachable } from './api.js';
import { classBars, percent, similarityBars } from './bars.js';
import { element, select } from './dom.js';
import { routes } from './entry.js';
import { MapChoice, busy } from './explain.js';
import { details, summary } from './models.js';
import { Stage } from './stage.js';

/** Classes that are shown at first, and after "More classes". */
const TOP = [5, 20];

export class Panel {
  #page;
  #entry = null;
  #head = element('div', { class: 'panel-head' });
  #stage = new Stage();
  #results = element('div', { class: 'results' });
  #details = element('details', { class: 'card' });
  #map = null;
  #bars = null;
  #top = TOP[0];
  #abort = new AbortController();

  /** `page` has the models and the recent images, and hears what was done (`app.js`). */
  constructor(page, card) {
    this.#page = page;
    const escape = event => { if (event.key === 'Escape') this.#pin(null); };
    this.root = element('section', { class: 'panel', keydown: escape },
      this.#head, this.#stage.root, this.#results, this.#details);
    this.setModel(card);
  }

  /** Another model; the current image is sent to it. */
  setModel(card) {
    this.close();
    this.card = card;
    this.root.setAttribute('aria-label', `Answer of ${card.name}`);
    this.#map = new MapChoice(this.#page, this.#stage, card);
    this.#head.replaceChildren(element('h2', {}, this.#modelChoice()), this.#map.controls);
    this.#details.replaceChildren(element('summary', {}, summary(card)), details(card));
    if (this.#entry) this.show(this.#entry);
  }

  #modelChoice() {
    const { models } = this.#page;
    if (models.length === 1) return this.card.name;
    const change = name => {
      this.setModel(models.find(model => model.name === name));
      this.#head.querySelector('select').focus();
    };
    return select('Model', models.map(({ name }) => [name, name]), this.card.name, change);
  }

  /** Stops what is under way. */
  close() {
    this.#abort.abort();
    this.#map?.close();
  }

  /** Shows an image and requests the model's answer. */
  async show(entry) {
    this.close();
    this.#entry = entry;
    this.#bars = null;
    this.#map.show(entry);
    await this.#answer();
  }

  /** Requests the answer for an image that is not shown. */
  async prefetch(entry) {
    try {
      this.#page.answered(entry, await entry.ask(this.#route(), {}));
    } catch {
      this.#page.failed(entry);
    }
  }

  #route() {
    const { card } = this;
    return card.classes ? routes.classify(card, Math.min(this.#top, card.classes)) : routes.embed(card);
  }

  async #answer() {
    const [entry, url] = [this.#entry, this.#route()];
    const abort = this.#abort = new AbortController();
    const current = () => this.#abort === abort;
    this.root.setAttribute('aria-busy', 'true');
    if (!entry.known(url)) this.#status('working', 'Working on ', entry.name);
    this.#page.did(entry, url);
    try {
      const onWait = seconds => { if (current()) this.#waiting(entry, seconds, abort); };
      const result = await entry.ask(url, { signal: abort.signal, onWait });
      this.#page.answered(entry, result);
      if (!current()) return;
      this.#page.did(entry, url);
      if (this.card.classes) this.#showClasses(entry, result);
      else this.#showSimilar(entry, url);
      this.#map.update();
    } catch (error) {
      if (current()) this.#failed(entry, error, abort);
    } finally {
      if (current()) this.root.removeAttribute('aria-busy');
    }
  }

  #showClasses(entry, result) {
    const none = result.predictions.length === 0;
    const predictions = none ? [result.likeliest] : result.predictions;
    this.#bars = classBars(predictions, {
      onPoint: prediction => this.#map.point(prediction),
      onPin: prediction => this.#pin(prediction.class === this.#map.pinned ? null : prediction),
    });
    this.#bars.pin(this.#map.pinned);
    const more = this.#top === TOP[0] && this.card.classes > TOP[0];
    this.#fill(
      none && element('p', {}, 'No class is above the threshold; the likeliest is'),
      this.#bars,
      more && element('button', { type: 'button', class: 'more', click: () => this.#more() }, 'More classes'),
      element('p', { class: 'timing' }, timing(result.answer.timing)),
      entry.note && element('p', {}, entry.note),
      this.#map.status,
    );
    const named = predictions.slice(0, 2).map(({ label, probability }) => `${label}, ${percent(probability)}`);
    this.#page.announce(`${this.card.name}, ${entry.name}: ${named.join('; then ')}.`);
  }

  /** A model without classes: which recent images it places near this one. */
  #showSimilar(entry, url) {
    const similar = this.#page.recent()
      .filter(other => other !== entry && other.known(url))
      .map(other => ({ entry: other, similarity: cosine(entry.known(url).embedding, other.known(url).embedding) }))
      .sort((a, b) => b.similarity - a.similarity);
    const text = similar.length
      ? 'Recent images by cosine similarity of their embeddings:'
      : `This model has no classes. It embeds an image as ${this.card.embedding} values; further images are compared.`;
    this.#fill(
      element('p', {}, text),
      similar.length > 0 && similarityBars(similar, other => this.#page.open(other)),
      entry.note && element('p', {}, entry.note),
      this.#map.status,
    );
    this.#page.announce(similar.length ? `${entry.name} is most similar to ${similar[0].entry.name}.` : text);
  }

  #fill(...parts) {
    this.#results.replaceChildren(...parts.filter(Boolean));
  }

  async #more() {
    this.#top = TOP[1];
    const before = this.#bars.children.length;
    await this.#answer();
    this.#bars?.children[before]?.firstChild.focus();
  }

  #pin(prediction) {
    this.#map.pin(prediction);
    this.#bars?.pin(prediction?.class);
  }

  #status(kind, ...content) {
    this.#fill(element('div', { class: `status ${kind}` }, element('p', {}, ...content)));
  }

  #offer(text, click) {
    this.#results.firstChild.append(element('button', { type: 'button', click }, text));
  }

  #waiting(entry, seconds, abort) {
    const countdown = this.#results.querySelector('.wait p');
    if (seconds === 0) {
      this.#status('working', 'Working on ', entry.name);
    } else if (countdown) {
      countdown.textContent = busy(seconds);
    } else {
      this.#page.announce('The server is busy; the image is sent again soon.');
      this.#status('wait', busy(seconds));
      this.#offer('Cancel', () => abort.abort());
    }
  }

  #failed(entry, error, abort) {
    const name = element('strong', {}, entry.name);
    if (abort.signal.aborted) {
      this.#status('', name, ' was not sent.');
      this.#offer('Try again', () => this.show(entry));
    } else if (error instanceof Unreachable) {
      this.#status('bad', name, ' has no answer yet. It is sent again when the server is back.');
      this.#page.gone();
    } else if (error instanceof Problem && error.status === 401) {
      this.#status('wait', name, ' waits for the key.');
      this.#page.keyWanted();
    } else {
      this.#status('bad', name, ': ', error.message);
      if (error.status === 429 || error.status >= 500) this.#offer('Try again', () => this.show(entry));
      this.#page.announce(`${entry.name}: ${error.message}`);
      this.#page.failed(entry);
    }
  }
}

function timing({ decode_ms: decode, queue_ms: queue, compute_ms: compute, batch }) {
  const part = (name, value) => `${name} ${value.toFixed(1)} ms`;
  return [part('decode', decode), part('queue', queue), part('compute', compute), `batch of ${batch}`].join(' · ');
}

/** Of vectors of length 1. */
function cosine(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}
