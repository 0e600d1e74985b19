// pool.js - the pool drawn: slabs as strips of blocks, coloured by state.

import { poll } from './api.js';
import { bytes, count, element, setText } from './format.js';
import { Layout, countStates, ownerOf, rowsShown, states } from './map.js';
import { describe, looked } from './requests.js';

const byId = (id) => document.getElementById(id);
const nameOf = Object.fromEntries(states.map(([letter, name]) => [letter, name]));
const tallest = 320; // of a drawing, in pixels; more scrolls
const scrollBar = 12; // as in page.css

let colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  colours = { ink: value('--ink'), strip: value('--strip'), onBlock: value('--on-block') };
  for (const [letter, name] of states) colours[letter] = value(`--s-${name}`);
}

// One group's drawing: a window onto it that scrolls, a cursor, and a line that says what is under it.
class GroupView {
  constructor(index) {
    this.index = index;
    this.cursor = -1;
    this.hovered = -1;
    this.figure = element('figure', 'group');
    this.caption = element('figcaption', 'muted');
    this.scroller = element('div', 'scroller');
    this.sizer = element('div', 'sizer');
    this.canvas = element('canvas');
    this.readout = element('p', 'readout');
    this.tip = element('div', 'tip');
    this.tip.hidden = true;
    this.scroller.tabIndex = -1;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'application');
    this.canvas.setAttribute('aria-roledescription', 'map of blocks');
    this.canvas.setAttribute('aria-label', `Blocks of group ${index}. Arrow keys move over them.`);
    this.readout.setAttribute('aria-live', 'polite');
    this.sizer.append(this.canvas);
    this.scroller.append(this.sizer);
    this.figure.append(this.caption, this.scroller, this.readout, this.tip);
    this.listen();
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener('pointermove', (e) => this.hover(this.rowUnder(e), e));
    canvas.addEventListener('pointerleave', () => this.hover(-1));
    canvas.addEventListener('pointerdown', (e) => this.moveTo(this.rowUnder(e)));
    canvas.addEventListener('keydown', (e) => this.key(e));
    canvas.addEventListener('focus', () => this.moveTo(this.cursor < 0 ? 0 : this.cursor));
    canvas.addEventListener('blur', () => {
      looked.set(0);
      this.draw();
    });
    this.scroller.addEventListener('scroll', () => this.draw(), { passive: true });
    new ResizeObserver(() => this.measure()).observe(this.figure);
  }

  show(map) {
    this.map = map;
    const slabsOf = (rows) => Math.ceil(rows / map.slab_blocks);
    const slabs = slabsOf(rowsShown(map));
    const left = slabsOf(map.states.length) - slabs;
    const group = this.alone ? '' : `Group ${map.group}: `;
    const more = left > 0 ? `, room for ${count(left)} more` : '';
    setText(this.caption, `${group}${count(slabs)} ${slabs === 1 ? 'slab' : 'slabs'} of `
      + `${map.slab_blocks} blocks of ${bytes(map.block_bytes)}${more}`);
    if (rowsShown(map) === this.nRows) this.draw();
    else this.measure();
    this.tell();
  }

  measure() {
    const width = this.figure.clientWidth;
    if (!this.map || width === 0) return;
    this.nRows = rowsShown(this.map);
    this.layout = new Layout(this.nRows, this.map.slab_blocks, width - scrollBar, tallest);
    this.cursor = Math.min(this.cursor, this.nRows - 1);
    const height = Math.min(this.layout.height, tallest);
    const dots = window.devicePixelRatio || 1;
    this.sizer.style.height = `${this.layout.height}px`;
    this.scroller.style.height = `${height}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round((width - scrollBar) * dots);
    this.canvas.height = Math.round(height * dots);
    this.draw();
  }

  rowUnder(e) {
    return this.layout ? this.layout.rowAt(e.offsetX, e.offsetY + this.scroller.scrollTop) : -1;
  }

  // ---- drawing: once a frame at most, and only what the window shows ----

  draw() {
    if (this.drawing || !this.layout) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.paint();
    });
  }

  paint() {
    const { layout, canvas, map } = this;
    const g = canvas.getContext('2d');
    const dots = window.devicePixelRatio || 1;
    const top = this.scroller.scrollTop;
    g.setTransform(dots, 0, 0, dots, 0, -top * dots);
    g.clearRect(0, top, canvas.width, canvas.height);
    const [first, beyond] = layout.rowsBetween(top, top + canvas.height / dots);
    this.paintStrips(g, first, beyond);
    for (let row = first; row < beyond; row++) this.paintBlock(g, row, map.states[row]);
    if (looked.id) this.paintOwner(g, first, beyond);
    if (document.activeElement === canvas && this.cursor >= 0) this.paintFrame(g, this.cursor, colours.ink, 2);
    if (this.hovered >= 0) this.paintFrame(g, this.hovered, colours.ink, 1);
  }

  paintStrips(g, first, beyond) {
    const { layout, map } = this;
    g.fillStyle = colours.strip;
    for (let row = first; row < beyond; row += map.slab_blocks) {
      const { x, y } = layout.slabAt(row / map.slab_blocks);
      const columns = Math.min(layout.columns, this.nRows - row);
      g.fillRect(x, y, columns * layout.cellWidth - 1, layout.stepY - layout.gap - 1);
    }
  }

  paintBlock(g, row, state) {
    if (state === '-') return;
    const { x, y } = this.layout.blockAt(row);
    const { cellWidth, cellHeight } = this.layout;
    g.fillStyle = colours[state];
    g.fillRect(x, y, cellWidth - 1, cellHeight - 1);
    if (cellHeight < 14 || state === '.') return;
    g.fillStyle = colours.onBlock;
    g.font = '9px ui-monospace, monospace';
    g.textAlign = 'center';
    g.textBaseline = 'middle';
    g.fillText(state, x + (cellWidth - 1) / 2, y + cellHeight / 2);
  }

  paintOwner(g, first, beyond) {
    for (const [from, n, id] of this.map.owners) {
      if (id !== looked.id || from + n <= first || from >= beyond) continue;
      for (let row = from; row < from + n; row++) this.paintFrame(g, row, colours.ink, 1);
    }
  }

  paintFrame(g, row, colour, width) {
    const { x, y } = this.layout.blockAt(row);
    g.strokeStyle = colour;
    g.lineWidth = width;
    g.strokeRect(x - 0.5, y - 0.5, this.layout.cellWidth, this.layout.cellHeight);
  }

  // ---- what is under the pointer or the cursor ----

  text(row) {
    const { map } = this;
    const state = map.states[row];
    const owner = ownerOf(map, row);
    const slab = Math.floor(row / map.slab_blocks);
    return `row ${row} · slab ${slab}, block ${row % map.slab_blocks} · ${nameOf[state]} (${state})`
      + (owner ? ` · ${describe(owner)}` : '');
  }

  tell() {
    const at = this.cursor >= 0 && this.cursor < this.nRows;
    setText(this.readout, at ? this.text(this.cursor) : 'Point at a block, or use the arrow keys.');
    if (this.hovered >= this.nRows) this.hover(-1);
    if (this.hovered >= 0) {
      setText(this.tip, this.text(this.hovered));
      looked.set(ownerOf(this.map, this.hovered));
    } else if (at && document.activeElement === this.canvas) {
      looked.set(ownerOf(this.map, this.cursor));
    }
  }

  hover(row, e) {
    this.tip.hidden = row < 0 || e?.pointerType === 'touch';
    if (!this.tip.hidden) {
      setText(this.tip, this.text(row));
      const box = this.figure.getBoundingClientRect();
      const x = Math.min(e.clientX - box.left + 12, box.width - this.tip.offsetWidth);
      this.tip.style.transform = `translate(${Math.max(0, x)}px, ${e.clientY - box.top + 16}px)`;
    }
    if (row === this.hovered) return;
    this.hovered = row;
    looked.set(row < 0 ? 0 : ownerOf(this.map, row));
    this.draw();
  }

  moveTo(row) {
    if (!this.layout || row < 0 || row >= this.nRows) return;
    this.cursor = row;
    const { y } = this.layout.blockAt(row);
    const height = this.scroller.clientHeight;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y - 2;
    const bottom = y + this.layout.cellHeight;
    if (bottom > this.scroller.scrollTop + height) this.scroller.scrollTop = bottom + 2 - height;
    this.tell();
    this.draw();
  }

  key(e) {
    if (!this.layout || e.ctrlKey || e.altKey || e.metaKey) return;
    const { columns, across, slabBlocks } = this.layout;
    const inSlab = this.cursor % slabBlocks;
    const down = columns < slabBlocks && inSlab + columns < slabBlocks ? columns : across * slabBlocks;
    const up = columns < slabBlocks && inSlab >= columns ? columns : across * slabBlocks;
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -up,
      ArrowDown: down,
      PageUp: -slabBlocks,
      PageDown: slabBlocks,
      Home: -this.cursor,
      End: this.nRows - 1 - this.cursor,
    };
    if (!(e.key in steps)) return;
    e.preventDefault();
    this.moveTo(this.cursor + steps[e.key]);
  }
}

// ---- all groups ----

let views = [];

function showLegend(groups) {
  const counts = countStates(groups);
  const legend = byId('legend');
  for (const [letter, name, meaning] of states.slice(0, -1)) {
    let item = legend.querySelector(`[data-state="${letter}"]`);
    if (!item) {
      item = element('li');
      item.dataset.state = letter;
      item.title = meaning;
      item.append(element('i', `swatch s-${name}`), element('span', '', `${name} (${letter})`), element('b'));
      legend.append(item);
    }
    setText(item.querySelector('b'), count(counts[letter]));
    item.hidden = counts[letter] === 0 && 'kiht'.includes(letter); // those that a server seldom has
  }
}

function show(map) {
  if (views.length !== map.groups.length) {
    views = map.groups.map((group) => new GroupView(group.group));
    byId('groups').replaceChildren(...views.map((view) => view.figure));
  }
  byId('pool-note').hidden = true;
  showLegend(map.groups);
  map.groups.forEach((group, i) => {
    views[i].alone = map.groups.length === 1;
    views[i].show(group);
  });
  setText(byId('pool-sum'), `a block holds ${map.block_tokens} tokens`);
}

export function startPool(wanted) {
  let given = true; // the dense backend has no pool
  readColours();
  const repaint = () => {
    readColours();
    views.forEach((view) => view.draw());
  };
  for (const query of ['(prefers-color-scheme: dark)', '(prefers-contrast: more)']) {
    matchMedia(query).addEventListener('change', repaint);
  }
  looked.addEventListener('change', () => views.forEach((view) => view.draw()));
  poll('v1/cache/map', {
    wanted: () => given && wanted(),
    data: show,
    failed: (e) => {
      given = e.status === 0 || e.status === 401 || e.status === 429 || e.status === 503;
      setText(byId('pool-note'), e.message);
      byId('pool-note').hidden = views.length > 0 && given;
    },
  });
}
