/** Requests as `curl` lines. */

/** A word of a POSIX shell. */
export function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The line that sends `file` (a name) to `url`, or only reads it. */
export function curlLine(url, { file, type, withKey = false, method = 'GET', json } = {}) {
  const parts = ['curl', '-sS'];
  if (method !== 'GET' && method !== 'POST') parts.push('-X', method);
  parts.push(quote(new URL(url, document.baseURI).href));
  if (withKey) parts.push('-H', '"Authorization: Bearer $VIT_API_KEY"');
  if (type) parts.push('-H', quote(`Content-Type: ${type}`));
  if (file) parts.push('--data-binary', quote(`@${file}`));
  else if (json !== undefined) parts.push('--data', quote(json));
  else if (method === 'POST') parts.push('-X', 'POST');
  return parts.join(' ');
}
