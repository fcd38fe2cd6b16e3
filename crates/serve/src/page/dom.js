/** The element with this id. */
export const byId = id => document.getElementById(id);

/** A new element. Functions among the attributes are event listeners; `null`, `undefined` and `false` are left out. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

/** A labelled `<select>`; options are pairs of value and text. */
export function select(label, options, chosen, onChange) {
  const control = element('select', { change: () => onChange(control.value) },
    ...options.map(([value, text]) => element('option', { value, selected: value === chosen }, text)));
  return element('label', {}, label + ' ', control);
}

/** Copies the text of a node and says so on the button. */
export async function copy(button, node) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(node.textContent);
    button.textContent = 'Copied';
  } catch {
    // Pages without a secure context (HTTPS, or the own machine) have no clipboard.
    getSelection().selectAllChildren(node);
    button.textContent = 'Press Ctrl C';
  }
  setTimeout(() => { button.textContent = before; }, 2000);
}
