// tests/server/page/page_test.mjs - the page in a browser, on a real server. Reports in TAP.
//
//   node page_test.mjs CHROMIUM URL URL_WITH_KEY KEY SCREENSHOT
import { check, end, like, same, until } from '../../tools/tap.mjs';
import { Browser } from './browser.mjs';

const [chromium, url, urlWithKey, apiKey, screenshot] = process.argv.slice(2);

// ---- what is asked ----

const makes = ['brass', 'wool', 'silk', 'iron', 'bone', 'oak', 'clay', 'glass'];
const things = ['lantern', 'lamp', 'bowl', 'kite', 'ring', 'chest', 'flute'];
const colours = ['green', 'blue', 'indigo', 'grey', 'red'];

// A system message of about 26 tokens an item; only item 381 is on shelf 12.
function catalogue(nItems, from) {
  const lines = ['You are sheaf-demo, a tiny model made to test KV caches. Answer from the catalogue.', ''];
  for (let i = 0; i < nItems; i++) {
    const [make, thing] = [makes[i % makes.length], things[i % things.length]];
    lines.push(`Item ${from + i}: a ${make} ${thing}, ${colours[i % 5]}, ${7 + i} crowns, shelf ${20 + (i % 60)}, from Oram.`);
  }
  lines.push('Item 381: a brass lantern, green, 41 crowns, shelf 12, from Oram.');
  return lines.join('\n');
}

// Completions that run until told to stop, as other clients of the same server.
function otherClients(n) {
  const stop = new AbortController();
  const over = Promise.allSettled(Array.from({ length: n }, async (_, i) => {
    const response = await fetch(`${url}v1/completions`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ prompt: `${catalogue(25, 100 * (1 + (i % 2)))}\n\nClient ${i} tells a story.`,
        max_tokens: 2500, ignore_eos: true, temperature: 0.8, seed: i, stream: true }),
      signal: stop.signal,
    });
    if (!response.ok) throw new Error(await response.text());
    for await (const piece of response.body) void piece;
  }));
  return { stop: () => stop.abort(), over };
}

// ---- what is seen ----

const legend = (page) => page.evaluate(`Object.fromEntries([...document.querySelectorAll('#legend li')]
  .map((item) => [item.dataset.state, Number(item.querySelector('b').textContent.replaceAll(',', ''))]))`);
const drawing = (page) => page.evaluate('document.querySelector(".group canvas")?.toDataURL()');
const lastAnswer = '[...document.querySelectorAll(".turn.model")].pop()';
const answered = (n) => `document.querySelectorAll('.turn.model .figures').length >= ${n}`;
const wide = { width: 1280, height: 900 };

const fold = async (page) => {
  await page.tabTo('#settings summary', true);
  await page.press('Enter');
};

const empty = (page) => page.evaluate(`{ const question = document.getElementById('question');
  question.value = ''; question.dispatchEvent(new Event('input')); }`);
const setSystem = (page, text) => page.evaluate(`document.getElementById('system').value = ${JSON.stringify(text)}`);

async function openWide(browser) {
  const page = await browser.open(url, wide);
  await page.until('the server is ready', 'document.querySelector("#state")?.textContent === "ready"');
  await page.until('the pool is drawn', 'document.querySelectorAll("#legend li").length > 0');
  return page;
}

// ---- cases ----

async function headers() {
  await check('the_page_comes_with_a_policy_and_a_tag', async () => {
    const response = await fetch(url);
    same('status', response.status, 200);
    like('type', response.headers.get('content-type'), /^text\/html/);
    like('policy', response.headers.get('content-security-policy'), /default-src 'self'/);
    const tag = response.headers.get('etag');
    like('tag', tag, /^"[0-9a-f]+"$/);
    const again = await fetch(url, { headers: { 'If-None-Match': tag } });
    same('status of an unchanged page', again.status, 304);
    const other = await fetch(url, { headers: { 'If-None-Match': '"0"' } });
    same('status of a changed page', other.status, 200);
  });
}

async function geometry(page) {
  await check('every_block_is_found_where_it_is_drawn', async () => {
    const lost = await page.evaluate(`import('./page/map.js').then(({ Layout }) => {
      const lost = [];
      for (const slab of [1, 2, 32, 1024]) for (const rows of [1, 33, 1000, 5000]) for (const width of [5, 330, 640]) {
        const layout = new Layout(rows, slab, width, 320);
        for (let row = 0; row < rows; row++) {
          const { x, y } = layout.blockAt(row);
          const [first, beyond] = layout.rowsBetween(y, y + layout.cellHeight);
          const right = x + layout.cellWidth;
          if (layout.rowAt(x, y) !== row || layout.rowAt(right - 1, y + layout.cellHeight - 1) !== row
            || row < first || row >= beyond || right > Math.max(width, 4) || y >= layout.height) lost.push([slab, rows, width, row]);
        }
      }
      return lost.slice(0, 5);
    })`);
    same('blocks that are lost', lost, []);
  });
}

async function talking(page) {
  const before = { counts: await legend(page), image: await drawing(page) };
  await check('a_question_is_asked_and_answered_by_keyboard_alone', async () => {
    same('focus', await page.evaluate('document.activeElement.id'), 'question');
    await fold(page);
    await page.tabTo('#system');
    await page.type(catalogue(40, 100));
    await page.tabTo('#temperature');
    await page.type('0');
    await fold(page);
    await page.tabTo('#question');
    await page.type('Where is item 381 kept?');
    await page.press('Enter');
    await page.until('the answer is told', answered(1));
    same('answer', await page.evaluate(`${lastAnswer}.querySelector('.text').textContent`), 'It is on shelf 12.');
    like('figures', await page.evaluate(`${lastAnswer}.querySelector('.figures').textContent`),
      /^prompt [\d,]+ tokens, 0 cached · answer \d+ · [\d.,]+ tokens\/s · first after [\d.]+ m?s$/);
  });
  await check('the_pool_is_seen_to_change', async () => {
    await until('the prompt is cached', async () => (await legend(page)).c > (before.counts.c ?? 0) + 20);
    if (await drawing(page) === before.image) throw new Error('the drawing is the same');
  });
  await check('a_second_question_finds_the_first_in_the_cache', async () => {
    await page.tabTo('#question');
    await page.type('What does item 381 cost?');
    await page.press('Enter');
    await page.until('the answer is told', answered(2));
    const text = await page.evaluate(`${lastAnswer}.querySelector('.figures').textContent`);
    const [, prompt, cached] = text.match(/^prompt ([\d,]+) tokens, ([\d,]+) cached/);
    const number = (digits) => Number(digits.replaceAll(',', ''));
    if (number(cached) < number(prompt) - 120) throw new Error(`too little was cached: ${text}`);
  });
  await check('shift_and_enter_begin_a_line', async () => {
    await page.type('one');
    await page.press('Enter', true);
    await page.type('two');
    same('message', await page.evaluate('document.getElementById("question").value'), 'one\ntwo');
    await empty(page);
  });
}

async function watching(page) {
  const others = otherClients(3);
  await check('live_requests_are_in_the_table', async () => {
    await page.until('three requests run', `[...document.querySelectorAll('#request-rows tr')]
      .filter((row) => row.children[1].textContent === 'decode').length === 3`);
  });
  await check('arrow_keys_find_a_running_block_and_its_request', async () => {
    const { groups: [group] } = await (await fetch(`${url}v1/cache/map`)).json();
    // not the last one: the page may not have heard of the newest rows, and arrows end where its drawing does
    const [row, , id] = group.owners[Math.floor(group.owners.length / 2)];
    await page.tabTo('.group canvas');
    await page.press('Home');
    for (let i = 0; i < row; i++) await page.press('ArrowRight');
    const line = `^row ${row} · slab ${Math.floor(row / group.slab_blocks)}, block ${row % group.slab_blocks} · `
      + `(running|shared) \\([rs]\\) · request ${id} \\(completion, decode, `;
    await until('the block tells about itself', async () => new RegExp(line).test(
      await page.evaluate('document.querySelector(".readout").textContent')));
    await page.until('its request is marked', 'document.querySelector("#request-rows tr.looked") !== null');
  });
  await check('a_block_and_its_request_are_told_under_the_pointer', async () => {
    const { groups: [group] } = await (await fetch(`${url}v1/cache/map`)).json();
    const [row, , id] = group.owners[0];
    const { x, y } = await page.evaluate(`import('./page/map.js').then(({ Layout, rowsShown }) =>
      new Layout(rowsShown(${JSON.stringify(group)}), ${group.slab_blocks},
        document.querySelector('.group canvas').clientWidth, 320).blockAt(${row}))`);
    await page.pointTo('.group canvas', x + 3, y + 3);
    await page.until('the tip is shown', '!document.querySelector(".tip").hidden');
    like('tip', await page.evaluate('document.querySelector(".tip").textContent'),
      new RegExp(`^row ${row} · slab \\d+, block \\d+ · (running|shared) \\([rs]\\) · request ${id} \\(completion, `));
  });
  await check('memory_and_rates_are_plotted', async () => {
    await page.until('all numbers are there',
      '[...document.querySelectorAll(".values dd")].every((value) => !value.textContent.startsWith("–"))');
    same('charts', await page.evaluate('document.querySelectorAll(".plot canvas").length'), 3);
  });
  await page.pointTo('.bar', 300, 10);
  await page.screenshot(screenshot);
  others.stop();
  await check('requests_that_are_over_leave_the_table', async () => {
    const results = await others.over;
    for (const { reason } of results) if (reason?.name !== 'AbortError') throw reason ?? new Error('over too early');
    await page.until('the table is empty', 'document.querySelectorAll("#request-rows tr").length === 0');
  });
}

async function failing(page) {
  await check('escape_stops_an_answer', async () => {
    await setSystem(page, catalogue(130, 400));
    await page.tabTo('#question');
    await page.type('Where is item 381 kept?');
    const turns = await page.evaluate('document.querySelectorAll(".turn.model").length');
    await page.press('Enter');
    await page.until('it is asked', '!document.getElementById("stop").hidden');
    await page.press('Escape');
    await page.until('it is stopped', `document.getElementById('stop').hidden
      && document.querySelectorAll('.turn.model').length === ${turns + 1}
      && ${lastAnswer}.querySelector('.figures')?.textContent.includes('stopped')`);
    same('focus', await page.evaluate('document.activeElement.id'), 'question');
    same('message', await page.evaluate('document.getElementById("question").value'), 'Where is item 381 kept?');
    await empty(page);
  });
  await check('an_error_is_told_in_the_words_of_the_api', async () => {
    await page.evaluate('document.getElementById("new-chat").click()');
    await setSystem(page, catalogue(350, 400));
    await page.tabTo('#question');
    await page.type('Hello');
    const response = await fetch(`${url}v1/chat/completions`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'system', content: catalogue(350, 400) },
        { role: 'user', content: 'Hello' }] }),
    });
    same('status', response.status, 400);
    await page.press('Enter');
    await page.until('the error is told', 'document.querySelector(".turn .error") !== null');
    same('error', await page.evaluate('document.querySelector(".turn .error").textContent'),
      (await response.json()).error.message);
    same('message', await page.evaluate('document.getElementById("question").value'), 'Hello');
  });
}

async function onPhone(browser) {
  const page = await browser.open(url, { width: 360, height: 740, mobile: true, dark: true });
  await page.until('the server is ready', 'document.querySelector("#state")?.textContent === "ready"');
  await check('on_a_phone_nothing_scrolls_sideways', async () => {
    for (const view of ['chat', 'requests', 'pool', 'numbers']) {
      await page.evaluate(`document.querySelector('.views [data-view=${view}]').click()`);
      await page.until(`${view} is seen`, `document.getElementById('${view}').offsetHeight > 0`);
      await page.evaluate('new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)))');
      const width = await page.evaluate(`Math.max(document.documentElement.scrollWidth,
        document.querySelector('main').scrollWidth)`);
      if (width > 360) throw new Error(`${view} is ${width} wide`);
    }
  });
  await check('on_a_phone_a_question_is_answered', async () => {
    await page.evaluate('document.querySelector(".views [data-view=chat]").click()');
    await page.evaluate('document.getElementById("question").focus()');
    await page.type('What can you do?');
    await page.evaluate('document.getElementById("send").click()');
    await page.until('the answer is told', answered(1));
  });
  return page;
}

async function withKey(browser) {
  await check('a_key_is_asked_for_until_it_is_right', async () => {
    const page = await browser.open(urlWithKey, wide);
    const open = 'document.getElementById("key-dialog")?.open === true';
    await page.until('the key is asked for', open);
    await page.type('not the key');
    await page.press('Enter');
    await page.until('it is asked for again', `${open} && document.getElementById('key').value === ''`);
    await page.type(apiKey);
    await page.press('Enter');
    await page.until('the server is ready', 'document.querySelector("#state").textContent === "ready"');
    await page.until('the model is known', 'document.querySelector("#model").textContent !== ""');
  });
}

const browser = new Browser(chromium);
try {
  await headers();
  const page = await openWide(browser);
  await geometry(page);
  await talking(page);
  await watching(page);
  const quiet = [...page.errors]; // a refused request is an error of the console
  await failing(page);
  const phone = await onPhone(browser);
  await withKey(browser);
  await check('no_request_leaves_the_origin', () => {
    const asked = [...page.requests, ...phone.requests];
    if (asked.length < 20) throw new Error(`only ${asked.length} requests were seen`);
    same('elsewhere', asked.filter((address) => !address.startsWith(url)), []);
  });
  await check('the_console_has_no_error', () => same('errors', [...quiet, ...phone.errors], []));
} catch (e) {
  await check('the_browser_works', () => { throw e; });
} finally {
  await browser.close();
}
end();
