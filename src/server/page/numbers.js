// numbers.js - memory, hit rate and tokens over the last ten minutes, kept in the browser.

import { poll } from './api.js';
import { bytes, count, element, percent, rate, setText } from './format.js';

const span = 600; // seconds
const window_ = 60; // seconds that a hit rate is taken over

// ---- samples ----

// One column a series; x is in seconds.
class Ring {
  constructor(nSeries) {
    this.columns = Array.from({ length: nSeries + 1 }, () => []);
  }

  add(x, values) {
    const [times] = this.columns;
    const last = times[times.length - 1];
    if (last !== undefined && x - last > 5) this.push(last + 1, values.map(() => null)); // nobody looked
    this.push(x, values);
    while (times.length > 0 && times[0] < x - span) this.columns.forEach((column) => column.shift());
  }

  push(x, values) {
    [x, ...values].forEach((value, i) => {
      this.columns[i].push(Number.isFinite(value) ? value : null);
    });
  }
}

let samples = []; // {at, stats}, of the last window

// What has been counted since a sample; null after a restart of the server.
function since(sample, stats, name) {
  const n = stats[name] - sample.stats[name];
  return n >= 0 ? n : null;
}

function shareSince(sample, stats) {
  const lookups = since(sample, stats, 'lookups');
  const hits = since(sample, stats, 'hits');
  return lookups > 0 && hits !== null ? hits / lookups : null;
}

// ---- charts ----

const charts = [
  {
    title: 'Memory of keys and values',
    series: [['reserved', '--line-1'], ['in use', '--line-2'], ['held by the cache', '--line-3']],
    format: bytes,
    binary: true,
    least: 2 ** 20,
    take: (s) => [s.paged_bytes_reserved, s.paged_bytes_in_use ?? s.dense_bytes, s.bytes],
    tell: (v) => v.map(bytes),
  },
  {
    title: 'Hit rate of the prompt cache',
    series: [['last minute', '--line-3']],
    format: percent,
    highest: 1,
    take: (s) => [samples.length ? shareSince(samples[0], s) : null],
    tell: (v, s) => [`${percent(v[0] ?? NaN)}`
      + (s.lookups ? ` (${percent(s.hit_rate)} of ${count(s.lookups)} ever)` : '')],
  },
  {
    title: 'Prompt and answer tokens a second',
    series: [['computed', '--line-2'], ['reused', '--line-3']],
    format: count,
    least: 10,
    take: (s, seconds) => {
      const before = samples[samples.length - 1];
      if (!before) return [null, null];
      return ['tokens_computed', 'tokens_reused'].map((name) => {
        const n = since(before, s, name);
        return n === null ? null : n / seconds;
      });
    },
    tell: (v) => v.map((n) => rate(n ?? NaN)),
  },
];

function makeChart(chart) {
  const figure = element('figure', 'chart');
  figure.append(element('figcaption', '', chart.title));
  const list = element('dl', 'values');
  chart.values = chart.series.map(([label, colour]) => {
    const value = element('dd', '', '–');
    list.append(element('dt', `key ${colour.slice(2)}`, label), value);
    return value;
  });
  chart.box = element('div', 'plot');
  figure.append(list, chart.box);
  chart.ring = new Ring(chart.series.length);
  return figure;
}

const binarySteps = Array.from({ length: 44 }, (_, i) => 2 ** i);

// At least a minute, from the first sample on.
function timeRange(u, low, high) {
  if (low === null || u.data[0].length === 0) low = high = Date.now() / 1000;
  return [low, Math.max(high, low + 60)];
}

function options(chart, colour) {
  const axis = { stroke: colour('--muted'), grid: { stroke: colour('--grid'), width: 1 }, ticks: { show: false } };
  return {
    width: chart.box.clientWidth,
    height: 110,
    legend: { show: false },
    cursor: { sync: { key: 'numbers' }, drag: { x: false, y: false }, y: false },
    scales: {
      x: { range: timeRange },
      y: { range: (u, low, high) => [0, chart.highest ?? Math.max(high * 1.1, chart.least)] },
    },
    axes: [
      { ...axis, size: 24, space: 80, values: (u, ticks) => ticks.map(clock) },
      { ...axis, size: 64, space: 28, values: (u, ticks) => ticks.map(chart.format),
        ...(chart.binary ? { incrs: binarySteps } : {}) },
    ],
    series: [{}, ...chart.series.map(([label, name]) => ({
      label, stroke: colour(name), width: 1.5, points: { show: false },
    }))],
  };
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString('en-GB');
}

function plot(chart) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  chart.plot?.destroy();
  chart.plot = null;
  if (chart.box.clientWidth > 0) {
    chart.plot = new window.uPlot(options(chart, colour), chart.ring.columns, chart.box);
  }
}

function resize() {
  for (const chart of charts) {
    const width = chart.box.clientWidth;
    if (!chart.plot) plot(chart);
    else if (width > 0 && width !== chart.plot.width) chart.plot.setSize({ width, height: 110 });
  }
}

// ---- from the server ----

function show(stats) {
  const at = Date.now() / 1000;
  const last = samples[samples.length - 1];
  for (const chart of charts) {
    const values = chart.take(stats, last ? at - last.at : 1).map((v) => v ?? null);
    chart.ring.add(at, values);
    chart.tell(values, stats).forEach((text, i) => setText(chart.values[i], text));
    chart.plot?.setData(chart.ring.columns);
  }
  samples.push({ at, stats });
  samples = samples.filter((sample) => sample.at >= at - window_);
  document.getElementById('numbers-note').hidden = true;
}

// heard(null or an ApiError): whether the server answers.
export function startNumbers(heard) {
  document.getElementById('charts').append(...charts.map(makeChart));
  new ResizeObserver(resize).observe(document.getElementById('charts'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => charts.forEach(plot));
  resize();
  poll('v1/cache/stats', {
    wanted: () => true, // the past is not to be had later
    data: (stats) => {
      heard(null);
      show(stats);
    },
    failed: heard,
  });
}
