// tests/server/clients/openai_test.mjs - the `openai` package asks the real program. Reports in TAP.
//
//   node openai_test.mjs SHEAF FOLDER        FOLDER has node_modules with the package
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { check, end, like, same, until } from '../../tools/tap.mjs';
import { Program } from './program.mjs';

const [sheaf, folder] = process.argv.slice(2);
const OpenAI = createRequire(resolve(folder, 'package.json'))('openai');

const model = 'sheaf-demo';
const key = 'a-key-for-this-test';
const question = [{ role: 'user', content: 'What can you do?' }];
const endless = { model, prompt: 'Once upon a time', temperature: 0, max_tokens: 7000, ignore_eos: true };

// A client; `options.attempts` counts what it sends.
function clientOf(program, options = {}) {
  const client = new OpenAI({ baseURL: `${program.url}/v1`, apiKey: key, maxRetries: 0, ...options,
    fetch: (...args) => { client.attempts.push(Date.now()); return fetch(...args); } });
  client.attempts = [];
  return client;
}

// What an error says, once it is of this class.
async function failure(kind, promise) {
  try {
    await promise;
  } catch (e) {
    if (!(e instanceof kind)) throw new Error(`a ${e.constructor.name} instead of a ${kind.name}: ${e.message}`);
    return e;
  }
  throw new Error(`no ${kind.name}`);
}

async function joined(stream) {
  let text = '';
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    text += choice?.delta?.content ?? choice?.text ?? '';
  }
  return text;
}

// Reads a stream until its first piece of text, and goes on with it in the background: {rest}, a promise of
// why it ended.
async function begun(stream) {
  const pieces = stream[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await pieces.next();
    if (done) throw new Error('the stream ended at once');
    if (value.choices[0]?.text) break;
  }
  const rest = (async () => {
    let last = null;
    for (;;) {
      const { value, done } = await pieces.next();
      if (done) return last;
      last = value.choices[0]?.finish_reason ?? last;
    }
  })();
  rest.catch(() => {});
  return { rest };
}

// ---- answers ----

async function answers(client) {
  const { chat, completions } = client;
  let whole;
  await check('a_chat_is_answered', async () => {
    whole = await chat.completions.create({ model, messages: question, temperature: 0, seed: 7 });
    same('role', whole.choices[0].message.role, 'assistant');
    same('reason', whole.choices[0].finish_reason, 'stop');
    like('text', whole.choices[0].message.content, /^I find facts/);
    const { prompt_tokens: a, completion_tokens: b, total_tokens: c } = whole.usage;
    same('tokens', [a > 10, b > 10, c], [true, true, a + b]);
    like('id', whole.id, /^chatcmpl-req_[0-9a-f]{16}$/);
    like('request', whole._request_id, /^req_[0-9a-f]{16}$/);
  });
  await check('a_stream_is_the_same_text_and_the_same_usage', async () => {
    const stream = await chat.completions.create({ model, messages: question, temperature: 0, stream: true,
      stream_options: { include_usage: true } });
    let text = '';
    let usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    same('text', text, whole.choices[0].message.content);
    same('tokens', usage.total_tokens, whole.usage.total_tokens);
    same('cached', usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1);
  });
  await check('its_own_helper_puts_a_stream_together', async () => {
    const helper = chat.completions.stream({ model, messages: question, temperature: 0, logprobs: true, top_logprobs: 2 });
    const put = await helper.finalChatCompletion();
    same('text', put.choices[0].message.content, whole.choices[0].message.content);
    same('tokens', put.choices[0].logprobs.content.map((t) => t.token).join(''), whole.choices[0].message.content);
  });
  await check('three_answers_are_those_of_the_stream', async () => {
    const ask = { model, messages: [{ role: 'user', content: 'Tell a story.' }], n: 3, seed: 11, temperature: 1.5, max_tokens: 24 };
    const texts = ['', '', ''];
    for await (const chunk of await chat.completions.create({ ...ask, stream: true })) {
      for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? '';
    }
    const together = await chat.completions.create(ask);
    same('texts', together.choices.map((c) => c.message.content), texts);
    same('different', new Set(texts).size > 1, true);
  });
  await check('log_probabilities_are_told_for_each_token', async () => {
    const told = await chat.completions.create({ model, messages: question, temperature: 0, max_tokens: 8,
      logprobs: true, top_logprobs: 3 });
    const { content } = told.choices[0].logprobs;
    same('tokens', content.length, 8);
    for (const token of content) {
      same('likeliest', [token.top_logprobs.length, token.top_logprobs[0].token], [3, token.token]);
      same('below 0', token.logprob <= 0 && token.logprob === token.top_logprobs[0].logprob, true);
      same('bytes', Buffer.from(token.bytes).toString(), token.token);
    }
  });
  await check('completions_are_answered_with_what_they_echo', async () => {
    const told = await completions.create({ model, prompt: ['Once upon a time', 'It was'], echo: true, logprobs: 1,
      max_tokens: 4, temperature: 0, stop: ['never to be seen'] });
    same('choices', told.choices.length, 2);
    like('text', told.choices[0].text, /^Once upon a time./);
    same('first', told.choices[0].logprobs.token_logprobs[0], null);
    same('tokens', told.choices[1].logprobs.tokens.join(''), told.choices[1].text);
    same('usage', told.usage.completion_tokens, 8);
    same('streamed', await joined(await completions.create({ model, prompt: 'It was', echo: true, max_tokens: 4,
      temperature: 0, stream: true })), told.choices[1].text);
  });
  await check('models_are_listed', async () => {
    const names = [];
    for await (const one of client.models.list()) names.push(one.id);
    same('names', names, [model]);
  });
}

// ---- what is wrong ----

async function errors(program, client) {
  const { chat, completions } = client;
  const ask = { model, messages: question, max_tokens: 4 };
  await check('what_is_wrong_is_a_bad_request_error_with_its_parameter', async () => {
    for (const [param, value, code] of [['temperature', 3, 'invalid_value'], ['n', 0, 'invalid_value'],
      ['tools', [{ type: 'function', function: { name: 'f' } }], 'unsupported_parameter'],
      ['cache_salt', '', 'invalid_value'], ['temprature', 1, 'unknown_parameter'],
      ['messages', undefined, 'missing_required_parameter']]) {
      const e = await failure(OpenAI.BadRequestError, chat.completions.create({ ...ask, [param]: value }));
      same(param, [e.status, e.type, e.param, e.code], [400, 'invalid_request_error', param, code]);
      like('sentence', e.message, /^400 .{10}/);
      like('request', e.requestID, /^req_/);
    }
  });
  await check('a_prompt_that_is_too_long_is_a_bad_request_error', async () => {
    const e = await failure(OpenAI.BadRequestError,
      completions.create({ model, prompt: Array(9000).fill(300), stream: true }));
    same('code', e.code, 'context_length_exceeded');
    like('sentence', e.message, /9000.*8192/);
  });
  await check('another_key_is_an_authentication_error', async () => {
    const e = await failure(OpenAI.AuthenticationError, clientOf(program, { apiKey: 'no' }).models.list());
    same('code', [e.status, e.code], [401, 'invalid_api_key']);
  });
  await check('another_model_is_a_not_found_error', async () => {
    const e = await failure(OpenAI.NotFoundError, chat.completions.create({ ...ask, model: 'another' }));
    same('code', [e.status, e.code], [404, 'model_not_found']);
    await failure(OpenAI.NotFoundError, client.embeddings.create({ model, input: 'a' }));
  });
  await check('errors_that_are_for_good_are_not_tried_again', async () => {
    const patient = clientOf(program, { maxRetries: 5 });
    await failure(OpenAI.BadRequestError, patient.chat.completions.create({ ...ask, top_p: 7 }));
    same('attempts', patient.attempts.length, 1);
  });
}

// ---- going away ----

async function leaving(program, client) {
  const goneAfter = async (what, leave) => {
    const before = await program.stats();
    await leave();
    const from = Date.now();
    const after = await until(`${what} is gone`, async () => {
      const stats = await program.stats();
      return stats.requests_running + stats.requests_waiting === 0 && stats;
    });
    console.log(`# ${what}: gone after ${Date.now() - from} ms, ${after.steps - before.steps} steps`);
    same('cancelled', after.requests.cancelled, before.requests.cancelled + 1);
    same('in time', Date.now() - from < 5000 || after.steps - before.steps < 4, true);
    const later = await program.stats();
    same('no token is computed any more', later.tokens_computed, after.tokens_computed);
    same('only the cache holds blocks', later.paged_blocks_live, later.blocks);
  };
  await check('an_abort_in_a_stream_ends_the_request', async () => {
    const stop = new AbortController();
    const { rest } = await begun(await client.completions.create({ ...endless, stream: true }, { signal: stop.signal }));
    await goneAfter('a stream', () => stop.abort());
    await rest.catch(() => {});
  });
  await check('leaving_the_loop_over_a_stream_ends_the_request', async () => {
    const stream = await client.completions.create({ ...endless, stream: true });
    await goneAfter('a loop', async () => { for await (const chunk of stream) if (chunk) break; });
  });
  await check('an_abort_before_the_first_token_ends_the_request', async () => {
    const stop = new AbortController();
    const asked = failure(OpenAI.APIUserAbortError, client.completions.create(
      { ...endless, prompt: Array.from({ length: 8000 }, (_, i) => 300 + (i * 7919) % 3000), max_tokens: 100 },
      { signal: stop.signal }));
    await until('the prompt is run', async () => (await program.stats()).requests_running === 1);
    await goneAfter('a prompt', () => stop.abort());
    await asked;
  });
  await check('a_timeout_is_a_timeout_error_and_ends_the_request', async () => {
    await goneAfter('who waited a second', () => failure(OpenAI.APIConnectionTimeoutError,
      client.completions.create(endless, { timeout: 1000 })));
  });
}

// ---- many at once ----

async function together(client) {
  await check('64_streams_at_once_are_each_the_text_alone', async () => {
    const asks = Array.from({ length: 64 }, (_, i) => ({ model, prompt: `${'a long way to '.repeat(i % 9)}Item ${i % 16}`,
      max_tokens: 8 + (i % 25), seed: i, temperature: i % 2 ? 0.9 : 0, ignore_eos: true }));
    const alone = [];
    for (const ask of asks) alone.push((await client.completions.create(ask)).choices[0].text);
    const texts = await Promise.all(asks.map(async (ask) =>
      joined(await client.completions.create({ ...ask, stream: true }))));
    same('texts', texts, alone);
    same('different', new Set(texts).size > 32, true);
  });
}

// ---- trying again ----

async function fullQueue() {
  const program = await Program.start(sheaf, '--parallel', '1', '--max-queue', '1');
  const client = clientOf(program);
  const ask = { model, prompt: 'It was', max_tokens: 4, temperature: 0 };
  const want = (await client.completions.create(ask)).choices[0].text;
  const fill = async (stop) => {
    const { rest } = await begun(await client.completions.create({ ...endless, stream: true }, { signal: stop.signal }));
    const waits = client.completions.create({ ...endless, max_tokens: 1 }, { signal: stop.signal }).catch(() => {});
    await until('one waits', async () => (await program.stats()).requests_waiting === 1);
    return { over: Promise.allSettled([rest, waits]) };
  };
  await check('a_full_queue_is_a_rate_limit_error', async () => {
    const stop = new AbortController();
    const { over } = await fill(stop);
    const e = await failure(OpenAI.RateLimitError, client.completions.create(ask));
    same('code', [e.status, e.type, e.code], [429, 'rate_limit_error', 'queue_full']);
    like('Retry-After', e.headers.get('retry-after'), /^[1-9][0-9]*$/);
    stop.abort();
    await over;
    await program.idle();
  });
  await check('the_client_comes_again_when_it_was_told_to', async () => {
    const stop = new AbortController();
    const { over } = await fill(stop);
    const patient = clientOf(program, { maxRetries: 8 });
    const asked = patient.completions.create(ask);
    await until('it was refused', async () => (await program.stats()).refused_queue >= 2);
    stop.abort();
    same('text', (await asked).choices[0].text, want);
    const [first, second] = patient.attempts;
    same('attempts', patient.attempts.length >= 2 && patient.attempts.length < 5, true);
    same('waited', second - first >= 900, true); // Retry-After has whole seconds; it is 1
    await over;
  });
  await check('a_server_that_drains_is_not_asked_for_ever', async () => {
    const { rest } = await begun(await client.completions.create({ ...endless, max_tokens: 400, stream: true }));
    await client.models.list(); // a connection that is kept
    const ended = program.stop();
    await until('it drains', () => program.log.includes('draining'));
    const patient = clientOf(program, { maxRetries: 1 });
    const e = await failure(OpenAI.APIError, patient.completions.create(ask));
    if (e.status !== undefined) same('code', [e.status, e.code], [503, 'shutting_down']);
    same('attempts', patient.attempts.length, 2);
    same('what ran goes on to its end', await rest, 'length');
    same('exit code', await ended, 0);
  });
}

const program = await Program.start(sheaf, '--api-key', key);
program.key = key;
const client = clientOf(program);
await answers(client);
await errors(program, client);
await leaving(program, client);
await together(client);
await check('the_server_ends_well_and_has_logged_no_error', async () => {
  await program.idle();
  same('exit code', await program.stop(), 0);
  same('errors', program.log.split('\n').filter((line) => line.includes('"level":"error"')), []);
});
await fullQueue();
end();
