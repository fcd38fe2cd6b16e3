/** One model's view of the current image: its answer, a map, its card. */

import { Problem, Unreachable } from './api.js';
import { classBars, percent, similarityBars } from './bars.js';
import { element, select } from './dom.js';
import { routes } from './entry.js';
import { METHODS, details, nameOf, summary } from './models.js';
import { Stage } from './stage.js';

/** Classes that are shown at first, and after "More classes". */
const TOP = [5, 20];

/** A pointer rests so many milliseconds on a class before its map is requested. */
const REST = 120;

export class Panel {
  #page;
  #entry = null;
  #head = element('div', { class: 'panel-head' });
  #stage = new Stage();
  #results = element('div', { class: 'results' });
  #card = element('details', { class: 'card' });
  #mapStatus = element('p', { class: 'hint' });
  #bars = null;
  #top = TOP[0];
  #method = 'off';
  #layer = null;
  #headIndex = null;
  #pinned = null;
  #pointed = null;
  #answerAbort = new AbortController();
  #mapAbort = new AbortController();

  /** `page` has the models, the recent images, and is told what was done (`app.js`). */
  constructor(page, card) {
    this.#page = page;
    this.root = element('section', {
      class: 'panel',
      keydown: event => { if (event.key === 'Escape') this.#pin(null); },
    }, this.#head, this.#stage.root, this.#results, this.#card);
    this.setModel(card);
  }

  /** Another model; the current image is sent to it. */
  setModel(card) {
    this.card = card;
    this.root.setAttribute('aria-label', `Answer of ${card.name}`);
    this.#method = card.methods[0] ?? 'off';
    [this.#layer, this.#headIndex, this.#pinned, this.#pointed] = [null, null, null, null];
    this.#card.replaceChildren(element('summary', {}, summary(card)), details(card));
    this.#controls();
    if (this.#entry) this.show(this.#entry);
  }

  /** Stops what is under way. */
  close() {
    this.#answerAbort.abort();
    this.#mapAbort.abort();
  }

  /** Shows an image and requests the model's answer. */
  async show(entry) {
    this.close();
    this.#entry = entry;
    [this.#bars, this.#pinned, this.#pointed] = [null, null, null];
    this.#stage.show(entry);
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
    const [entry, card, url] = [this.#entry, this.card, this.#route()];
    const abort = this.#answerAbort = new AbortController();
    const current = () => this.#answerAbort === abort;
    this.root.setAttribute('aria-busy', 'true');
    if (!entry.known(url)) this.#status('working', 'Working on ', entry.name);
    this.#page.did(entry, url);
    try {
      const onWait = seconds => { if (current()) this.#waiting(entry, seconds, abort); };
      const result = await entry.ask(url, { signal: abort.signal, onWait });
      this.#page.answered(entry, result);
      if (!current()) return;
      this.#page.did(entry, url);
      if (card.classes) this.#showClasses(entry, result);
      else this.#showSimilar(entry, url);
      this.#updateMap();
    } catch (error) {
      if (current()) this.#failed(entry, error, abort);
    } finally {
      if (current()) this.root.removeAttribute('aria-busy');
    }
  }

  #showClasses(entry, result) {
    const none = result.predictions.length === 0;
    const predictions = none ? [result.likeliest].filter(Boolean) : result.predictions;
    this.#bars = classBars(predictions, {
      onPoint: prediction => { this.#pointed = prediction; this.#updateMap(); },
      onPin: prediction => this.#pin(prediction.class === this.#pinned?.class ? null : prediction),
    });
    this.#bars.pin(this.#pinned?.class);
    const more = this.#top === TOP[0] && this.card.classes > TOP[0];
    this.#results.replaceChildren(...[
      none ? element('p', {}, 'No class is above the threshold; the likeliest is') : null,
      this.#bars,
      more ? element('button', { type: 'button', class: 'more', click: () => this.#more() }, 'More classes') : null,
      element('p', { class: 'timing' }, timing(result.timing ?? result.answer.timing)),
      entry.note ? element('p', {}, entry.note) : null,
      this.#mapStatus,
    ].filter(Boolean));
    const [first, second] = predictions;
    this.#page.announce(`${this.card.name}, ${entry.name}: ${first.label}, ${percent(first.probability)}`
      + (second ? `; then ${second.label}, ${percent(second.probability)}.` : '.'));
  }

  /** A model without classes: which recent images it places near this one. */
  #showSimilar(entry, url) {
    const similar = this.#page.recent()
      .filter(other => other !== entry && other.known(url))
      .map(other => ({ entry: other, similarity: cosine(entry.known(url).embedding, other.known(url).embedding) }))
      .sort((a, b) => b.similarity - a.similarity);
    const text = similar.length
      ? 'Recent images by cosine similarity of their embeddings:'
      : `This model has no classes. It turns an image into ${this.card.embedding} values; further images are compared by them.`;
    this.#results.replaceChildren(...[
      element('p', {}, text),
      similar.length ? similarityBars(similar, other => this.#page.open(other)) : null,
      this.#mapStatus,
      entry.note ? element('p', {}, entry.note) : null,
    ].filter(Boolean));
    this.#page.announce(similar.length ? `${entry.name} is most similar to ${similar[0].entry.name}.` : text);
  }

  async #more() {
    this.#top = TOP[1];
    const before = this.#bars.children.length;
    await this.#answer();
    this.#bars?.children[before]?.firstChild.focus();
  }

  #pin(prediction) {
    this.#pinned = prediction;
    if (!prediction) this.#pointed = null;
    this.#bars?.pin(prediction?.class);
    this.#updateMap();
  }

  /** What `/v1/explain` is asked for now; `null` for no map. */
  #question() {
    if (this.#method === 'off' || !this.#entry) return null;
    const method = this.#method;
    if (!METHODS[method].byClass) {
      const chosen = method === 'attention' ? { layer: this.#layer ?? this.card.layers - 1, head: this.#headIndex } : {};
      return { query: { method, ...chosen }, title: mapTitle(method, chosen) };
    }
    const prediction = this.#pointed ?? this.#pinned;
    return prediction && { query: { method, class: nameOf(this.card, prediction) }, class: prediction.class, title: `Evidence for ${prediction.label}` };
  }

  async #updateMap() {
    this.#mapAbort.abort();
    const abort = this.#mapAbort = new AbortController();
    const [entry, question] = [this.#entry, this.#question()];
    this.#mapStatus.textContent = '';
    if (!question) {
      this.#stage.showMap(null);
      if (METHODS[this.#method]?.byClass && this.#bars) {
        this.#mapStatus.textContent = 'Point at a class to see where its evidence lies in the image; choose it to keep the map.';
      }
      return;
    }
    if (entry.shape === null) {
      this.#mapStatus.textContent = 'There are maps only over images that this browser can show.';
      return;
    }
    const url = routes.explain(this.card, question.query);
    try {
      if (!entry.known(url)) {
        await rest(abort.signal);
        this.#mapStatus.textContent = 'Computing the map …';
      }
      const onWait = seconds => { this.#mapStatus.textContent = seconds ? busy(seconds) : 'Computing the map …'; };
      const result = await entry.ask(url, { signal: abort.signal, onWait });
      if (this.#mapAbort !== abort) return;
      const map = result.maps.find(candidate => candidate.class === question.class) ?? result.maps.at(-1);
      this.#stage.showMap(map, question.title);
      this.#mapStatus.textContent = METHODS[this.#method].byClass || !this.card.classes ? '' : 'This map is the same for every class.';
      this.#page.did(entry, url);
    } catch (error) {
      if (this.#mapAbort !== abort || abort.signal.aborted) return;
      this.#stage.showMap(null);
      this.#mapStatus.textContent = `No map: ${error.message}`;
      if (error instanceof Unreachable) this.#page.gone();
    }
  }

  #controls() {
    const { card } = this;
    const models = this.#page.models;
    const title = models.length > 1
      ? element('h2', {}, select('Model', models.map(({ name }) => [name, name]), card.name,
        name => this.setModel(models.find(model => model.name === name))))
      : element('h2', {}, card.name);
    const controls = [title];
    if (card.methods.length) {
      const methods = [...card.methods.map(method => [method, METHODS[method].title]), ['off', 'none']];
      controls.push(select('Map', methods, this.#method, method => {
        this.#method = method;
        this.#controls();
        this.#head.querySelectorAll('select')[models.length > 1 ? 1 : 0].focus();
        this.#updateMap();
      }));
    }
    if (this.#method === 'attention') controls.push(...this.#attentionControls());
    this.#head.replaceChildren(...controls);
  }

  #attentionControls() {
    const numbers = count => Array.from({ length: count }, (_, i) => [String(i), String(i)]);
    const layer = this.#layer ?? this.card.layers - 1;
    return [
      select('Layer', numbers(this.card.layers), String(layer), value => {
        this.#layer = Number(value);
        this.#updateMap();
      }),
      select('Head', [['', 'mean of all'], ...numbers(this.card.heads[layer])], String(this.#headIndex ?? ''), value => {
        this.#headIndex = value === '' ? null : Number(value);
        this.#updateMap();
      }),
    ];
  }

  #status(kind, ...content) {
    this.#results.replaceChildren(element('div', { class: `status ${kind}` }, element('p', {}, ...content)));
  }

  #waiting(entry, seconds, abort) {
    if (seconds === 0) {
      this.#status('working', 'Working on ', entry.name);
      return;
    }
    const countdown = this.#results.querySelector('.wait p');
    if (countdown) {
      countdown.textContent = busy(seconds);
      return;
    }
    this.#page.announce('The server is busy; the image is sent again soon.');
    this.#status('wait', busy(seconds));
    this.#results.firstChild.append(element('button', { type: 'button', click: () => abort.abort() }, 'Cancel'));
  }

  #failed(entry, error, abort) {
    if (error instanceof Unreachable) {
      this.#page.gone();
      this.#status('bad', element('strong', {}, entry.name), ' has no answer yet. It is sent again when the server is back.');
      return;
    }
    if (error instanceof Problem && error.status === 401) {
      this.#page.keyWanted();
      this.#status('wait', entry.name, ' waits for the key.');
      return;
    }
    const cancelled = abort.signal.aborted;
    const reasons = error.problem?.images?.map(image => image.detail).filter(detail => detail !== error.message) ?? [];
    const text = cancelled ? 'was not sent.' : [error.message, ...reasons].join(' ');
    this.#status(cancelled ? '' : 'bad', element('strong', {}, entry.name), cancelled ? ' ' : ': ', text);
    if (cancelled || error.status === 429 || error.status >= 500) {
      this.#results.firstChild.append(element('button', { type: 'button', click: () => this.show(entry) }, 'Try again'));
    }
    this.#page.announce(`${entry.name}: ${text}`);
    this.#page.failed(entry);
  }
}

const busy = seconds => `The server is busy. Next attempt in ${seconds} s.`;

function mapTitle(method, { layer, head }) {
  if (method !== 'attention') return 'Attention rollout';
  return `Attention of layer ${layer}, ${head === null ? 'mean of all heads' : `head ${head}`}`;
}

function timing(times) {
  if (!times) return '';
  const part = (name, value) => (value === undefined ? null : `${name} ${value.toFixed(1)} ms`);
  return [
    part('decode', times.decode_ms), part('queue', times.queue_ms), part('compute', times.compute_ms),
    times.batch ? `batch of ${times.batch}` : null,
  ].filter(Boolean).join(' · ');
}

function cosine(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}

function rest(signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, REST);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
