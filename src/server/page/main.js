// main.js - starts the parts of the page, and says how the server is.

import { changeKey, getJson, wakePolls } from './api.js';
import { startChat } from './chat.js';
import { setText } from './format.js';
import { startNumbers } from './numbers.js';
import { startPool } from './pool.js';
import { startRequests } from './requests.js';

const byId = (id) => document.getElementById(id);
const wide = matchMedia('(min-width: 861px)'); // as in page.css
const seen = (...views) => wide.matches || views.includes(document.body.dataset.view);

let model;

async function learnModel() {
  const list = await getJson('v1/models');
  model = list.data[0].id;
  setText(byId('model'), model);
  document.title = `${model} – Sheaf`;
}

function heard(error) {
  const state = byId('state');
  byId('give-key').hidden = error?.status !== 401;
  if (error) {
    state.dataset.state = error.status === 503 ? 'wait' : 'error';
    setText(state, error.status === 401 ? 'an API key is needed' : error.message);
    return;
  }
  state.dataset.state = 'ready';
  setText(state, 'ready');
  if (model === undefined) {
    model = null; // asked for
    learnModel().catch(() => {
      model = undefined;
    });
  }
}

function choose(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll('.views button')) {
    button.setAttribute('aria-pressed', String(button.dataset.view === view));
  }
  wakePolls();
}

for (const button of document.querySelectorAll('.views button')) {
  button.addEventListener('click', () => choose(button.dataset.view));
}
byId('give-key').addEventListener('click', async () => {
  if (await changeKey()) wakePolls();
});
wide.addEventListener('change', wakePolls);

startChat(() => model ?? undefined);
startRequests(() => seen('requests', 'pool'));
startPool(() => seen('pool'));
startNumbers(heard);
