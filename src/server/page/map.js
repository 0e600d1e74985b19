// map.js - what /v1/cache/map says, and where each block is drawn.

// The letters of states, in the order of the legend; "-" has no memory behind it.
export const states = [
  ['.', 'free', 'memory is there, nobody uses it'],
  ['r', 'running', 'of one running request'],
  ['k', 'parked', 'of one parked sequence'],
  ['c', 'cached', 'kept for reuse by the prompt cache alone'],
  ['s', 'shared', 'of several owners at once'],
  ['p', 'pinned', 'kept by a pin'],
  ['i', 'io', 'being copied, saved or loaded'],
  ['h', 'host', 'held by the program itself'],
  ['t', 'retiring', 'freed, waits for the device'],
  ['-', 'absent', 'no memory behind it'],
];

export function countStates(groups) {
  const counts = Object.fromEntries(states.map(([letter]) => [letter, 0]));
  for (const group of groups) for (const letter of group.states) counts[letter]++;
  return counts;
}

// The rows up to the last slab that has memory.
export function rowsShown(group) {
  let n = group.states.length;
  while (n > 0 && group.states[n - 1] === '-') n--;
  return Math.min(Math.ceil(n / group.slab_blocks) * group.slab_blocks, group.states.length);
}

// The request that has a row; 0: none. owners: [first_row, count, id], ascending.
export function ownerOf(group, row) {
  let low = 0;
  let high = group.owners.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (group.owners[middle][0] <= row) low = middle + 1;
    else high = middle;
  }
  if (low === 0) return 0;
  const [first, n, id] = group.owners[low - 1];
  return row < first + n ? id : 0;
}

// A slab is a strip of blocks, broken into equal lines where it is wider than the page; strips lie side by
// side where there is room. Blocks are as tall as still fits the height, or as small as can be seen.
export class Layout {
  constructor(nRows, slabBlocks, width, height) {
    this.nRows = nRows;
    this.slabBlocks = slabBlocks;
    for (const cell of [16, 14, 12, 10, 8, 7, 6, 5, 4]) {
      this.measure(cell, width);
      if (this.height <= height) break;
    }
  }

  measure(cell, width) {
    const slabs = Math.ceil(this.nRows / this.slabBlocks);
    this.cellHeight = cell;
    this.gap = Math.max(2, cell >> 2);
    this.columns = this.slabBlocks; // a power of two
    while (this.columns > 1 && this.columns * cell > width) this.columns >>= 1;
    const room = Math.floor((width + 2 * this.gap) / (this.columns * cell + 2 * this.gap));
    this.across = Math.max(1, Math.min(room, slabs));
    const each = (width + 2 * this.gap) / this.across - 2 * this.gap;
    this.cellWidth = Math.max(1, Math.min(Math.floor(each / this.columns), Math.floor(cell * 1.5)));
    this.stepX = this.columns * this.cellWidth + 2 * this.gap;
    this.stepY = Math.ceil(this.slabBlocks / this.columns) * cell + this.gap;
    this.height = Math.ceil(slabs / this.across) * this.stepY;
  }

  slabAt(slab) {
    return {
      x: (slab % this.across) * this.stepX,
      y: Math.floor(slab / this.across) * this.stepY,
    };
  }

  blockAt(row) {
    const { x, y } = this.slabAt(Math.floor(row / this.slabBlocks));
    const slot = row % this.slabBlocks;
    return {
      x: x + (slot % this.columns) * this.cellWidth,
      y: y + Math.floor(slot / this.columns) * this.cellHeight,
    };
  }

  // The row at a point, -1: none. Gaps belong to the block before them.
  rowAt(x, y) {
    const column = Math.floor(x / this.stepX);
    const line = Math.floor(y / this.stepY);
    const blockX = Math.min(Math.floor((x - column * this.stepX) / this.cellWidth), this.columns - 1);
    const lastY = Math.ceil(this.slabBlocks / this.columns) - 1;
    const blockY = Math.min(Math.floor((y - line * this.stepY) / this.cellHeight), lastY);
    if (column < 0 || column >= this.across || line < 0) return -1;
    const row = (line * this.across + column) * this.slabBlocks + blockY * this.columns + blockX;
    return row < this.nRows ? row : -1;
  }

  // The rows that a window onto the drawing shows: [first, beyond).
  rowsBetween(top, bottom) {
    const perLine = this.across * this.slabBlocks;
    const first = Math.max(0, Math.floor(top / this.stepY)) * perLine;
    return [first, Math.min((Math.floor(bottom / this.stepY) + 1) * perLine, this.nRows)];
  }
}
