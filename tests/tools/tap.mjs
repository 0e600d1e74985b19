// tests/tools/tap.mjs - TAP for test scripts of node: await check() for each case, and end() after the last.

let cases = 0;
let failed = 0;

// A case: the body throws where something is wrong.
export async function check(name, body) {
  cases++;
  try {
    await body();
    console.log(`ok ${cases} - ${name}`);
  } catch (e) {
    failed++;
    console.log(`not ok ${cases} - ${name}`);
    const cause = e.cause ? `\ncaused by ${e.cause.stack ?? e.cause}` : '';
    console.log(`${e.stack ?? e}${cause}`.replace(/^/gm, '# '));
  }
}

export function end() {
  console.log(`1..${cases}`);
  process.exitCode = failed || !cases ? 1 : 0;
}

export function same(what, got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) {
    throw new Error(`${what}: expected ${JSON.stringify(wanted)}, got ${JSON.stringify(got)}`);
  }
}

export function like(what, got, pattern) {
  if (!pattern.test(got)) throw new Error(`${what}: ${JSON.stringify(got)} is not like ${pattern}`);
}

// Waits until holds() gives something true, and returns it.
export async function until(what, holds, seconds = 20) {
  const last = Date.now() + seconds * 1000;
  for (;;) {
    const value = await holds();
    if (value) return value;
    if (Date.now() > last) throw new Error(`waited ${seconds} s in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
