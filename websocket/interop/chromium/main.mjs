// `main.mjs CHROMIUM URL shared|takeover`: a page in headless Chromium.
import { chromium } from "playwright-core";

const [program, url, deflate] = process.argv.slice(2);
const args = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const browser = await chromium.launch({ executablePath: program, args, timeout: 60_000 });
try {
  const page = await browser.newPage();
  const { extensions, count } = await page.evaluate(exchange, url);
  const has = (name) => extensions.includes(name);
  const isShared = deflate === "shared";
  if (!has("permessage-deflate") || has("server_no_context_takeover") !== isShared
      || has("client_no_context_takeover") !== isShared) {
    throw new Error(`agreed on ${JSON.stringify(extensions)}`);
  }
  console.log(`Chromium ${browser.version()}: ${count} messages, ${extensions}`);
} finally {
  await browser.close();
}

/** Runs in the page: sends messages, and compares the echoes. */
async function exchange(url) {
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  const next = () => new Promise((resolve, reject) => {
    socket.onmessage = (event) => resolve(event.data);
    socket.onclose = (event) => reject(new Error(`closed with ${event.code}`));
    setTimeout(() => reject(new Error("no answer")), 10_000);
  });
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error("not opened"));
  });
  let count = 0;
  for (const length of [0, 1, 63, 64, 1000, 16_384, 70_000, 200_000]) {
    const text = '{"id":1,"symbol":"ABC","price":1.25,"note":"é"},'.repeat(length / 40 + 1).slice(0, length);
    const noise = new Uint8Array(length);
    for (let at = 0; at < length; at += 65_536) {
      crypto.getRandomValues(noise.subarray(at, at + 65_536));
    }
    for (const message of [text, text, noise]) {
      const answer = next();
      socket.send(message);
      const got = await answer;
      const isSame = typeof message === "string"
        ? got === message
        : got.byteLength === length && new Uint8Array(got).every((byte, at) => byte === message[at]);
      if (!isSame) throw new Error(`${length} bytes did not come back`);
      count += 1;
    }
  }
  const { extensions } = socket;
  socket.close(1000);
  return { extensions, count };
}
