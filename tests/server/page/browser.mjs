// tests/server/page/browser.mjs - Chromium without a screen, driven over the pipe of its DevTools protocol:
// nothing to install, no port to choose.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { until } from '../../tools/tap.mjs';

const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-sync',
  '--disable-background-networking', '--disable-component-update', '--disable-dev-shm-usage',
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--remote-debugging-pipe'];

export class Browser {
  #calls = new Map();
  #number = 0;
  #pages = new Map();

  constructor(program) {
    this.profile = mkdtempSync(join(tmpdir(), 'sheaf-page-'));
    this.child = spawn(program, [...flags, `--user-data-dir=${this.profile}`],
      { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    this.gone = new Promise((resolve) => this.child.on('exit', resolve));
    let rest = Buffer.alloc(0);
    this.child.stdio[4].on('data', (data) => {
      rest = Buffer.concat([rest, data]);
      for (let end = rest.indexOf(0); end >= 0; end = rest.indexOf(0)) {
        this.#take(JSON.parse(rest.subarray(0, end)));
        rest = rest.subarray(end + 1);
      }
    });
    this.child.stdio[3].on('error', () => {}); // of a browser that is gone
  }

  #take(message) {
    if (message.id === undefined) {
      this.#pages.get(message.sessionId)?.hear(message.method, message.params);
      return;
    }
    const { resolve, reject } = this.#calls.get(message.id);
    this.#calls.delete(message.id);
    if (message.error) reject(new Error(message.error.message));
    else resolve(message.result);
  }

  call(method, params = {}, sessionId = undefined) {
    const id = ++this.#number;
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject }));
  }

  // A page of its own, with a viewport like {width, height, mobile, dark}.
  async open(url, view) {
    const { browserContextId } = await this.call('Target.createBrowserContext');
    const { targetId } = await this.call('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.call('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId);
    this.#pages.set(sessionId, page);
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await page.call(`${domain}.enable`);
    await page.call('Emulation.setDeviceMetricsOverride', {
      width: view.width, height: view.height, deviceScaleFactor: view.mobile ? 2 : 1, mobile: !!view.mobile });
    await page.call('Emulation.setFocusEmulationEnabled', { enabled: true });
    await page.call('Emulation.setEmulatedMedia', {
      features: [{ name: 'prefers-color-scheme', value: view.dark ? 'dark' : 'light' }] });
    await page.call('Page.navigate', { url });
    return page;
  }

  async close() {
    this.call('Browser.close').catch(() => {});
    await this.gone;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 10 });
  }
}

const codes = { Enter: 13, Escape: 27, Tab: 9, End: 35, Home: 36, ArrowLeft: 37, ArrowRight: 39, ' ': 32 };
const texts = { Enter: '\r', ' ': ' ' };

class Page {
  requests = []; // addresses
  errors = []; // of the console

  constructor(browser, sessionId) {
    this.browser = browser;
    this.sessionId = sessionId;
  }

  hear(method, params) {
    if (method === 'Network.requestWillBeSent') this.requests.push(params.request.url);
    if (method === 'Runtime.exceptionThrown') this.errors.push(JSON.stringify(params.exceptionDetails));
    if (method === 'Log.entryAdded' && params.entry.level === 'error') this.errors.push(JSON.stringify(params.entry));
    if (method === 'Runtime.consoleAPICalled' && params.type === 'error') this.errors.push(JSON.stringify(params.args));
  }

  call(method, params) {
    return this.browser.call(method, params, this.sessionId);
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.call('Runtime.evaluate',
      { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  until(what, expression, seconds) {
    return until(what, () => this.evaluate(expression), seconds);
  }

  async press(key, shift = false) {
    const event = { key, code: key === ' ' ? 'Space' : key, windowsVirtualKeyCode: codes[key], modifiers: shift ? 8 : 0 };
    const text = texts[key];
    await this.call('Input.dispatchKeyEvent', { type: text ? 'keyDown' : 'rawKeyDown', text, ...event });
    await this.call('Input.dispatchKeyEvent', { type: 'keyUp', ...event });
  }

  type(text) {
    return this.call('Input.insertText', { text });
  }

  // Tab until something that matches the selector has the focus, as somebody without a mouse does.
  async tabTo(selector, shift = false) {
    for (let i = 0; i < 40; i++) {
      if (await this.evaluate(`document.activeElement.matches(${JSON.stringify(selector)})`)) return;
      await this.press('Tab', shift);
    }
    throw new Error(`${selector} cannot be reached by the Tab key`);
  }

  async pointTo(selector, x, y) {
    const box = await this.evaluate(`(() => { const e = document.querySelector(${JSON.stringify(selector)});
      e.scrollIntoView({ block: 'nearest' }); const b = e.getBoundingClientRect(); return { x: b.x, y: b.y }; })()`);
    await this.call('Input.dispatchMouseEvent', { type: 'mouseMoved', x: box.x + x, y: box.y + y });
  }

  async screenshot(path) {
    const { data } = await this.call('Page.captureScreenshot', { format: 'png' });
    writeFileSync(path, Buffer.from(data, 'base64'));
  }
}
