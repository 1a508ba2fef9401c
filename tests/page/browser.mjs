// Debian's chromium, driven by puppeteer-core. LIME_NODE_MODULES names the folder of the packages of
// tests/npm, LIME_CHROMIUM another browser.
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {fileURLToPath} from 'node:url';
import {MockServer} from './mock_server.mjs';

const here = fileURLToPath(new URL('.', import.meta.url));
const require = createRequire(process.env.LIME_NODE_MODULES ? `${process.env.LIME_NODE_MODULES}/of.js` : `${here}of.js`);
const puppeteer = require('puppeteer-core');
const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

export const id = (name) => `[data-testid="${name}"]`;

// Pages of the browser's own, each with a process that takes longer to start than a test takes: the
// suggestions of the address bar, which nobody sees, once for each window, and spare processes.
const UNUSED = ['WebUIOmniboxPopup', 'WebUIOmniboxAimPopup', 'WebUIOmniboxFullPopup', 'PreloadTopChromeWebUI', 'SpareRendererForSitePerProcess'];

export function launch() {
  return puppeteer.launch({
    executablePath: process.env.LIME_CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',  // root of a container has no sandbox
      `--disable-features=${UNUSED.join(',')}`],
  });
}

// A server, and the page as a person has it open. Everything waits for events of the page; `until`
// runs its function in the page.
export class Session {
  errors = [];      // of the console, and exceptions
  generations = [];
  #waiting = [];

  static async open(browser, {server = new MockServer(), width = 1280, height = 860, dark = false, before = () => {}} = {}) {
    const session = new Session();
    session.server = server;
    server.onGeneration = (generation) => {
      session.generations.push(generation);
      session.#waiting.shift()?.(generation);
    };
    await server.start();
    session.context = await browser.createBrowserContext();
    session.page = await session.context.newPage();
    session.page.setDefaultTimeout(15e3);
    session.page.on('console', (message) => message.type() === 'error' && session.errors.push(message.text()));
    session.page.on('pageerror', (error) => session.errors.push(String(error)));
    await session.page.setViewport({width, height});
    await session.page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: dark ? 'dark' : 'light'}]);
    await before(session);
    await session.page.goto(server.url);
    return session;
  }

  async close() {
    await this.context.close();
    await this.server.stop();
  }

  async isIn(state) {
    await this.page.waitForSelector(`${id('status')}[data-state="${state}"]`);
  }

  // The next request for an answer.
  generation() {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  // Types and sends; the request that comes of it.
  async ask(question) {
    const generation = this.generation();
    await this.page.focus(id('chat-input'));
    await this.page.keyboard.sendCharacter(question);
    await this.page.keyboard.press('Enter');
    return generation;
  }

  // Asks, and answers at once.
  async askAndAnswer(question, answer) {
    const generation = await this.ask(question);
    generation.begin();
    generation.write(answer);
    generation.end();
    await this.until((testid) => document.querySelector(testid).disabled, id('chat-stop'));
    return generation;
  }

  until(check, ...values) {
    return this.page.waitForFunction(check, {polling: 20}, ...values);
  }

  // Until what has changed is laid out and drawn.
  isDrawn() {
    return this.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve()))));
  }

  text(selector) {
    return this.page.$eval(selector, (element) => element.textContent);
  }

  texts(selector) {
    return this.page.$$eval(selector, (elements) => elements.map((element) => element.textContent));
  }

  // Until the last message has this text.
  answers(text) {
    return this.until((selector, wanted) => [...document.querySelectorAll(selector)].at(-1)?.textContent === wanted,
      `${id('message')}[data-role="assistant"] .answer`, text);
  }

  // The violations that axe calls serious or critical, one line each.
  async seriousFaults() {
    await this.page.evaluate(AXE);  // a script element would be refused by the page's policy
    const {violations} = await this.page.evaluate(() => window.axe.run(document, {resultTypes: ['violations']}));
    return violations.filter(({impact}) => impact === 'serious' || impact === 'critical')
      .map(({id: rule, nodes}) => `${rule}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join(' | ')}`);
  }
}
