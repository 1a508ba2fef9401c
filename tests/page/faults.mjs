// The page while a device of a real cluster, or its server, is killed and started again.
// tests/serve/page_faults_test.py starts them. LIME_FAULTS names the server that kills: POST /kill,
// /start (a device), /stop, /serve (the server).
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {id, launch, Session} from './browser.mjs';

const {LIME_URL: url, LIME_FAULTS: faults, LIME_LOST_DEVICE: lost} = process.env;
const server = {url: `${url}/`, start() {}, stop() {}};
const TOKENS = 240;

let browser;
before(async () => { browser = await launch(); });
after(() => browser.close());

const pageTest = (name, body) => test(name, {timeout: 100e3}, async () => {
  const session = await Session.open(browser, {server});
  try {
    session.page.setDefaultTimeout(40e3);  // devices load their parts again
    await body(session, session.page);
  } finally {
    await session.close();
  }
});

async function make(fault) {
  const answer = await fetch(`${faults}/${fault}`, {method: 'POST'});
  assert.equal(answer.status, 200, await answer.text());
}

async function ask(page, question, settings) {
  await page.$eval('.settings', (details) => { details.open = true; });
  for (const [name, value] of Object.entries(settings)) await page.type(id(`setting-${name}`), String(value));
  await page.focus(id('chat-input'));
  await page.keyboard.sendCharacter(question);
  await page.keyboard.press('Enter');
}

const answer = `${id('message')}[data-role="assistant"] .answer`;
const card = (state) => `${id('device-card')}[data-device="${lost}"][data-state="${state}"]`;
const letters = (page) => page.$eval(answer, (element) => element.textContent.length);
const isLonger = (selector, than) => document.querySelector(selector)?.textContent.length > than;

// The same answer without a fault, from the server itself.
async function undisturbed(question) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST', headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({messages: [{role: 'user', content: question}], temperature: 0, max_tokens: TOKENS}),
  });
  return (await response.json()).choices[0].message.content;
}

if (lost) {
  pageTest('a device that is killed is lost on its card, then ready, and the answer goes on', async (session, page) => {
    await session.isIn('connected');
    await page.waitForSelector(card('ok'));
    await ask(page, 'Hello', {temperature: 0, 'max-tokens': TOKENS});
    await session.until(isLonger, answer, 10);
    await make('kill');
    await page.waitForSelector(card('lost'));
    await session.until((device) => document.querySelector('#run-note').textContent.startsWith(`${device} is lost.`), lost);
    const before = await letters(page);
    await make('start');
    await page.waitForSelector(card('ok'));
    await session.until(isLonger, answer, before);
    await page.waitForSelector(id('message-stats'));
    assert.equal(await session.text(answer), await undisturbed('Hello'));
    const metrics = await (await fetch(`${url}/metrics`)).text();
    assert.match(metrics, /^lime_recoveries_total 1$/m);
    assert.deepEqual(session.errors, []);
  });
} else {
  pageTest('a page whose server is started again goes on', async (session, page) => {
    await session.isIn('connected');
    await ask(page, 'Hello', {temperature: 0, 'max-tokens': 4});
    await page.waitForSelector(id('message-stats'));
    await make('stop');
    await session.isIn('lost');
    await make('serve');
    await session.isIn('connected');
    await ask(page, 'Again', {});
    await session.until((selector) => document.querySelectorAll(selector).length === 2, id('message-stats'));
    const alone = await page.$$eval(answer, (elements) => elements.map((element) => element.textContent));
    assert.equal(alone.length, 2);
  });
}
