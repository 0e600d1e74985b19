// chat.js - a conversation with the model, streamed.

import { request, events } from './api.js';
import { count, duration, element, rate } from './format.js';

const byId = (id) => document.getElementById(id);
const log = byId('log');
const question = byId('question');

let turns = []; // {role, content} as the API takes them
let running = null; // the AbortController of the answer that is being told
let modelName = () => undefined;

let follows = true; // whoever reads at the end stays there
const toEnd = () => log.scrollTo(0, log.scrollHeight);
const keepEnd = () => follows && toEnd();

function addTurn(who, text) {
  log.querySelector('.empty')?.remove();
  const turn = element('article', `turn ${who}`);
  turn.append(element('h3', '', who === 'user' ? 'You' : 'Model'));
  const body = element('div', 'text');
  body.append(document.createTextNode(text));
  turn.append(body);
  log.append(turn);
  return turn;
}

// ---- what is asked ----

function numberOf(id) {
  const text = byId(id).value.trim();
  return text === '' ? undefined : Number(text);
}

function bodyOf(messages) {
  const system = byId('system').value;
  return JSON.stringify({
    model: modelName(),
    messages: system.trim() ? [{ role: 'system', content: system }, ...messages] : messages,
    temperature: numberOf('temperature'),
    max_tokens: numberOf('max-tokens'),
    seed: numberOf('seed'),
    stream: true,
    stream_options: { include_usage: true },
  });
}

// ---- what is answered ----

// Puts text on the page once a frame, however fast it comes.
class Writer {
  constructor(turn) {
    this.node = turn.querySelector('.text').firstChild;
    this.waiting = '';
    this.text = '';
  }

  add(text) {
    if (this.waiting === '') requestAnimationFrame(() => this.flush());
    this.waiting += text;
    this.text += text;
  }

  flush() {
    if (this.waiting === '') return;
    this.node.appendData(this.waiting);
    this.waiting = '';
    keepEnd();
  }
}

function figures(usage, times, reason) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${count(usage.prompt_tokens)} tokens, ${count(cached)} cached`);
    parts.push(`answer ${count(usage.completion_tokens)}`);
    const seconds = (times.last - times.first) / 1000;
    if (usage.completion_tokens > 1 && seconds > 0) {
      parts.push(`${rate((usage.completion_tokens - 1) / seconds)} tokens/s`);
    }
  }
  if (times.first) parts.push(`first after ${duration(times.first - times.sent)}`);
  if (reason === 'length') parts.push('ended by its length');
  if (reason === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}

async function tell(response, writer, times) {
  let usage = null;
  let reason = null;
  for await (const event of events(response)) {
    const choice = event.choices?.[0];
    if (choice?.delta?.content) {
      times.last = performance.now();
      times.first ||= times.last;
      writer.add(choice.delta.content);
    }
    reason = choice?.finish_reason ?? reason;
    usage = event.usage ?? usage;
  }
  return { usage, reason };
}

function setRunning(controller) {
  running = controller;
  byId('send').hidden = running !== null;
  byId('stop').hidden = running === null;
  log.setAttribute('aria-busy', String(running !== null)); // told as a whole, not by the word
}

// An answer that never began leaves the question to be asked again.
function giveBack(text, asked) {
  turns.pop();
  if (question.value === '') {
    question.value = text;
    grow();
    asked.remove();
  }
}

async function ask(text) {
  const asked = addTurn('user', text);
  turns.push({ role: 'user', content: text });
  const conversation = turns;
  const controller = new AbortController();
  setRunning(controller);
  const turn = addTurn('model', '');
  toEnd();
  const writer = new Writer(turn);
  const times = { sent: performance.now(), first: 0, last: 0 };
  let note = null;
  let whole = false;
  try {
    const response = await request('v1/chat/completions', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: bodyOf(turns),
      signal: controller.signal,
    }, true);
    const { usage, reason } = await tell(response, writer, times);
    note = element('p', 'figures muted', figures(usage, times, reason));
    whole = true;
  } catch (e) {
    if (controller.signal.aborted) {
      note = element('p', 'figures muted', figures(null, times, 'stopped'));
    } else {
      note = element('p', 'error', e.message);
      note.setAttribute('role', 'alert');
    }
  }
  writer.flush();
  turn.append(note);
  if (conversation === turns) {
    if (whole || writer.text) turns.push({ role: 'assistant', content: writer.text });
    else giveBack(text, asked);
  }
  if (running === controller) setRunning(null);
  keepEnd();
}

// ---- the form ----

function grow() {
  question.style.height = 'auto';
  question.style.height = `${question.scrollHeight + 2}px`;
}

function submit() {
  const text = question.value;
  if (running || text.trim() === '') return;
  const wrong = byId('composer').querySelector('input:invalid');
  if (wrong) {
    byId('settings').open = true;
    wrong.reportValidity();
    return;
  }
  question.value = '';
  grow();
  ask(text);
}

function stop() {
  if (!running) return;
  running.abort();
  question.focus();
}

function startAnew() {
  running?.abort();
  turns = [];
  const hint = element('p', 'empty', 'A new conversation.');
  log.replaceChildren(hint);
  question.focus();
}

export function startChat(name) {
  modelName = name;
  byId('composer').addEventListener('submit', (e) => {
    e.preventDefault();
    submit();
  });
  log.addEventListener('scroll', () => {
    follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  });
  new ResizeObserver(keepEnd).observe(log);
  question.addEventListener('input', grow);
  question.addEventListener('keydown', (e) => {
    if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    submit();
  });
  document.addEventListener('keydown', (e) => {
    if (e.key === 'Escape') stop();
  });
  byId('stop').addEventListener('click', stop);
  byId('new-chat').addEventListener('click', startAnew);
  if (matchMedia('(min-width: 861px)').matches) question.focus();
}
