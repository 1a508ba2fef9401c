// Numbers and units as words, and the few ways in which this page changes its document. Text is set
// as text, never as HTML.

export const NOTHING = '–';

export const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
export const listOf = (value) => (Array.isArray(value) ? value : []);

// Milliseconds with about three digits: 7.25, 84.3, 812. Without a value: –.
export function milliseconds(value) {
  if (!isNumber(value)) return NOTHING;
  return value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

// A duration for people: "84.3 ms", "3.2 s", "4 min".
export function duration(ms) {
  if (!isNumber(ms)) return NOTHING;
  if (ms < 1000) return `${milliseconds(ms)} ms`;
  return ms < 120e3 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60e3)} min`;
}

// How long ago: "14 s", "3 min", "2 h".
export function ago(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 90 ? `${seconds} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// Memory, in powers of 1024.
export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1023.5 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${value.toFixed(unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${units[unit]}`;
}

// Rates of disks and links, in powers of 1000.
export function rate(bytesPerSecond) {
  if (!isNumber(bytesPerSecond)) return NOTHING;
  const [value, unit] = bytesPerSecond >= 999.5e6 ? [bytesPerSecond / 1e9, 'GB/s'] : [bytesPerSecond / 1e6, 'MB/s'];
  return `${value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${unit}`;
}

export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

// Changes the document only where the text differs, so that nothing is announced or selected anew.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const byId = (id) => document.getElementById(id);
export const fromTemplate = (id) => byId(id).content.firstElementChild.cloneNode(true);

// A fill of 0 to 1. The content security policy forbids style attributes; this is none.
export function setShare(element, share) {
  element.style.width = `${(100 * Math.min(Math.max(share || 0, 0), 1)).toFixed(2)}%`;
}

// Makes the children of `parent` those of `items`, in their order. A child stays the same element as
// long as its key exists.
export function keepChildren(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}
