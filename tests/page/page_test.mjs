// The page as a whole, and the cluster on it, in a browser.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {id, launch, Session} from './browser.mjs';
import {MockServer} from './mock_server.mjs';

let browser;
before(async () => { browser = await launch(); });
after(() => browser.close());

const sessionTest = (name, body, options) => test(name, {timeout: 30e3}, async () => {
  const session = await Session.open(browser, options?.() || {});
  try {
    await body(session, session.page);
  } finally {
    await session.close();
  }
});

const storage = () => [localStorage.length, sessionStorage.length];
const isIdle = (testid) => document.querySelector(testid).disabled;
const hasText = (selector, wanted) => document.querySelector(selector)?.textContent === wanted;

sessionTest('it opens with few requests, no error, nothing stored, and its parts named', async (session, page) => {
  await session.isIn('connected');
  await session.until(hasText, id('model'), 'stories-8b');
  assert.ok(session.server.requests.length <= 12, session.server.requests.join('\n'));
  assert.deepEqual(session.server.requests.filter(([, path]) => path === '/favicon.ico'), []);
  assert.deepEqual(await page.evaluate(storage), [0, 0]);
  assert.deepEqual(await page.evaluate(() => [document.documentElement.lang, document.title, document.querySelectorAll('h1').length, document.querySelectorAll('main').length]),
    ['en', 'stories-8b · LIME', 1, 1]);
  await session.askAndAnswer('Hi', 'Hello');
  assert.deepEqual(await page.evaluate(storage), [0, 0]);
  assert.deepEqual(session.errors, []);
});

sessionTest('three devices are shown as they are', async (session, page) => {
  await session.isIn('connected');
  await page.waitForSelector(id('device-card'));
  assert.deepEqual(await page.$$eval(id('device-card'), (cards) => cards.map((card) => [card.dataset.device, card.dataset.state])),
    [['laptop', 'ok'], ['phone', 'ok'], ['desk', 'ok']]);
  assert.equal(await session.text(id('measured-ms')), '84.3 ms');
  assert.equal(await session.text(id('predicted-ms')), '78.0 ms');
  assert.equal(await session.text(id('requests')), '1 running, 2 waiting');
  const card = (name) => `${id('device-card')}[data-device="${name}"]`;
  assert.deepEqual(await page.$$eval(`${card('laptop')} ${id('memory-kind')}`, (kinds) => kinds.map((kind) => [kind.dataset.kind, kind.textContent])), [
    ['weights', 'weights2.65 GiB'], ['kv', 'KV256 MiB'], ['ring', 'ring0 B'], ['activations', 'activations48.0 MiB'], ['runtime', 'runtime180 MiB']]);
  assert.equal(await session.text(`${card('laptop')} .total`), '3.12 GiB of 4.00 GiB');
  assert.equal(await session.text(`${card('laptop')} ${id('streams')}`), 'Holds 14 blocks; nothing streams.');
  assert.equal(await session.text(`${card('phone')} ${id('streams')}`), 'Streams 2 of 7 blocks, 36.0 MiB a token: mlp 7, mlp 8');
  assert.equal(await session.text(`${card('phone')} ${id('disk-rate')}`), '404 MB/s, planned 484 MB/s');
  assert.equal(await page.$eval(`${card('laptop')} .disk`, (row) => row.hidden), true);
  assert.deepEqual(await page.$$eval(id('link-row'), (rows) => rows.map((row) => [row.dataset.from, row.dataset.to, row.querySelector('.measured').textContent.trim(), row.querySelector('.planned').textContent])), [
    ['laptop', 'phone', '11.1 MB/s', '12.5 MB/s'], ['phone', 'desk', '12.2 MB/s 12 s ago', '12.5 MB/s'], ['desk', 'laptop', 'not yet', '118 MB/s']]);
  const kinds = await page.$$eval(`${id('timeline')} ${id('span')}`, (spans) => [...new Set(spans.map((span) => span.dataset.kind))].sort());
  assert.deepEqual(kinds, ['compute', 'load', 'send', 'wait']);
  assert.deepEqual(await page.$$eval(`${id('timeline')} > li`, (lanes) => lanes.map((lane) => lane.dataset.device)), ['laptop', 'phone', 'desk']);
  assert.ok((await page.$$(id('predicted-span'))).length > 10);
  // A span is where its times are: phone computes mlp 8 from 41 to 49 of 84.24 ms, all times 1.08.
  const box = await page.$$eval(`[data-device="phone"] ${id('span')}[data-kind="compute"]`, (spans) => [spans.at(-1).getAttribute('x'), spans.at(-1).getAttribute('width')].map(parseFloat));
  assert.ok(Math.abs(box[0] - 100 * 41 / 78) < 0.01 && Math.abs(box[1] - 100 * 8 / 78) < 0.01, String(box));
});

sessionTest('a cluster without numbers, streams and links is shown, too', async (session, page) => {
  await session.isIn('connected');
  await session.until((selector) => document.querySelector(selector)?.textContent === '–', id('measured-ms'));
  assert.equal(await session.text(id('predicted-ms')), '–');
  assert.match(await session.text(id('streams')), /nothing streams/);
  assert.equal(await page.$(`${id('link-row')}, ${id('span')}`), null);
  assert.deepEqual(session.errors, []);
}, () => {
  const server = new MockServer();
  server.cluster = {name: 'one', model: 'one', plan: {epoch: 0, stages: [], predicted_ms_per_token: null}, measured_ms_per_token: null, tokens_per_second: null,
    requests: {running: 0, waiting: 0}, devices: [{name: 'here', state: 'loading', memory: {}, streamed_blocks: []}], links: [], timeline: {step: null, spans: []}};
  return {server};
});

sessionTest('a device is lost and comes back: its card stays, says so, and recoveries are told', async (session, page) => {
  await session.isIn('connected');
  const phone = await page.waitForSelector(`${id('device-card')}[data-device="phone"]`);
  const generation = await session.ask('Go on.');
  generation.begin();
  generation.write('One ');
  session.server.deviceOf('phone').state = 'lost';
  session.server.show();
  await session.until((element) => element.dataset.state === 'lost', phone);
  assert.equal(await phone.$eval('.state', (state) => state.textContent), 'lost');
  await session.until(hasText, '#run-note', 'phone is lost. The answer goes on as soon as it can.');
  await session.isIn('connected');
  session.server.deviceOf('phone').state = 'loading';
  session.server.show();
  await session.until((element) => element.dataset.state === 'loading', phone);
  session.server.deviceOf('phone').state = 'ok';
  session.server.cluster.plan.epoch = 4;
  session.server.show();
  await session.until((element) => element.isConnected && element.dataset.state === 'ok', phone);
  generation.write('two');
  generation.end({lime: {recoveries: 1}});
  await session.answers('One two');
  await session.until(isIdle, id('chat-stop'));
  assert.equal(await session.text(id('recoveries')), '1 device came back since this page was opened.');
  assert.deepEqual((await session.texts('#events li')).map((text) => text.slice(9)),
    ['Plan 4 is installed', 'phone is ready again', 'phone loads its part', 'phone was lost']);
  session.server.cluster.recoveries = 3;
  session.server.show();
  await session.until(hasText, id('recoveries'), '3 recoveries since the server began.');
  assert.deepEqual(session.errors, []);
});

sessionTest('a key is asked for, refused, kept in this tab, and used for everything', async (session, page) => {
  await session.isIn('locked');
  await page.waitForSelector(id('key-dialog'), {visible: true});
  assert.equal(await page.evaluate(() => document.activeElement.dataset.testid), 'key-input');
  assert.deepEqual(await session.seriousFaults(), []);
  await page.keyboard.type('wrong');
  await page.keyboard.press('Enter');
  await session.until(hasText, '#key-error', 'The server refused that key. Try another one.');
  await page.keyboard.press('Escape');
  await page.waitForSelector(id('key-dialog'), {hidden: true});
  await page.click('#enter-key');
  await page.type(id('key-input'), 'secret-key');
  await page.keyboard.press('Enter');
  await session.isIn('connected');
  assert.equal(await page.$(id('key-dialog')), null);
  await session.askAndAnswer('Hi', 'Hello');
  assert.deepEqual(await page.evaluate(() => [localStorage.length, {...sessionStorage}]), [0, {'lime-key': 'secret-key'}]);
  await page.reload();
  await session.isIn('connected');
  assert.equal(await page.$(id('key-dialog')), null);
  // The key is taken away while the page is open: the chat asks, too.
  session.server.key = 'another';
  await page.type(id('chat-input'), 'Hi');
  await page.keyboard.press('Enter');
  await page.waitForSelector(id('key-dialog'), {visible: true});
  await page.type(id('key-input'), 'another');
  await page.keyboard.press('Enter');
  await session.until(isIdle, id('chat-stop'));
  assert.equal(await page.$eval(id('chat-input'), (input) => input.value), 'Hi');
}, () => ({server: Object.assign(new MockServer(), {key: 'secret-key'})}));

sessionTest('a server that is gone is lost, and goes on when it is back', async (session, page) => {
  await session.isIn('connected');
  await session.askAndAnswer('Hi', 'Hello');
  const generation = await session.ask('Still there?');
  generation.begin();
  generation.write('Ye');
  await session.answers('Ye');
  const port = session.server.port;
  await session.server.stop();
  await session.isIn('lost');
  assert.match(await session.text(id('as-of')), /^As of \d\d:\d\d:\d\d$/);
  await session.until(isIdle, id('chat-stop'));
  assert.equal((await session.texts('[data-role="assistant"] > .wrong')).at(-1), 'The server was lost before the answer ended.');
  assert.deepEqual(await session.seriousFaults(), []);
  await session.server.start(port);
  await session.isIn('connected');
  const {request} = await session.askAndAnswer('Back?', 'Yes.');
  assert.deepEqual(request.messages.map(({content}) => content), ['Hi', 'Hello', 'Still there?', 'Ye', 'Back?']);
});

sessionTest('where events do not come through, the cluster is polled', async (session) => {
  await session.isIn('connected');
  session.server.cluster.measured_ms_per_token = 12.5;
  await session.until(hasText, id('measured-ms'), '12.5 ms');
  assert.ok(session.server.requests.some(([, path]) => path === '/lime/cluster'));
  const port = session.server.port;
  await session.server.stop();
  await session.isIn('lost');
  session.server.events = true;
  await session.server.start(port);
  await session.isIn('connected');
}, () => ({server: Object.assign(new MockServer(), {events: false})}));

sessionTest('where events are held back on their way, the cluster is polled', async (session) => {
  await session.isIn('connected');
  assert.ok(session.server.requests.some(([, path]) => path === '/lime/cluster'));
  assert.deepEqual(session.errors, []);
}, () => ({server: Object.assign(new MockServer(), {events: 'held'})}));

sessionTest('a server that stands still is lost, and goes on when it moves', async (session) => {
  await session.isIn('connected');
  session.server.still = true;
  await session.isIn('lost');
  session.server.still = false;
  await session.isIn('connected');
});

for (const events of [true, false]) {
  sessionTest(`a model that loads is waited for, ${events ? 'by events' : 'by polls'}`, async (session) => {
    await session.until(hasText, id('status'), 'Loading the model, 42 %');
    await session.isIn('connecting');
    session.server.progress = 0.9;
    await session.until(hasText, id('status'), 'Loading the model, 90 %');
    session.server.progress = null;
    await session.isIn('connected');
    await session.until(hasText, id('model'), 'stories-8b');
    if (events) assert.deepEqual(session.errors, []);
  }, () => ({server: Object.assign(new MockServer(), {progress: 0.428, events})}));
}

sessionTest('server-sent events are read the same wherever they are cut', async (session, page) => {
  const faults = await page.evaluate(async () => {
    const {SseParser} = await import('/lime-server.js');
    const text = ': comment\n\nevent: cluster\ndata: {"a": 1}\n\ndata:no blank\ndata:  two\nid: 7\nnothing\n\n\nevent: ping\n\ndata\n\ndata: last';
    const wanted = JSON.stringify([{event: 'cluster', data: '{"a": 1}'}, {event: 'message', data: 'no blank\n two'}, {event: 'message', data: ''}]);
    const faults = [];
    for (const ending of ['\n', '\r\n', '\r']) {
      const bytes = text.replaceAll('\n', ending);
      for (let cut = 0; cut <= bytes.length; ++cut) {
        const parser = new SseParser();
        const events = JSON.stringify([...parser.push(bytes.slice(0, cut)), ...parser.push(bytes.slice(cut))]);
        if (events !== wanted) faults.push(`${JSON.stringify(ending)} at ${cut}: ${events}`);
      }
    }
    const parser = new SseParser();
    try {
      for (let at = 0; at < 100; ++at) parser.push(`data: ${'x'.repeat(1 << 16)}\n`);
      faults.push('an event without an end is kept');
    } catch {
      // as it has to be
    }
    return faults;
  });
  assert.deepEqual(faults, []);
});

for (const dark of [false, true]) {
  sessionTest(`axe finds nothing serious in the ${dark ? 'dark' : 'light'} page`, async (session, page) => {
    await session.isIn('connected');
    await page.waitForSelector(id('device-card'));
    assert.deepEqual(await session.seriousFaults(), []);
    await page.click('.settings summary');
    await page.type(id('setting-temperature'), '9');
    await page.type(id('chat-input'), 'Hi');
    await page.keyboard.press('Enter');
    await page.$eval(id('setting-temperature'), (input) => { input.value = ''; });
    await page.$eval(id('chat-input'), (input) => { input.value = ''; });
    assert.deepEqual(await session.seriousFaults(), []);
    session.server.deviceOf('phone').state = 'lost';
    session.server.deviceOf('desk').state = 'loading';
    session.server.show();
    const generation = await session.ask('Hi');
    generation.begin();
    generation.write({reasoning_content: 'Hm.'});
    generation.write('Hello');
    await session.answers('Hello');
    await page.$eval('[data-role="assistant"] .reasoning', (details) => { details.open = true; });
    assert.deepEqual(await session.seriousFaults(), []);
    generation.end();
    await session.until(isIdle, id('chat-stop'));
    assert.deepEqual(await session.seriousFaults(), []);
  }, () => ({dark}));

  sessionTest(`390 pixels are enough for the ${dark ? 'dark' : 'light'} page`, async (session, page) => {
    await session.isIn('connected');
    await page.waitForSelector(id('link-row'));
    await session.askAndAnswer('w'.repeat(300), 'W'.repeat(500));
    await page.click('.settings summary');
    assert.deepEqual(await page.evaluate(() => [document.documentElement.scrollWidth, document.body.scrollWidth]), [390, 390]);
    const sizes = await page.evaluate((input, send) => [input, send].map((selector) => document.querySelector(selector))
      .map((element) => [parseFloat(getComputedStyle(element).fontSize), element.getBoundingClientRect().height]), id('chat-input'), id('chat-send'));
    assert.ok(sizes[0][0] >= 16, `the input's font is ${sizes[0][0]} px`);
    for (const [, height] of sizes) assert.ok(height >= 40, `${height} px high`);
    const wide = await page.evaluate(() => [...document.querySelectorAll('body *')]
      .filter((element) => element.checkVisibility() && element.getBoundingClientRect().right > 390.5).map((element) => element.outerHTML.slice(0, 100)));
    assert.deepEqual(wide, []);
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
    assert.equal(background.every((part) => part < 64), dark, String(background));
    assert.equal(background.every((part) => part > 192), !dark, String(background));
  }, () => ({width: 390, height: 844, dark, before: (session) => { session.server.deviceOf('phone').name = 'a-device-with-a-name-of-sixty-four-letters-as-long-as-they-may-be'; }}));
}
