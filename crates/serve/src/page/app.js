/** The page of `vit serve`: images in, answers of one or two models. */

import { Problem, Unreachable, call, hasKey, revival, useKey } from './api.js';
import { curlLine } from './curl.js';
import { byId, copy, element } from './dom.js';
import { ImageEntry } from './entry.js';
import { watch } from './intake.js';
import { prepare, summary } from './models.js';
import { Panel } from './panel.js';

/** Recent images that are kept; older ones are freed. */
const KEPT = 24;

let limits = {};
let recent = [];
let current = null;
let panels = [];
let waitingForServer = false;

/** What panels may do with the page. */
const page = {
  models: [],
  recent: () => recent,
  open: entry => open(entry),
  announce: text => { byId('announcement').textContent = text; },

  did(entry, url) {
    if (entry !== current) return;
    byId('curl').textContent = curlLine(url, { file: entry.name, type: entry.type, withKey: hasKey(), method: 'POST' });
    byId('command').hidden = false;
  },

  answered(entry, result) {
    entry.verdict ??= result.predictions?.[0]?.label ?? entry.name;
    entry.broken = false;
    drawStrip();
  },

  failed(entry) {
    entry.broken = true;
    drawStrip();
  },

  async gone() {
    if (waitingForServer) return;
    waitingForServer = true;
    notice('The server does not answer. Is vit serve still running? This page tries again every two seconds.', 'bad');
    await revival();
    waitingForServer = false;
    notice('');
    if (page.models.length === 0) await start();
    else if (current) open(current);
  },

  keyWanted() {
    byId('key').hidden = false;
    byId('key-refused').hidden = !hasKey();
    byId('key-value').focus();
  },
};

function notice(text, kind = '') {
  const place = byId('notice');
  place.className = `notice ${kind}`;
  place.hidden = text === '';
  place.replaceChildren(element('p', {}, text), element('button', {
    type: 'button', click: () => { place.hidden = true; },
  }, 'Dismiss'));
}

async function start() {
  try {
    const answer = await call('v1/models');
    limits = answer.limits ?? {};
    page.models = answer.models.map(card => prepare(card, answer.models.length === 1));
  } catch (error) {
    if (error instanceof Unreachable) page.gone();
    else if (error instanceof Problem && error.status === 401) page.keyWanted();
    else notice(error.message, 'bad');
    return;
  }
  const { models } = page;
  byId('served').replaceChildren(...models.map(model =>
    element('p', {}, element('strong', {}, model.name), ` · ${summary(model)}`)));
  byId('compare').hidden = models.length < 2;
  panels = [new Panel(page, models.find(model => model.default) ?? models[0])];
  if (current) open(current);
}

async function accept(files) {
  notice('');
  const wrong = files.filter(file => file.type && !file.type.startsWith('image/'));
  if (wrong.length) notice(`${wrong.map(file => file.name).join(', ')}: not an image.`, 'bad');
  const images = files.filter(file => !wrong.includes(file));
  if (images.length === 0) return;
  const entries = await Promise.all(images.map(file => new ImageEntry(file, limits).load()));
  recent = [...entries, ...recent];
  recent.splice(KEPT).forEach(entry => entry.release());
  open(entries[0]);
  for (const entry of entries.slice(1, KEPT)) await panels[0]?.prefetch(entry);
}

function open(entry) {
  current = entry;
  byId('intake').classList.remove('inviting');
  byId('served').hidden = true;
  if (!byId('answers').children.length) layOut();
  drawStrip();
  panels.forEach(panel => panel.show(entry));
}

function layOut() {
  byId('answers').classList.toggle('two', panels.length === 2);
  byId('answers').replaceChildren(...panels.map(panel => panel.root));
}

function drawStrip() {
  byId('recent').hidden = recent.length < 2;
  const focused = document.activeElement?.closest('#strip li');
  const at = focused ? [...focused.parentNode.children].indexOf(focused) : -1;
  byId('strip').replaceChildren(...recent.map(entry => element('li', {}, thumbnail(entry))));
  byId('strip').children[at]?.firstChild.focus();
}

function thumbnail(entry) {
  const shown = entry === current ? 'true' : null;
  const attributes = { type: 'button', title: entry.name, 'aria-current': shown, click: () => open(entry) };
  const image = entry.shape === null ? element('i', { class: 'blank' }) : element('img', { src: entry.url, alt: '' });
  const text = entry.broken ? 'no answer' : entry.verdict ?? entry.name;
  return element('button', attributes, image, element('span', { class: entry.broken && 'failed' }, text));
}

byId('compare').addEventListener('click', () => {
  const both = panels.length === 1;
  byId('compare').setAttribute('aria-pressed', String(both));
  if (both) {
    panels.push(new Panel(page, page.models.find(model => model !== panels[0].card)));
    if (current) panels[1].show(current);
  } else {
    panels.pop().close();
  }
  if (current) layOut();
});

byId('copy').addEventListener('click', () => copy(byId('copy'), byId('curl')));

byId('key').addEventListener('submit', event => {
  event.preventDefault();
  useKey(byId('key-value').value);
  byId('key').hidden = true;
  if (page.models.length === 0) start();
  else if (current) open(current);
});

byId('intake').classList.add('inviting');
watch(accept, text => notice(text));
start();
