/** Ways for an image to come in: dropped, pasted, picked, photographed. */

import { byId } from './dom.js';

/** Calls `onFiles` with the files of every drop, paste or choice, or `onRefusal` with a sentence if there are none. */
export function watch(onFiles, onRefusal) {
  const choose = (button, input) => {
    byId(button).addEventListener('click', () => byId(input).click());
    byId(input).addEventListener('change', event => {
      const files = [...event.target.files];
      // Choosing the same file again is a change, too.
      event.target.value = '';
      if (files.length) onFiles(files);
    });
  };
  choose('pick', 'file');
  choose('photograph', 'camera');

  document.addEventListener('paste', event => {
    const files = [...event.clipboardData.files];
    if (files.length) onFiles(files);
    else if (!event.target.closest?.('input')) onRefusal('There is no image in the clipboard.');
  });
  const paste = byId('paste');
  paste.hidden = !navigator.clipboard?.read;
  paste.addEventListener('click', async () => {
    const files = await clipboardImages();
    if (files.length) onFiles(files);
    else onRefusal('There is no image in the clipboard, or this browser does not show it to pages.');
  });

  const dragging = on => document.body.classList.toggle('dragging', on);
  document.addEventListener('dragover', event => {
    event.preventDefault();
    dragging(true);
  });
  document.addEventListener('dragleave', event => {
    if (!event.relatedTarget) dragging(false);
  });
  document.addEventListener('drop', event => {
    event.preventDefault();
    dragging(false);
    const files = [...event.dataTransfer.files];
    if (files.length) onFiles(files);
    else onRefusal('That is a link, and this page opens no addresses. Save the image, then drop the file.');
  });
}

async function clipboardImages() {
  try {
    const files = [];
    for (const item of await navigator.clipboard.read()) {
      const type = item.types.find(name => name.startsWith('image/'));
      if (type) files.push(new File([await item.getType(type)], `pasted.${type.slice(6)}`, { type }));
    }
    return files;
  } catch {
    return [];
  }
}
