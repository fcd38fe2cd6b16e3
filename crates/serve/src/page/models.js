/** What `GET /v1/models` says about a model, prepared for display. */

import { element } from './dom.js';

/** Methods of explanation: what to call them, and whether each class has a map. */
export const METHODS = {
  gradient: { title: 'for a class (gradient rollout)', byClass: true },
  gradcam: { title: 'for a class (Grad-CAM)', byClass: true },
  rollout: { title: 'attention rollout', byClass: false },
  attention: { title: 'attention of one layer', byClass: false },
};

/** `only`: requests name no model if there is only one. */
export function prepare(card, only) {
  return {
    ...card,
    device: tally(card.device),
    model: only ? undefined : card.name,
    severalLabels: card.problem_type === 'multi_label_classification',
    methods: Object.keys(METHODS).filter(method => card.explain.includes(method)),
  };
}

/** A class as `/v1/explain` takes it: by number, unless a label reads like that number. */
export function nameOf(card, { class: number, label }) {
  return card.labels?.includes(String(number)) ? label : number;
}

/** Equal names once, with their count. */
function tally(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, times]) => (times > 1 ? `${times} × ${name}` : name)).join(', ');
}

/** One line about a model. */
export function summary(card) {
  const classes = card.classes ? `${card.classes.toLocaleString('en')} classes` : 'embeddings only';
  return [card.architecture, `${count(card.parameters)} parameters`, classes, card.device, card.precision]
    .filter(Boolean).join(' · ');
}

/** The model card as a description list. */
export function details(card) {
  const heads = [...new Set(card.heads)].join(', ');
  const rows = [
    ['Architecture', card.architecture],
    ['Parameters', card.parameters.toLocaleString('en')],
    ['Image size', `${card.image_size.join(' × ')} px`],
    ['Classes', card.classes || 'none'],
    ['Problem', card.problem_type.replaceAll('_', ' ')],
    ['Embedding', `${card.embedding} values`],
    ['Attention', card.layers ? `${card.layers} layers, ${heads} heads` : 'none'],
    ['Device', card.device],
    ['Precision', card.precision],
    ['Largest batch', card.max_batch],
    ['Wait for a batch', `at most ${Number(card.max_delay_ms.toPrecision(2))} ms`],
    ['Memory', `${(card.memory_bytes / 2 ** 20).toFixed(1)} MiB`],
    ['Version', card.version],
  ];
  return element('dl', {}, ...rows.map(([term, value]) =>
    element('div', {}, element('dt', {}, term), element('dd', {}, String(value)))));
}

function count(value) {
  const [unit, name] = value >= 1e9 ? [1e9, ' B'] : value >= 1e6 ? [1e6, ' M'] : value >= 1e3 ? [1e3, ' k'] : [1, ''];
  return Number((value / unit).toPrecision(3)) + name;
}
