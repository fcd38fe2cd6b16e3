/** Requests to the server: keys, problem documents (RFC 9457), waiting when it is overloaded. */

/** Requests refused for overload are repeated so many times. */
const RETRIES = 8;

let key = '';

/** The key for all further requests. */
export function useKey(value) {
  key = value;
}

/** Whether requests carry a key. */
export const hasKey = () => key !== '';

/** An answer other than success. */
export class Problem extends Error {
  constructor(status, problem) {
    // A request of the page has one image, which the page names itself.
    super(problem.images?.[0]?.detail || problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.problem = problem;
  }
}

/** No answer at all. */
export class Unreachable extends Error {
  constructor() {
    super('The server does not answer.');
  }
}

/** A path with those parameters that have a value. */
export function address(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

/**
 * The JSON of an answer. `onWait` is called with the remaining seconds while the server is overloaded, and with 0
 * before the next attempt.
 */
export async function call(url, { body, type, signal, onWait = () => {} } = {}) {
  for (let attempt = 0; ; attempt++) {
    const response = await send(url, { body, type, signal });
    if (response.ok) return response.json();
    const after = Number(response.headers.get('Retry-After'));
    const overloaded = response.status === 429 || (response.status === 503 && after > 0);
    if (!overloaded || attempt === RETRIES) throw new Problem(response.status, await problemOf(response));
    await countDown(Math.max(1, Math.ceil(after || 1)), signal, onWait);
  }
}

/** One request; an error is `Unreachable`. */
export async function send(url, { body, type, signal } = {}) {
  const headers = { Accept: 'application/json' };
  if (type) headers['Content-Type'] = type;
  if (key) headers.Authorization = `Bearer ${key}`;
  try {
    return await fetch(url, { method: body ? 'POST' : 'GET', body, headers, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable();
  }
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return {};
  }
}

async function countDown(seconds, signal, onWait) {
  for (let left = seconds; left > 0; left--) {
    onWait(left);
    await pause(1000, signal);
  }
  onWait(0);
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/** Resolves when the server is alive again. */
export async function revival() {
  for (;;) {
    await pause(2000);
    try {
      if ((await fetch('health/live', { cache: 'no-store' })).ok) return;
    } catch {
      // Still gone.
    }
  }
}
