// requests.js - the requests that are live, and which of them is looked at.

import { poll } from './api.js';
import { count, duration, element, setText } from './format.js';

const body = document.getElementById('request-rows');
const note = document.getElementById('requests-note');
const sum = document.getElementById('requests-sum');

// The request that pointer or keyboard is on, here or in the pool. Tells "change".
class Looked extends EventTarget {
  id = 0;

  set(id) {
    if (id === this.id) return;
    this.id = id;
    this.dispatchEvent(new Event('change'));
  }
}
export const looked = new Looked();

let slots = new Map();

// A request as a line of text; one that is gone has only its number.
export function describe(id) {
  const slot = slots.get(id);
  if (!slot) return `request ${id}`;
  return `request ${id} (${slot.endpoint}, ${slot.state}, ${count(slot.n_prompt + slot.n_told)} tokens)`;
}

const columns = [
  ['', (s) => String(s.id)],
  ['', (s) => s.state],
  ['number', (s) => count(s.n_prompt)],
  ['number', (s) => count(s.cached_tokens)],
  ['number', (s) => count(s.n_told)],
  ['number wide', (s) => (s.n_choices > 1 ? `${s.n_over} of ${s.n_choices} over` : '1')],
  ['number wide', (s) => String(s.priority)],
  ['number', (s) => duration(s.age_ms)],
];

// One row takes part in the order of the Tab key; arrow keys go on from there.
function reachable(row) {
  for (const other of body.children) other.tabIndex = other === row ? 0 : -1;
}

function onKey(e) {
  const row = document.activeElement.closest('#request-rows tr');
  const next = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[e.key];
  if (!next) return;
  e.preventDefault();
  next.focus();
}

function newRow(slot) {
  const row = element('tr');
  row.tabIndex = -1;
  row.dataset.id = slot.id;
  for (const [name] of columns) row.append(element('td', name));
  row.addEventListener('pointerenter', () => looked.set(slot.id));
  row.addEventListener('pointerleave', () => looked.set(0));
  row.addEventListener('focus', () => {
    reachable(row);
    looked.set(slot.id);
  });
  row.addEventListener('blur', () => looked.set(0));
  return row;
}

function fillRow(row, slot) {
  columns.forEach(([, text], i) => setText(row.children[i], text(slot)));
  row.children[0].title = `${slot.request_id}, ${slot.endpoint}`;
  row.children[1].dataset.state = slot.state;
}

function show(list) {
  slots = new Map(list.map((slot) => [slot.id, slot]));
  const rows = new Map([...body.children].map((row) => [Number(row.dataset.id), row]));
  for (const [id, row] of rows) if (!slots.has(id)) row.remove();
  list.forEach((slot, i) => {
    const row = rows.get(slot.id) ?? newRow(slot);
    fillRow(row, slot);
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null);
  });
  if (list.length && !body.querySelector('[tabindex="0"]')) reachable(body.firstElementChild);
  const waits = list.filter((s) => s.state === 'queued' || s.state === 'waiting').length;
  setText(sum, list.length ? `${list.length - waits} running, ${waits} waiting` : '');
  setText(note, 'Nothing runs.');
  note.hidden = list.length > 0;
}

function mark() {
  for (const row of body.children) row.classList.toggle('looked', Number(row.dataset.id) === looked.id);
}

export function startRequests(wanted) {
  looked.addEventListener('change', mark);
  body.addEventListener('keydown', onKey);
  poll('slots', {
    wanted,
    data: show,
    failed: (e) => {
      show([]);
      setText(note, e.message);
    },
  });
}
