// Looks at the page of operators in headless Chromium: see README.md. `run` starts it.
//
//     node check.mjs SERVER RUNTIME DIR
//
// Each wait is bounded, and whatever it starts ends with it.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const [binary, runtime, dir] = process.argv.slice(2);
const { chromium } = createRequire(join(dir, 'package.json'))('playwright-core');
const here = dirname(fileURLToPath(import.meta.url));
const PASSWORD = 'open sesame'; // of the client of server/attack
const PATIENCE = 10_000; // for each wait, in ms
const HOSTILE = `</pre><img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`;

const scratch = mkdtempSync(join(tmpdir(), 'owned-io-page-'));
writeFileSync(join(scratch, 'password'), `${PASSWORD}\n`);
const screenshots = join(dir, 'screenshots');
mkdirSync(screenshots, { recursive: true });

class Server {
  // `addresses`: where it listens; any free ports if there are none.
  static async start(addresses = {}) {
    const server = new Server();
    const names = ['http', 'admin', 'tcp'];
    const listeners = names.flatMap(name => [`--${name}`, addresses[name] ?? '127.0.0.1:0']);
    server.process = spawn(binary, [
      '--runtime', runtime, '--workers', '2', ...listeners,
      '--iggy-password-file', join(scratch, 'password'), '--data', join(scratch, 'data'), '--drain-seconds', '2',
    ], { stdio: ['ignore', 'pipe', 'inherit'] });
    server.ended = new Promise(resolve => server.process.once('exit', resolve));
    server.addresses = await within(server.#listening(names.length), 'the server does not listen');
    return server;
  }

  async #listening(count) {
    const addresses = {};
    for await (const line of createInterface(this.process.stdout)) {
      const [, name, address] = line.split(' ');
      addresses[name] = address;
      if (Object.keys(addresses).length === count) return addresses;
    }
    throw new Error('the server has ended');
  }

  append(...payloads) {
    execFileSync('python3', [join(here, 'append.py'), this.addresses.tcp, ...payloads], { timeout: PATIENCE });
  }

  async stop() {
    this.process.kill('SIGTERM');
    await within(this.ended, 'the server does not end');
  }
}

async function within(promise, complaint) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(complaint)), PATIENCE);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

// Waits until `look` finds what is expected.
async function until(what, look) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    if (await look()) return;
    assert(Date.now() < end, `it is to happen: ${what}`);
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

function passed(what) {
  console.log(`  ok    ${what}`);
}

let server, browser;
const complaints = [];

async function check() {
  server = await Server.start();
  server.append('--create');
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync'],
    timeout: 30_000,
  });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.on('console', message => ['error', 'warning'].includes(message.type()) && complaints.push(message.text()));
  page.on('pageerror', error => complaints.push(String(error)));
  page.on('dialog', dialog => complaints.push(`a dialog: ${dialog.message()}`));
  const text = selector => page.locator(selector).innerText();
  const shoot = name => page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
  const isLive = () => page.locator('#state[data-state=live]').isVisible();

  const url = `http://${server.addresses.admin}/`;
  await page.goto(url);
  await until('it is live', isLive);
  assert.match(await text('#server'), new RegExp(`on ${runtime}, 2 workers, up \\d+ s`));
  passed('it loads, and is live');

  // Its origin is `null`, so `--http` admits it, and the page's own WebSockets do not.
  const elsewhere = await context.newPage();
  const opens = path => elsewhere.evaluate(url => new Promise(resolve => {
    const socket = new WebSocket(url);
    socket.onopen = () => resolve(true);
    socket.onerror = () => resolve(false);
  }), path);
  assert.equal(await opens(`ws://${server.addresses.http}/echo`), true);
  assert.equal(await opens(`ws://${server.addresses.admin}/live`), false);
  assert.equal(await opens(`ws://${server.addresses.admin}/tail`), false);
  passed('a page of another origin opens none of its WebSockets');

  const figure = label => page.locator('.figure', { hasText: label }).locator('dd').innerText();
  await elsewhere.evaluate(url => {
    const socket = new WebSocket(url);
    socket.onopen = () => setInterval(() => {
      for (let n = 0; n < 20; n += 1) socket.send('x'.repeat(50 + n));
    }, 20);
  }, `ws://${server.addresses.http}/echo`);
  await until('messages are counted', async () => /^[1-9]/.test(await figure('messages in, per second')));
  const rates = new Set();
  await until('the figure changes', async () => rates.add(await figure('messages in, per second')).size >= 3);
  const echo = page.locator('#flows tr', { hasText: 'echo, websocket' }).locator('td');
  assert.match(await echo.first().innerText(), /^[1-9]/);
  const open = page.locator('#listeners tr', { hasText: 'http' }).locator('td').first();
  assert.equal(await open.innerText(), '2');
  passed('throughput and connections are shown, and change');

  await page.locator('[name=stream]').fill('browser');
  await page.locator('[name=topic]').fill('browser');
  await page.locator('[name=password]').fill('wrong');
  await page.locator('[name=password]').press('Enter');
  await until('it is refused', async () => (await text('#tail-state')).includes('password is wrong'));
  await page.locator('[name=password]').fill(PASSWORD);
  await page.locator('[name=password]').press('Enter');
  const follows = async () => (await text('#tail-state')).startsWith('Following browser');
  await until('it follows', follows);
  server.append('hello from the other side', 'ünï©ødé ✓');
  const shows = payload => async () => (await page.locator('#messages pre').allTextContents()).includes(payload);
  await until('the message is shown', shows('hello from the other side'));
  await until('the other is shown', shows('ünï©ødé ✓'));
  passed('an appended message is shown in the tail');
  server.append(HOSTILE);
  await until('it is shown as text', shows(HOSTILE));
  assert.equal(await page.locator('#messages img, #messages script').count(), 0);
  assert.equal(await page.title(), 'owned-io');
  passed('a hostile message is text');

  await page.evaluate(() => document.activeElement.blur());
  const reached = new Set();
  for (let n = 0; n < 30; n += 1) {
    await page.keyboard.press('Tab');
    reached.add(await page.evaluate(() => document.activeElement.name || document.activeElement.id));
  }
  for (const name of ['stream', 'topic', 'partition', 'user', 'password', 'follow', 'stop', 'messages']) {
    assert(reached.has(name), `${name} is not reached by the keyboard`);
  }
  const nameless = await page.locator('input, button').evaluateAll(all =>
    all.filter(one => !(one.labels?.[0]?.textContent ?? one.textContent).trim()).map(one => one.outerHTML));
  assert.deepEqual(nameless, []);
  passed('the keyboard reaches everything, and everything has a name');

  await shoot('desktop-light');
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const brightness = async () => Math.max(...(await background()).match(/\d+/g).slice(0, 3).map(Number));
  assert(await brightness() > 200, await background());
  await page.emulateMedia({ colorScheme: 'dark' });
  assert(await brightness() < 60, await background());
  await shoot('desktop-dark');
  await page.setViewportSize({ width: 390, height: 844 });
  const widths = () => page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  const [width, room] = await widths();
  assert(width <= room, `${width} px in ${room} px`);
  await shoot('phone-dark');
  await page.emulateMedia({ colorScheme: 'light' });
  await shoot('phone-light');
  passed('it is dark in the dark, and fits a phone');

  assert.deepEqual(complaints, []);
  passed('the browser has no complaints');

  await server.stop();
  await until('the page says so', async () => (await text('#state')).startsWith('Disconnected since '));
  assert.equal(await page.locator('#retry').isVisible(), true);
  await shoot('phone-disconnected');
  const [lostWidth] = await widths();
  assert(lostWidth <= room, `${lostWidth} px in ${room} px`);
  server = await Server.start(server.addresses);
  await until('it is live again', isLive);
  assert.match(await text('#state'), /started again/);
  await until('it follows again', follows);
  server.append('after the restart');
  await until('the message is shown', shows('after the restart'));
  const payloads = await page.locator('#messages pre').allTextContents();
  assert.equal(payloads.filter(payload => payload === HOSTILE).length, 1, 'no message is shown twice');
  passed('it reconnects after a restart, and goes on');

  // Only connections that are refused while there was no server.
  assert.deepEqual(complaints.filter(complaint => !complaint.includes('ERR_CONNECTION_REFUSED')), []);
  const injected = await page.evaluate(() => {
    try {
      document.body.insertAdjacentHTML('beforeend', '<p id="injected">');
    } catch (error) {
      return error.name;
    }
    return 'nothing has stopped it';
  });
  assert.equal(injected, 'TypeError');
  const ran = await page.evaluate(() => {
    const style = document.createElement('style');
    style.textContent = 'body { margin-top: 77px }';
    document.head.append(style);
    return getComputedStyle(document.body).marginTop;
  });
  assert.equal(ran, '0px');
  passed('its policy stops what is not its own');
}

async function end() {
  await browser?.close().catch(() => {});
  if (server?.process.exitCode === null) {
    server.process.kill('SIGKILL');
    await server.ended;
  }
  rmSync(scratch, { recursive: true, force: true });
}

process.once('SIGTERM', () => end().finally(() => process.exit(1))); // the time is up
try {
  console.log(runtime);
  await check();
} catch (error) {
  console.error(error);
  if (complaints.length) console.error('The browser complained:', complaints);
  process.exitCode = 1;
} finally {
  await end();
}
