/** The little Markdown of an OpenAPI document: paragraphs and `code`. */

import { element } from './dom.js';

/** A text as paragraphs. */
export function paragraphs(text = '') {
  return text.split(/\n\s*\n/).filter(Boolean).map(part => element('p', {}, ...inline(part)));
}

/** A text with its code spans as nodes. */
export function inline(text = '') {
  return text.split(/`([^`]+)`/).map((part, i) => (i % 2 ? element('code', {}, part) : part));
}
