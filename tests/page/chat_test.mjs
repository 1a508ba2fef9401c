// The chat, in a browser.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {id, launch, Session} from './browser.mjs';

let browser;
before(async () => { browser = await launch(); });
after(() => browser.close());

// A test with a session that is connected.
const pageTest = (name, body, options) => test(name, {timeout: 30e3}, async () => {
  const session = await Session.open(browser, options);
  try {
    await session.isIn('connected');
    await body(session, session.page);
  } finally {
    await session.close();
  }
});

const isIdle = (testid) => document.querySelector(testid).disabled;

pageTest('an answer streams, with its time beside the prediction', async (session) => {
  const generation = await session.ask('When?');
  assert.deepEqual(generation.request.messages, [{role: 'user', content: 'When?'}]);
  assert.equal(generation.request.stream, true);
  generation.begin();
  generation.write('In ');
  await session.answers('In ');
  generation.raw(': keep-alive\n\n');
  generation.write('Jü');
  await session.answers('In Jü');
  assert.equal(await session.page.$(`${id('message-stats')}:not(:empty)`), null);
  generation.write('ne');
  generation.end();
  await session.until(isIdle, id('chat-stop'));
  assert.equal(await session.text(`${id('message')}[data-role="user"] .answer`), 'When?');
  assert.equal(await session.text(`${id('message')}[data-role="assistant"] .answer`), 'In Jüne');
  assert.equal(await session.text(`${id('message')}[data-role="assistant"] ${id('message-stats')}`), '84.3 ms a token, predicted 78.0');
  assert.match(await session.text('[data-role="assistant"] .more'), /7 tokens · first after 613 ms · seed 4321$/);
  assert.deepEqual(session.errors, []);
});

pageTest('an answer may arrive in any pieces', async (session) => {
  const generation = await session.ask('When?');
  const text = '🍋 über all';
  const bytes = Buffer.from(`: sign of life\n\ndata: ${JSON.stringify({choices: [{index: 0, delta: {content: text}}]})}\r\n\r\ndata: [DONE]\n\n`);
  generation.response.writeHead(200, {'Content-Type': 'text/event-stream'});
  for (const byte of bytes) await new Promise((resolve) => generation.response.write(Buffer.of(byte), resolve));
  generation.response.end();
  await session.answers(text);
  await session.until(isIdle, id('chat-stop'));
});

pageTest('reasoning is folded and is no part of the answer', async (session) => {
  const generation = await session.ask('Why?');
  generation.begin();
  generation.write({reasoning_content: 'Let me '});
  generation.write({reasoning_content: 'think.'});
  generation.write('Because.');
  generation.end();
  await session.until(isIdle, id('chat-stop'));
  const reasoning = '[data-role="assistant"] details.reasoning';
  assert.equal(await session.page.$eval(reasoning, (details) => details.open), false);
  assert.equal(await session.text(`${reasoning} .text`), 'Let me think.');
  assert.equal(await session.text('[data-role="assistant"] .answer'), 'Because.');
  await session.page.focus(`${reasoning} summary`);
  await session.page.keyboard.press('Enter');
  await session.until((selector) => document.querySelector(selector).open, reasoning);
  const next = await session.askAndAnswer('And?', 'So.');
  assert.deepEqual(next.request.messages.map(({content}) => content), ['Why?', 'Because.', 'And?']);
});

pageTest('text is never taken for HTML', async (session, page) => {
  const evil = '<img src=x onerror="document.title=1"><b>bold</b><script>document.title=2</script>&lt;';
  session.server.cluster.model = evil;
  session.server.cluster.devices[0].name = evil;
  session.server.show();
  await session.askAndAnswer(evil, evil);
  assert.deepEqual(await session.texts(`${id('message')} .answer`), [evil, evil]);
  await session.until((selector, wanted) => document.querySelector(selector).textContent === wanted, id('model'), evil);
  assert.equal(await page.$('main img, main b, .model img'), null);
  assert.equal(await page.title(), `${evil} · LIME`);
});

pageTest('settings go with the request, a seed with all its digits', async (session, page) => {
  await page.click('.settings summary');
  for (const [name, value] of [['system', 'Be brief.'], ['temperature', '0,5'], ['seed', '18446744073709551615'], ['max-tokens', '32']]) {
    await page.type(id(`setting-${name}`), value);
  }
  const {request} = await session.askAndAnswer('Hi', 'Hello');
  assert.deepEqual(request.messages[0], {role: 'system', content: 'Be brief.'});
  assert.equal(request.temperature, 0.5);
  assert.equal(request.max_completion_tokens, 32);
  assert.match(request.text, /"seed":18446744073709551615[,}]/);
  assert.match(await session.text('[data-role="assistant"] .more'), /seed 18446744073709551615$/);
});

pageTest('a setting that is wrong is said, and nothing is sent', async (session, page) => {
  await page.click('.settings summary');
  for (const [name, wrong, right] of [['temperature', '2.5', '2'], ['seed', '18446744073709551616', '0'], ['max-tokens', '0', '1']]) {
    await page.type(id(`setting-${name}`), wrong);
    await page.type(id('chat-input'), 'Hi');
    await page.keyboard.press('Enter');
    await session.until((selector) => document.activeElement === document.querySelector(selector), id(`setting-${name}`));
    assert.equal(await page.$eval('#setting-error', (error) => error.hidden), false);
    await page.$eval(id(`setting-${name}`), (input) => { input.value = ''; });
    await page.type(id(`setting-${name}`), right);
    await page.$eval(id('chat-input'), (input) => { input.value = ''; });
  }
  assert.equal(session.generations.length, 0);
  await session.askAndAnswer('Hi', 'Hello');
  assert.equal(await page.$eval('#setting-error', (error) => error.hidden), true);
});

for (const [how, stop] of [['Escape', (page) => page.keyboard.press('Escape')], ['the button', (page) => page.click(id('chat-stop'))]]) {
  pageTest(`${how} stops an answer within 0.8 s, and the chat goes on`, async (session, page) => {
    assert.equal(await page.$eval(id('chat-stop'), (button) => button.disabled), true);
    const generation = await session.ask('Count.');
    generation.begin();
    generation.write('1 2 3');
    await session.answers('1 2 3');
    const begin = performance.now();
    await stop(page);
    await generation.closed;
    await session.until(isIdle, id('chat-stop'));
    assert.ok(performance.now() - begin < 800, `${performance.now() - begin} ms`);
    assert.equal(await session.text('[data-role="assistant"] .answer'), '1 2 3');
    assert.match(await session.text(id('message-stats')), /^\S+ ms a token, predicted 78\.0$|^$/);
    const next = await session.askAndAnswer('On.', '4');
    assert.deepEqual(next.request.messages.map(({content}) => content), ['Count.', '1 2 3', 'On.']);
    assert.deepEqual(session.errors, []);
  });
}

pageTest('an answer that is stopped before it begins leaves the chat as it was', async (session, page) => {
  const generation = await session.ask('Slow?');
  await page.keyboard.press('Escape');
  await generation.closed;
  await session.until(isIdle, id('chat-stop'));
  const next = await session.askAndAnswer('Again.', 'Yes.');
  assert.deepEqual(next.request.messages.map(({content}) => content), ['Again.']);
});

pageTest('Enter sends, Shift+Enter breaks the line, and nothing is sent twice', async (session, page) => {
  await page.focus(id('chat-input'));
  await page.keyboard.press('Enter');  // nothing to send
  await page.keyboard.type('one');
  await page.keyboard.down('Shift');
  await page.keyboard.press('Enter');
  await page.keyboard.up('Shift');
  const generation = await session.ask('two');
  assert.equal(generation.request.messages[0].content, 'one\ntwo');
  await page.keyboard.type('three');
  await page.keyboard.press('Enter');  // while one runs
  assert.equal(await page.$eval(id('chat-send'), (button) => button.disabled), true);
  generation.begin();
  generation.end();
  await session.until(isIdle, id('chat-stop'));
  assert.equal(await page.$eval(id('chat-input'), (input) => input.value), 'three');
  assert.equal(session.generations.length, 1);
});

pageTest('everything is reached and used by keyboard, with a focus that is seen', async (session, page) => {
  const reached = new Set();
  for (let presses = 0; presses < 40; ++presses) {
    await page.keyboard.press('Tab');
    const at = await page.evaluate(() => {
      const element = document.activeElement;
      const style = getComputedStyle(element);
      return {what: element.dataset.testid || element.id || element.className || element.tagName,
        seen: element === document.body || (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2)};
    });
    assert.ok(at.seen, `${at.what} has the keyboard, and nobody sees it`);
    if (reached.has(at.what) && at.what === 'new-chat') break;
    reached.add(at.what);
    if (at.what === 'SUMMARY') await page.keyboard.press('Enter');  // opens the settings
  }
  for (const wanted of ['new-chat', 'chat-log', 'setting-system', 'setting-temperature', 'setting-seed', 'setting-max-tokens', 'chat-input', 'chat-send', 'cluster']) {
    assert.ok(reached.has(wanted), `Tab does not reach ${wanted}, only ${[...reached].join(', ')}`);
  }
  await page.focus(id('chat-input'));
  await page.keyboard.type('By keyboard.');
  const asked = session.generation();
  await page.keyboard.press('Tab');   // chat-stop is disabled
  assert.equal(await page.evaluate(() => document.activeElement.dataset.testid), 'chat-send');
  await page.keyboard.press('Space');
  (await asked).begin();
  await session.until((selector) => document.activeElement === document.querySelector(selector), id('chat-input'));
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.dataset.testid), 'chat-stop');
  await page.keyboard.press('Enter');
  await session.until(isIdle, id('chat-stop'));
  assert.equal(await page.evaluate(() => document.activeElement.dataset.testid), 'chat-input');
});

pageTest('the log follows the newest text, unless its reader looks back', async (session, page) => {
  const long = 'A line of text.\n'.repeat(80);
  const generation = await session.ask('Tell me much.');
  generation.begin();
  generation.write(long);
  await session.answers(long);
  const showsEnd = () => session.until((testid) => {
    const log = document.querySelector(testid);
    return log.scrollHeight - log.scrollTop - log.clientHeight < 2;
  }, id('chat-log'));
  await showsEnd();
  await page.$eval(id('chat-log'), (log) => { log.scrollTop = 100; });
  generation.write('more');
  await session.answers(`${long}more`);
  await session.isDrawn();
  assert.equal(await page.$eval(id('chat-log'), (log) => log.scrollTop), 100);
  generation.end();
  await session.until(isIdle, id('chat-stop'));
  await session.askAndAnswer('And now?', 'Now.');
  await showsEnd();
});

pageTest('Escape stops an answer that comes faster than it can be shown', async (session, page) => {
  const generation = await session.ask('Dots?');
  generation.begin();
  const {response} = generation;
  let dots = 0;
  const write = () => { while (!response.closed && !response.writableNeedDrain) generation.write(++dots < 2000 ? '.' : ''); };
  response.on('drain', write);
  write();
  await session.until((selector) => document.querySelector(selector).textContent.startsWith('...'), '[data-role="assistant"] .answer');
  await page.keyboard.press('Escape');
  await generation.closed;
  await session.until(isIdle, id('chat-stop'));
});

pageTest('many tokens are laid out once for each frame', async (session, page) => {
  const generation = await session.ask('Count.');
  generation.begin();
  await session.isDrawn();
  const layouts = async () => (await page.metrics()).LayoutCount;
  const before = await layouts();
  const text = Array.from({length: 400}, (_, at) => `${at} `);
  for (const piece of text) generation.write(piece);
  await session.answers(text.join(''));
  const taken = await layouts() - before;
  assert.ok(taken < 100, `${taken} layouts`);
  generation.end();
  await session.until(isIdle, id('chat-stop'));
});

pageTest('an error is said in the words of the server, and the question can be sent again', async (session, page) => {
  const refused = await session.ask('Too long');
  refused.response.writeHead(400, {'Content-Type': 'application/json'});
  refused.response.end(JSON.stringify({error: {message: 'The prompt has 9000 tokens, the context 8192.', type: 'invalid_request_error', param: 'messages', code: 'context_length_exceeded'}}));
  await session.until(isIdle, id('chat-stop'));
  assert.equal(await session.text('[data-role="assistant"] > .wrong'), 'The prompt has 9000 tokens, the context 8192.');
  assert.equal(await page.$eval(id('chat-input'), (input) => input.value), 'Too long');
  await page.$eval(id('chat-input'), (input) => { input.value = ''; });
  const failed = await session.ask('Short');
  failed.begin();
  failed.write('Half');
  failed.fail('Device "phone" is missing.');
  await session.until(isIdle, id('chat-stop'));
  assert.equal((await session.texts('[data-role="assistant"] > .wrong')).at(-1), 'Device "phone" is missing.');
  assert.equal((await session.texts('[data-role="assistant"] .answer')).at(-1), 'Half');
});

pageTest('an answer cut by its length says so', async (session) => {
  const generation = await session.ask('Long?');
  generation.begin();
  generation.write('Very');
  generation.end({finish: 'length', lime: {recoveries: 2, plan_changes: 1, timings: {ms_per_token: null}}, usage: {completion_tokens: 1, prompt_tokens_details: {cached_tokens: 8}}});
  await session.until(isIdle, id('chat-stop'));
  assert.match(await session.text('[data-role="assistant"] > .wrong'), /^Cut here/);
  assert.equal(await session.text(id('message-stats')), '– ms a token, predicted 78.0');
  assert.equal(await session.text('[data-role="assistant"] .more'),
    ' · 1 token · first after 613 ms · 8 of 12 prompt tokens computed before · 2 recoveries · 1 plan change · seed 4321');
});

pageTest('a new chat forgets the old one, even one that streams', async (session, page) => {
  await session.askAndAnswer('Old?', 'Old.');
  const running = await session.ask('Older?');
  running.begin();
  running.write('Old');
  await session.answers('Old');
  await page.click('#new-chat');
  await running.closed;
  await session.until(isIdle, id('chat-stop'));
  assert.deepEqual(await page.$$(id('message')), []);
  const {request} = await session.askAndAnswer('New?', 'New.');
  assert.deepEqual(request.messages.map(({content}) => content), ['New?']);
});
