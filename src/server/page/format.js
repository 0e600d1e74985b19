// format.js - numbers as people read them.

const whole = new Intl.NumberFormat('en');

export const count = (n) => (Number.isFinite(n) ? whole.format(Math.round(n)) : '–');

export function bytes(n) {
  if (!Number.isFinite(n)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function duration(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.floor(ms / 1000) % 60} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.floor(ms / 60000) % 60} min`;
}

export const percent = (share) => (Number.isFinite(share) ? `${Math.round(share * 100)} %` : '–');

export function rate(n) {
  if (!Number.isFinite(n)) return '–';
  return n < 100 ? n.toFixed(1) : count(n);
}

// A new element: tag, class, text.
export function element(tag, className = '', text = '') {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text) e.textContent = text;
  return e;
}

// Writes only what changes, so that a screen reader and a selection are left alone.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
