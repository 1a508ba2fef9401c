// The page as `lime serve` answers it: what its server sends becomes what a person sees.
// tests/serve/page_test.py starts the server that LIME_URL names.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {id, launch, Session} from './browser.mjs';

const {LIME_URL: url, LIME_MODEL: model, LIME_DEVICES: devices, LIME_KEY: key} = process.env;
const server = {url: `${url}/`, start() {}, stop() {}};

let browser;
before(async () => { browser = await launch(); });
after(() => browser.close());

const pageTest = (name, body) => test(name, {timeout: 60e3}, async () => {
  const requests = [];
  const session = await Session.open(browser, {server, before: ({page}) => page.on('request', (request) => requests.push(new URL(request.url()).pathname))});
  try {
    await body(session, session.page, requests);
  } finally {
    await session.close();
  }
});

const hasNumber = (testid) => /^\d/.test(document.querySelector(testid)?.textContent);
const answer = `${id('message')}[data-role="assistant"] .answer`;

async function unlocked(session, page) {
  if (!key) return session.isIn('connected');
  await session.isIn('locked');
  await page.waitForSelector(id('key-dialog'), {visible: true});
  await page.type(id('key-input'), `not-${key}`);
  await page.keyboard.press('Enter');
  await session.until((selector) => document.querySelector(selector)?.textContent.startsWith('The server refused that key.'), '#key-error');
  await page.type(id('key-input'), key);
  await page.keyboard.press('Enter');
  return session.isIn('connected');
}

async function ask(page, question, settings) {
  await page.$eval('.settings', (details) => { details.open = true; });
  for (const [name, value] of Object.entries(settings)) await page.type(id(`setting-${name}`), value);
  await page.focus(id('chat-input'));
  await page.keyboard.sendCharacter(question);
  await page.keyboard.press('Enter');
}

// Presses Escape; the milliseconds from the key to the chat that runs nothing, by the page's clock. How
// long the driver of the browser takes to hear of it depends on what else the machine does.
async function timeToStop(page) {
  await page.evaluate((testid) => {
    const stop = document.querySelector(testid);
    window.stopped = new Promise((resolve) => {
      addEventListener('keydown', ({timeStamp}) => {
        new MutationObserver(() => stop.disabled && resolve(performance.now() - timeStamp)).observe(stop, {attributes: true});
      }, {capture: true, once: true});
    });
  }, id('chat-stop'));
  await page.keyboard.press('Escape');
  return page.evaluate(() => window.stopped);
}

pageTest('a chat with the times of its answer, and the cluster that gave it', async (session, page, requests) => {
  await unlocked(session, page);
  await session.until((selector, name) => document.querySelector(selector).textContent === name, id('model'), model);
  if (!key) assert.ok(requests.length <= 12, requests.join('\n'));
  assert.deepEqual(await page.evaluate(() => [localStorage.length, {...sessionStorage}]), [0, key ? {'lime-key': key} : {}]);
  await session.until((selector, count) => document.querySelectorAll(`${selector}[data-state="ok"]`).length === count, id('device-card'), Number(devices));
  await session.until(hasNumber, id('predicted-ms'));
  assert.equal((await page.$$(`${id('device-card')} ${id('memory-kind')}`)).length, 5 * devices);
  for (const text of await session.texts(id('streams'))) assert.match(text, /^Holds \d+ blocks?; nothing streams\.$/);
  assert.equal((await page.$$(id('link-row'))).length, devices > 1 ? Number(devices) : 0);

  await ask(page, 'Hello', {temperature: '0', seed: '7', 'max-tokens': '40'});
  await page.waitForSelector(id('message-stats'));
  assert.match(await session.text(id('message-stats')), /^\d[\d.]* ms a token, predicted \d[\d.]*$/);
  assert.match(await session.text('.stats .more'), /seed 7$/);
  assert.notEqual(await session.text(answer), '');
  await session.until(hasNumber, id('measured-ms'));
  await session.until((selector, count) => new Set([...document.querySelectorAll(selector)].map((span) => span.closest('.lanes').dataset.device)).size === count,
    `${id('timeline')} ${id('span')}[data-kind="compute"]`, Number(devices));
  assert.notDeepEqual(await page.$$(id('predicted-span')), []);
  assert.deepEqual(await session.seriousFaults(), []);
  assert.deepEqual(session.errors.filter((error) => !/401/.test(error)), []);
});

if (!key) {
  pageTest('Escape ends the request on the server, too', async (session, page) => {
    const cancelled = async () => Number((await (await fetch(`${url}/metrics`)).text()).match(/^lime_generations_total\{finish="cancelled"\} (\d+)$/m)[1]);
    const earlier = await cancelled();
    await unlocked(session, page);
    await ask(page, 'Hello', {temperature: '0'});
    await session.until((selector) => document.querySelector(selector)?.textContent, answer);
    const took = await timeToStop(page);
    assert.ok(took < 800, `${took} ms`);
    while (await cancelled() === earlier) ;  // each look is an answer of the server
    await ask(page, 'Again', {'max-tokens': '2'});
    await session.until((selector) => document.querySelectorAll(selector).length === 2, id('message-stats'));
  });
}
