/** A viewer of the server's `openapi.json`. */

import { send, useKey } from './api.js';
import { curlLine } from './curl.js';
import { byId, copy, element } from './dom.js';
import { inline, paragraphs } from './prose.js';
import { Schemas } from './schema.js';

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];

let schemas;

/** Operations in the order of the document, with the name of their group. */
function operations(document) {
  return Object.entries(document.paths).flatMap(([path, item]) => METHODS.filter(method => item[method]).map(method => {
    const operation = item[method];
    const parameters = [...item.parameters ?? [], ...operation.parameters ?? []].map(p => schemas.resolve(p));
    const group = operation.tags?.[0] ?? path.split('/')[1] ?? '';
    return { ...operation, path, method, parameters, group, id: `${method}${path.replaceAll(/[^\w]+/g, '-')}` };
  }));
}

function show(document) {
  schemas = new Schemas(document);
  const all = operations(document);
  const order = [...new Set([...(document.tags ?? []).map(tag => tag.name), ...all.map(operation => operation.group)])];
  const groups = order.map(name => ({
    name,
    about: document.tags?.find(tag => tag.name === name)?.description,
    routes: all.filter(operation => operation.group === name),
  })).filter(group => group.routes.length);

  const { info } = document;
  byId('about').replaceChildren(...paragraphs(info.description), element('p', {}, `Version ${info.version}`));
  byId('locked').hidden = !document.components?.securitySchemes;
  byId('routes').replaceChildren(...groups.map(group => element('section', {},
    element('h2', {}, group.name), ...paragraphs(group.about), ...group.routes.map(route))));
  byId('contents').replaceChildren(...groups.flatMap(group => [
    element('h2', {}, group.name),
    element('ul', {}, ...group.routes.map(operation => element('li', {},
      element('a', { href: `#${operation.id}` }, badge(operation.method), element('span', {}, operation.path))))),
  ]));
  find();
  openNamed();
}

/** Opens the operation that the address names. */
function openNamed() {
  const named = byId(location.hash.slice(1));
  if (named instanceof HTMLDetailsElement) {
    named.open = true;
    named.scrollIntoView();
  }
}

const badge = method => element('span', { class: `method ${method}` }, method);

/** One operation. Its contents are built when it is first opened. */
function route(operation) {
  const statuses = Object.keys(operation.responses ?? {}).join(' ');
  const inside = element('div', { class: 'inside' });
  return element('details', {
    class: 'route',
    id: operation.id,
    'data-words': `${operation.method} ${operation.path} ${operation.summary ?? ''} ${statuses}`.toLowerCase(),
    toggle: event => { if (event.target.open && !inside.children.length) fill(inside, operation); },
  },
  element('summary', {},
    badge(operation.method), element('code', {}, operation.path), element('span', {}, operation.summary ?? '')),
  inside);
}

function fill(inside, operation) {
  const { parameters, requestBody, responses = {} } = operation;
  const answers = Object.entries(responses).map(([status, response]) => answer(status, schemas.resolve(response)));
  inside.append(...[
    ...paragraphs(operation.description),
    parameters.length ? section('Parameters', parameterTable(parameters)) : null,
    requestBody ? section('Request body', ...contents(schemas.resolve(requestBody), true)) : null,
    section('Answers', ...answers),
    section('From a shell', shell(example(operation))),
    operation.method === 'get' ? section('Try it', tryIt(operation)) : null,
  ].filter(Boolean));
}

const section = (title, ...children) => element('section', {}, element('h3', {}, title), ...children);

function parameterTable(parameters) {
  const names = ['Name', 'In', 'Type', 'Meaning'].map(name => element('th', { scope: 'col' }, name));
  const required = element('span', { class: 'required' }, ' required');
  return element('div', { class: 'scroll' }, element('table', {},
    element('thead', {}, element('tr', {}, ...names)),
    element('tbody', {}, ...parameters.map(parameter => element('tr', {},
      element('td', {}, element('code', {}, parameter.name), parameter.required ? required.cloneNode(true) : null),
      element('td', {}, parameter.in),
      element('td', {}, element('span', { class: 'type' }, schemas.typeOf(parameter.schema))),
      element('td', {}, ...inline(parameter.description)))))));
}

/** The media types of a body, each with its schema and, in a request, an example. */
function contents({ description, content = {} }, isRequest) {
  const types = Object.entries(content).map(([type, { schema = {}, example: given }]) => {
    const tree = schemas.tree(schema, isRequest);
    const value = given ?? (isRequest && /json/.test(type) && tree ? schemas.example(schema) : undefined);
    const sample = value && JSON.stringify(value, null, 2);
    const line = [element('code', {}, type), ' ', element('span', { class: 'type' }, schemas.typeOf(schema))];
    if (!tree && !sample) return element('p', {}, ...line);
    const open = Object.keys(content).length === 1;
    return element('details', { class: 'body', open }, element('summary', {}, ...line), ...[
      tree, sample ? element('pre', { tabindex: 0 }, sample) : null,
    ].filter(Boolean));
  });
  return [...paragraphs(description), ...types];
}

function answer(status, response) {
  const code = element('span', { class: Number(status) >= 400 ? 'status-code bad' : 'status-code' }, status);
  return element('details', { class: 'body' },
    element('summary', {}, code, ...inline(response.description)),
    ...contents({ content: response.content }, false));
}

/** The `curl` line of an operation with its required parameters. */
function example(operation) {
  const value = ({ required, example: given, name }) => (required ? String(given ?? name.toUpperCase()) : '');
  const types = Object.keys(schemas.resolve(operation.requestBody).content ?? {});
  const image = types.find(type => type.startsWith('image/'));
  const json = types.find(type => type.includes('json'));
  const options = { method: operation.method.toUpperCase() };
  if (image) Object.assign(options, { type: image === 'image/*' ? 'image/jpeg' : image, file: 'image.jpg' });
  else if (json) {
    const body = schemas.resolve(operation.requestBody).content[json];
    Object.assign(options, { type: json, json: JSON.stringify(body.example ?? schemas.example(body.schema)) });
  }
  return curlLine(addressOf(operation, value), options);
}

/** The address of an operation; `value` gives the text of a parameter. */
function addressOf({ path, parameters }, value) {
  const filled = parameters.filter(p => p.in === 'path')
    .reduce((text, p) => text.replace(`{${p.name}}`, encodeURIComponent(value(p) || p.name)), path);
  const query = new URLSearchParams(parameters.filter(p => p.in === 'query' && value(p)).map(p => [p.name, value(p)]));
  return filled.replace(/^\//, '') + (query.size ? `?${query}` : '');
}

function shell(line) {
  const code = element('code', {}, line);
  const button = element('button', { type: 'button', click: () => copy(button, code) }, 'Copy');
  return element('div', { class: 'shell' }, element('pre', { tabindex: 0 }, code), button);
}

function tryIt(operation) {
  const fields = operation.parameters.filter(p => p.in === 'path' || p.in === 'query').map(parameter => {
    const input = element('input', { type: 'text', required: parameter.required, autocomplete: 'off' });
    return { parameter, input, label: element('label', {}, `${parameter.name} `, input) };
  });
  const output = element('pre', { hidden: true, tabindex: 0, 'aria-live': 'polite' });
  const submit = async event => {
    event.preventDefault();
    const value = parameter => fields.find(field => field.parameter === parameter)?.input.value;
    output.hidden = false;
    output.textContent = '…';
    output.textContent = await request(addressOf(operation, value));
  };
  return element('form', { class: 'try', submit },
    fields.length ? element('div', { class: 'fields' }, ...fields.map(field => field.label)) : null,
    element('button', { type: 'submit', class: 'primary' }, 'Send'), output);
}

async function request(url) {
  try {
    const response = await send(url);
    const text = await response.text();
    const json = /json/.test(response.headers.get('Content-Type') ?? '') && text;
    return `${response.status} ${response.statusText}\n\n${json ? JSON.stringify(JSON.parse(text), null, 2) : text}`;
  } catch (error) {
    return error.message;
  }
}

function find() {
  const words = byId('find').value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const details of document.querySelectorAll('.route')) {
    details.hidden = !words.every(word => details.dataset.words.includes(word));
    count += !details.hidden;
  }
  for (const group of document.querySelectorAll('#routes > section')) {
    group.hidden = !group.querySelector('.route:not([hidden])');
  }
  byId('found').textContent = `${count} ${count === 1 ? 'route' : 'routes'}`;
}

byId('find').addEventListener('input', find);
byId('key').addEventListener('input', () => useKey(byId('key').value));
addEventListener('hashchange', openNamed);
try {
  const response = await send('openapi.json');
  if (!response.ok) throw new Error(`openapi.json: the server answered ${response.status}.`);
  show(await response.json());
} catch (error) {
  byId('routes').replaceChildren(element('p', {}, error.message));
}
