// Calls to the server this page came from: its key, server-sent events, and the cluster as it
// changes. A server that is gone is called again until it is back.

const KEY = 'lime-key';             // in sessionStorage; nothing else is stored
const MOST_EVENT = 4 << 20;         // characters of one event
const FIRST_EVENT_MS = 3000;        // without one, something between buffers the stream: poll instead
const SILENCE_MS = 5000;            // events come twice a second
const POLL_MS = 1000;
const RETRY_MS = [250, 500, 1000, 2000, 4000];
const HIDDEN_MS = 60e3;             // devices record their spans only while somebody looks
const TURN_MS = 10;                 // of reading, before input, timers and drawing have their turn

// The server refused the key, or wants one.
export class Locked extends Error {}

// An answer other than 200, with the sentence and the code that the server gave.
export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Server-sent events from text that arrives in any cuts: push() returns those that are complete.
export class SseParser {
  #rest = '';
  #event = '';
  #data = [];
  #size = 0;

  push(text) {
    const events = [];
    this.#rest += text;
    const ends = /[\r\n]/g;
    let begin = 0;
    for (;;) {
      ends.lastIndex = begin;
      const end = ends.exec(this.#rest)?.index;
      if (end === undefined) break;
      if (this.#rest[end] === '\r' && end + 1 === this.#rest.length) break;  // a line feed may follow
      this.#line(this.#rest.slice(begin, end), events);
      begin = end + (this.#rest.startsWith('\r\n', end) ? 2 : 1);
    }
    this.#rest = this.#rest.slice(begin);
    if (this.#rest.length + this.#size > MOST_EVENT) throw new Error('The server sent an event that is too long.');
    return events;
  }

  #line(line, events) {
    if (line === '') {
      if (this.#data.length > 0) events.push({event: this.#event || 'message', data: this.#data.join('\n')});
      this.#event = '';
      this.#data = [];
      this.#size = 0;
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;  // a comment, which is a sign of life
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
    if (field === 'event') this.#event = value;
    if (field === 'data') this.#data.push(value);
    this.#size += value.length;
  }
}

// Resolves in another task. A message, because timers of a page in the background are slow.
const nextTurn = () => new Promise((resolve) => {
  const {port1, port2} = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    resolve();
  };
  port2.postMessage(null);
});

// The events of an answer; `onBytes` is also called for comments. read() of bytes that have arrived
// resolves within the same task: where they come faster than they are used, the page would neither
// draw nor hear Escape until the last of them, but for the turns in between.
export async function* eventsOf(response, onBytes = () => {}) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  let turnBegan = performance.now();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      onBytes();
      yield* parser.push(decoder.decode(value, {stream: true}));
      if (performance.now() - turnBegan < TURN_MS) continue;
      await nextTurn();
      turnBegan = performance.now();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export class Server {
  #key = sessionStorage.getItem(KEY) || '';

  get hasKey() {
    return this.#key !== '';
  }

  useKey(key) {
    this.#key = key;
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  }

  // 200 and its body. Throws Locked, Refused, or what fetch throws where nobody answers. `body`: the
  // text of a JSON object.
  async call(path, {body, signal} = {}) {
    const headers = {};
    if (this.#key) headers.Authorization = `Bearer ${this.#key}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    const response = await fetch(path, {method: body === undefined ? 'GET' : 'POST', headers, body, signal, cache: 'no-store'});
    if (response.ok) return response;
    const text = await response.text().catch(() => '');
    if (response.status === 401) throw new Locked(text);
    let error = {};
    try {
      error = JSON.parse(text).error || {};
    } catch {
      // not an answer of this server's; its status has to do
    }
    throw new Refused(response.status, error.message || `The server answered ${response.status} ${response.statusText}.`, error.code);
  }
}

const sleep = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener('abort', () => {
    clearTimeout(timer);
    resolve();
  }, {once: true});
});

// Follows /lime/events, or polls /lime/cluster where events do not come through. `onState(state,
// text)`: connecting, connected, locked or lost. `onCluster(cluster)`: what the cluster is like now.
export class ClusterWatch {
  #server;
  #onState;
  #onCluster;
  #state = '';
  #failures = 0;
  #polls = false;
  #hiddenSince = Infinity;
  #wake = new AbortController();  // ends a wait

  constructor(server, {onState, onCluster}) {
    this.#server = server;
    this.#onState = onState;
    this.#onCluster = onCluster;
    addEventListener('online', () => this.tryNow());
    document.addEventListener('visibilitychange', () => {
      this.#hiddenSince = document.hidden ? performance.now() : Infinity;
      if (!document.hidden) this.tryNow();
    });
  }

  tryNow() {
    this.#wake.abort();
    this.#wake = new AbortController();
  }

  async run() {
    this.#tell('connecting', 'Connecting');
    for (;;) {
      try {
        await (this.#polls ? this.#poll() : this.#follow());
      } catch (error) {
        await this.#failed(error);
      }
      while (this.#isUnseen()) await sleep(HIDDEN_MS, this.#wake.signal);
    }
  }

  #isUnseen() {
    return performance.now() - this.#hiddenSince >= HIDDEN_MS - 1;
  }

  #tell(state, text) {
    this.#state = state;
    this.#onState(state, text);
  }

  #show(cluster) {
    this.#failures = 0;
    if (cluster.plan === null) this.#tell('connecting', `Loading the model, ${Math.floor(100 * (cluster.progress || 0))} %`);
    else if (this.#state !== 'connected') this.#tell('connected', 'Connected');
    this.#onCluster(cluster);
  }

  async #failed(error) {
    if (error instanceof Locked) {
      this.#tell('locked', 'Needs a key');
      await sleep(2 ** 31 - 1, this.#wake.signal);  // until there is another key
      return;
    }
    if (error instanceof Refused && [404, 405, 406, 501].includes(error.status) && !this.#polls) {
      this.#polls = true;
      return;
    }
    this.#polls = false;
    if (error instanceof Refused) {
      this.#tell('lost', error.message);
    } else if (this.#failures > 0 || this.#state !== 'connected') {
      this.#tell('lost', 'Connection lost; trying again');
    }
    const wait = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)];
    await sleep(wait, this.#wake.signal);
  }

  async #follow() {
    const abort = new AbortController();
    let hears = false;
    let timer = setTimeout(() => abort.abort(), FIRST_EVENT_MS);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
      if (this.#isUnseen()) abort.abort();
    };
    try {
      const response = await this.#server.call('lime/events', {signal: abort.signal});
      if (!(response.headers.get('content-type') || '').startsWith('text/event-stream')) throw new Refused(406, 'no events', '');
      for await (const {event, data} of eventsOf(response, () => hears && heard())) {
        if (event !== 'cluster') continue;
        hears = true;
        heard();
        this.#show(JSON.parse(data));
      }
    } catch (error) {
      if (this.#isUnseen()) return;
      if (abort.signal.aborted && !hears) throw new Refused(406, 'no events', '');
      if (abort.signal.aborted) this.#tell('lost', 'Connection lost; trying again');
      throw error;
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
    throw new Error('The stream of events has ended.');
  }

  async #poll() {
    const response = await this.#server.call('lime/cluster', {signal: AbortSignal.timeout(SILENCE_MS)});
    this.#show(await response.json());
    await sleep(POLL_MS, this.#wake.signal);
  }
}
