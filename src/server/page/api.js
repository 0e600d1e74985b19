// api.js - talks to the server: keys, errors in its own words, streams of events, polling.

const keyName = 'sheaf-api-key';

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // 0: no answer
  }
}

async function errorOf(response) {
  let message = '';
  try {
    message = (await response.json()).error.message;
  } catch {
    message = `The server answered ${response.status}.`;
  }
  return new ApiError(response.status, message);
}

async function send(path, options) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(keyName);
  if (key) headers.Authorization = `Bearer ${key}`;
  try {
    return await fetch(path, { ...options, headers });
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError(0, 'The server does not answer.');
  }
}

// ---- the key ----

let asking = null; // the promise of an open dialog
let declined = false; // nobody is asked again unless they ask for it

function askKey(why) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('key-dialog');
    const form = document.getElementById('key-form');
    const input = document.getElementById('key');
    document.getElementById('key-why').textContent = why;
    input.value = '';
    const cancel = () => dialog.close();
    const submit = (e) => {
      e.preventDefault();
      sessionStorage.setItem(keyName, input.value.trim());
      dialog.close('given');
    };
    const closed = () => {
      form.removeEventListener('submit', submit);
      document.getElementById('key-cancel').removeEventListener('click', cancel);
      asking = null;
      declined = dialog.returnValue !== 'given';
      dialog.returnValue = '';
      resolve(!declined);
    };
    form.addEventListener('submit', submit);
    document.getElementById('key-cancel').addEventListener('click', cancel);
    dialog.addEventListener('close', closed, { once: true });
    dialog.showModal();
  });
  return asking;
}

export const changeKey = () => askKey('This server asks for a key.');

// ---- requests ----

// A response that is good, or an ApiError. insist: ask for a key even after somebody declined.
export async function request(path, options = {}, insist = false) {
  for (;;) {
    const key = sessionStorage.getItem(keyName);
    const response = await send(path, options);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status !== 401 || (declined && !insist)) throw error;
    if (key !== sessionStorage.getItem(keyName)) continue; // given meanwhile
    if (!(await askKey(error.message))) throw error;
  }
}

export const getJson = async (path, signal) => (await request(path, { signal })).json();

// The data of a stream's events, up to "[DONE]".
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError(0, 'The answer broke off.');
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue; // an empty line, or a comment that keeps alive
      const data = line.slice(5).trim();
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(200, event.error.message);
      yield event;
    }
  }
}

// ---- polling ----

const polls = [];

// Asks for a path every second while the tab is seen and wanted() holds; less often after failures.
export function poll(path, { wanted, data, failed }) {
  let timer = 0;
  let busy = false;
  let wait = 1000;
  async function tick() {
    clearTimeout(timer);
    if (busy || document.hidden || !wanted()) return;
    busy = true;
    const { value, error } = await getJson(path, AbortSignal.timeout(10000)).then(
      (json) => ({ value: json }),
      (e) => ({ error: e instanceof ApiError ? e : new ApiError(0, 'The server does not answer.') }));
    busy = false;
    wait = error ? Math.min(wait * 2, 4000) : 1000;
    timer = setTimeout(tick, wait);
    if (error) failed(error);
    else data(value);
  }
  polls.push(tick);
  tick();
}

export const wakePolls = () => polls.forEach((tick) => tick());
document.addEventListener('visibilitychange', wakePolls);
