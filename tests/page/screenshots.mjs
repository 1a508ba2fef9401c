// Pictures of the page for docs/images: a chat on a wide screen, and the cluster on a dark phone.
// tests/serve/screenshots.py starts the server that LIME_URL names. LIME_IMAGES: where they go.
import {id, launch, Session} from './browser.mjs';

const {LIME_URL: url, LIME_IMAGES: images} = process.env;
const server = {url: `${url}/`, start() {}, stop() {}};
const QUESTIONS = ['Tell me a story about a fox named Nina.', 'Where was Nina?'];

async function ask(session, question, answers) {
  await session.page.focus(id('chat-input'));
  await session.page.keyboard.sendCharacter(question);
  await session.page.keyboard.press('Enter');
  await session.until((selector, count) => document.querySelectorAll(selector).length === count, id('message-stats'), answers);
}

const browser = await launch();
const settled = (selector) => /^\d/.test(document.querySelector(selector)?.textContent);
for (const [file, options] of [['page.png', {width: 1280, height: 900}], ['page-phone.png', {width: 390, height: 844, dark: true}]]) {
  const session = await Session.open(browser, {server, ...options});
  await session.isIn('connected');
  for (const [number, question] of QUESTIONS.entries()) await ask(session, question, number + 1);
  await session.until(settled, id('measured-ms'));
  await session.page.screenshot({path: `${images}/${file}`});
  await session.close();
}
await browser.close();
