/** JSON schemas of an OpenAPI document: as a tree to read, and as an example value. */

import { element } from './dom.js';
import { inline } from './prose.js';

/** Schemas nested deeper are named, not unfolded. */
const DEPTH = 6;

export class Schemas {
  #document;

  constructor(document) {
    this.#document = document;
  }

  /** Follows `$ref`. */
  resolve(schema) {
    for (let steps = 0; schema?.$ref && steps < 8; steps++) {
      const path = schema.$ref.replace(/^#\//, '').split('/');
      schema = path.reduce((value, part) => value?.[part.replaceAll('~1', '/').replaceAll('~0', '~')], this.#document);
    }
    return schema ?? {};
  }

  /** A schema's type in a few words. */
  typeOf(schema) {
    const name = schema?.$ref?.split('/').at(-1);
    const found = this.resolve(schema);
    if (found.enum) return found.enum.map(value => JSON.stringify(value)).join(' | ');
    if (found.const !== undefined) return JSON.stringify(found.const);
    const choices = found.oneOf ?? found.anyOf;
    if (choices) return name ?? withoutNull(choices.map(choice => this.typeOf(choice))).join(' | ');
    const types = [found.type ?? (found.properties ? 'object' : 'any')].flat();
    return withoutNull(types).map(type => {
      if (type === 'array') return found.items ? `[${this.typeOf(found.items)}]` : 'array';
      if (type === 'object') return name ?? 'object';
      return found.format ? `${type} (${found.format})` : type;
    }).join(' | ');
  }

  /**
   * The fields of a schema as a list; those that a request must have are marked. `above` are the schemas around it,
   * which are not unfolded again.
   */
  tree(schema, isRequest, above = []) {
    const found = this.resolve(schema);
    if (above.includes(found) || above.length > DEPTH) return null;
    const inside = [...above, found];
    if (found.type === 'array' || found.items) return this.tree(found.items, isRequest, inside);
    const choices = found.allOf ?? found.oneOf ?? found.anyOf ?? [];
    const parts = choices.map(part => this.tree(part, isRequest, inside)).filter(Boolean);
    const fields = Object.entries(found.properties ?? {}).map(([name, value]) => {
      const line = this.#line(name, value, isRequest && found.required?.includes(name));
      const nested = this.tree(value, isRequest, inside);
      return element('li', {}, ...nested ? [element('details', {}, element('summary', {}, ...line), nested)] : line);
    });
    if (fields.length === 0 && parts.length === 0) return null;
    return element('ul', { class: 'schema' }, ...fields, ...parts.map(part => element('li', {}, part)));
  }

  #line(name, schema, required) {
    return [
      element('code', {}, name), ' ',
      element('span', { class: 'type' }, this.typeOf(schema)), ' ',
      required ? element('span', { class: 'required' }, 'required ') : '',
      element('span', { class: 'meaning' }, ...inline(schema.description ?? this.resolve(schema).description)),
    ];
  }

  /** A value of this schema. */
  example(schema, above = []) {
    const found = this.resolve(schema);
    const given = found.example ?? found.examples?.[0] ?? found.default ?? found.const ?? found.enum?.[0];
    if (given !== undefined) return given;
    if (above.includes(found)) return null;
    const inside = [...above, found];
    const choice = (found.oneOf ?? found.anyOf)?.find(part => part.type !== 'null');
    if (choice) return this.example(choice, inside);
    if (found.allOf) return Object.assign({}, ...found.allOf.map(part => this.example(part, inside)));
    const type = [found.type].flat().find(name => name !== 'null');
    if (found.properties || type === 'object') {
      const fields = Object.entries(found.properties ?? {});
      const needed = found.required ? fields.filter(([name]) => found.required.includes(name)) : fields;
      return Object.fromEntries(needed.map(([name, value]) => [name, this.example(value, inside)]));
    }
    if (type === 'array') return found.items ? [this.example(found.items, inside)] : [];
    return { string: 'text', integer: 1, number: 0.5, boolean: true }[type] ?? null;
  }
}

/** Optional fields are nullable; their type reads better without. */
function withoutNull(types) {
  return types.length === 1 ? types : types.filter(type => type !== 'null');
}
