/** Lists of bars: classes with their probabilities, or recent images with their similarity. */

import { element } from './dom.js';

/** A share as text. */
export function percent(share) {
  return share > 0 && share < 0.001 ? '< 0.1%' : `${(100 * share).toFixed(1)}%`;
}

/**
 * Classes by probability. `onPoint` gets the prediction under the pointer or the keyboard's focus, or `null`; `onPin`
 * the prediction that was clicked.
 */
export function classBars(predictions, { onPoint, onPin }) {
  const buttons = predictions.map(prediction => {
    const button = element('button', {
      type: 'button',
      'aria-pressed': 'false',
      'data-class': prediction.class,
      pointerenter: event => { if (event.pointerType === 'mouse') onPoint(prediction); },
      pointerleave: event => { if (event.pointerType === 'mouse') onPoint(null); },
      focus: () => { if (button.matches(':focus-visible')) onPoint(prediction); },
      blur: () => onPoint(null),
      click: () => onPin(prediction),
    }, ...bar(prediction.label, prediction.probability));
    return button;
  });
  const keydown = event => moveFocus(event, buttons);
  const list = element('ol', { class: 'bars', 'aria-label': 'Classes by probability', keydown },
    ...buttons.map(button => element('li', {}, button)));
  list.pin = chosen => buttons.forEach((button, i) =>
    button.setAttribute('aria-pressed', String(predictions[i].class === chosen)));
  return list;
}

/** Recent images by cosine similarity; choosing one shows it. */
export function similarityBars(images, onChoose) {
  return element('ol', { class: 'bars similar' }, ...images.map(({ entry, similarity }) => element('li', {},
    element('button', { type: 'button', click: () => onChoose(entry) },
      ...bar(entry.name, similarity, similarity.toFixed(3))))));
}

function bar(label, share, text = percent(share)) {
  const fill = element('span', { class: 'fill' });
  fill.style.setProperty('--share', `${Math.max(0, 100 * share)}%`);
  return [
    element('span', { class: 'label' }, label),
    element('span', { class: 'percent' }, text),
    element('span', { class: 'track', 'aria-hidden': 'true' }, fill),
  ];
}

function moveFocus(event, buttons) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const at = buttons.indexOf(event.target);
  if (!step || at < 0) return;
  event.preventDefault();
  buttons[Math.min(Math.max(at + step, 0), buttons.length - 1)].focus();
}
