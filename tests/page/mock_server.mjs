// A server that answers the page as `lime serve` does: its files, /health, /v1/models,
// /v1/chat/completions, /lime/cluster and /lime/events. A test decides when each piece of an answer
// is sent, which device is lost, and whether anything answers at all.
//
//   node mock_server.mjs [PORT]     answers by itself, for a look at the page
import {createHash} from 'node:crypto';
import {readFileSync, readdirSync} from 'node:fs';
import http from 'node:http';
import {fileURLToPath} from 'node:url';

const PAGE = fileURLToPath(new URL('../../coordinator/page/', import.meta.url));
const TYPES = {html: 'text/html; charset=utf-8', css: 'text/css; charset=utf-8', js: 'text/javascript; charset=utf-8', svg: 'image/svg+xml'};
const MIB = 2 ** 20;

// The headers of page_files.cc.
function pageHeaders() {
  const source = readFileSync(`${PAGE}page_files.cc`, 'utf8').match(/kHeaders\[\] = \{(.*?)\n\};/s)[1];
  const strings = [...source.matchAll(/"((?:[^"\\]|\\.)*)"(\s*"(?:[^"\\]|\\.)*")*/g)].map(([all]) => all.replace(/"\s*"/g, '').slice(1, -1));
  return Object.fromEntries(strings.flatMap((name, at) => (at % 2 === 0 ? [[name, strings[at + 1]]] : [])));
}

function pageFiles() {
  const files = new Map();
  for (const name of readdirSync(PAGE)) {
    const type = TYPES[name.split('.').pop()];
    if (!type) continue;
    const bytes = readFileSync(PAGE + name);
    files.set(name === 'index.html' ? '/' : `/${name}`, {type, bytes, etag: `"${createHash('sha256').update(bytes).digest('hex').slice(0, 32)}"`});
  }
  return files;
}

function device(name, more) {
  return {
    name, address: `${name}:5454`, state: 'ok', backend: 'cpu', numerics_id: 'cpu-avx2-1', budget_bytes: 2048 * MIB, rss_bytes: 1710 * MIB,
    memory: {weights: 1240 * MIB, kv: 96 * MIB, ring: 160 * MIB, activations: 24 * MIB, runtime: 110 * MIB},
    blocks: 12, streamed_blocks: [], disk_bytes_per_second: 0, ...more,
  };
}

// A token of 80 ms and a bit: each device computes, loads and sends in turn.
function spans(stretch) {
  const result = [];
  const add = (name, kind, what, begin, end) => result.push({device: name, kind, what, begin_ms: begin * stretch, end_ms: end * stretch});
  add('laptop', 'compute', 'embedding', 0, 1.5);
  for (let layer = 0; layer < 6; ++layer) {
    add('laptop', 'compute', `attention ${layer}`, 1.5 + 3.5 * layer, 3 + 3.5 * layer);
    add('laptop', 'compute', `mlp ${layer}`, 3 + 3.5 * layer, 5 + 3.5 * layer);
  }
  add('laptop', 'send', 'hidden state', 22.5, 26);
  add('laptop', 'wait', 'input', 26, 78);
  add('phone', 'wait', 'input', 0, 26);
  add('phone', 'load', 'mlp 7', 2, 17);
  add('phone', 'compute', 'attention 6', 26, 31);
  add('phone', 'compute', 'mlp 6', 31, 38);
  add('phone', 'load', 'mlp 8', 19, 41);
  add('phone', 'wait', 'weights', 38, 41);
  add('phone', 'compute', 'mlp 8', 41, 49);
  add('phone', 'send', 'hidden state', 49, 53);
  add('phone', 'load', 'mlp 7', 50, 76);
  add('desk', 'wait', 'input', 0, 53);
  add('desk', 'compute', 'layers 9 to 15', 53, 70);
  add('desk', 'compute', 'head', 70, 77);
  add('desk', 'send', 'token', 77, 78);
  return result;
}

export function threeDevices() {
  return {
    name: 'stories', model: 'stories-8b', plan: {epoch: 3, stages: 3, predicted_ms_per_token: 78, predicted_ttft_ms: 640},
    measured_ms_per_token: 84.26, tokens_per_second: 11.87, requests: {running: 1, waiting: 2},
    devices: [
      device('laptop', {numerics_id: 'cpu-avx512-1', budget_bytes: 4096 * MIB, rss_bytes: 3300 * MIB,
        memory: {weights: 2710 * MIB, kv: 256 * MIB, ring: 0, activations: 48 * MIB, runtime: 180 * MIB}, blocks: 14}),
      device('phone', {backend: 'cpu', blocks: 7, disk_bytes_per_second: 404e6, streamed_blocks: [
        {name: 'mlp 7', bytes: 18 * MIB}, {name: 'mlp 8', bytes: 18 * MIB}]}),
      device('desk', {blocks: 13}),
    ],
    links: [
      {from: 'laptop', to: 'phone', planned_bytes_per_second: 12.5e6, measured_bytes_per_second: 11.1e6, age_ms: 240},
      {from: 'phone', to: 'desk', planned_bytes_per_second: 12.5e6, measured_bytes_per_second: 12.2e6, age_ms: 12400},
      {from: 'desk', to: 'laptop', planned_bytes_per_second: 118e6, measured_bytes_per_second: null, age_ms: null},
    ],
    timeline: {step: 412, spans: spans(1.08), predicted: spans(1)},
  };
}

// One request for an answer. The test writes the pieces.
class Generation {
  constructor(request, response) {
    this.request = request;
    this.response = response;
    this.closed = new Promise((resolve) => response.on('close', resolve));
  }

  begin() {
    this.response.writeHead(200, {'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'});
    this.#chunk({choices: [{index: 0, delta: {role: 'assistant', content: ''}, finish_reason: null}], usage: null});
  }

  write(delta) {
    this.#chunk({choices: [{index: 0, delta: typeof delta === 'string' ? {content: delta} : delta, finish_reason: null}], usage: null});
  }

  raw(text) {
    this.response.write(text);
  }

  end({finish = 'stop', lime = {}, usage = {}} = {}) {
    this.#chunk({choices: [{index: 0, delta: {}, finish_reason: finish}], usage: null});
    this.#chunk({choices: [], usage: {prompt_tokens: 12, completion_tokens: 7, total_tokens: 19, ...usage},
      lime: {seed: 4321, numerics_id: 'cpu-avx2-1', plan_epoch: 3, recoveries: 0, plan_changes: 0, ...lime,
        timings: {queue_ms: 0.4, prompt_ms: 510, ttft_ms: 612.5, ms_per_token: 84.26, predicted_ms_per_token: 78, ...lime.timings}}});
    this.response.end('data: [DONE]\n\n');
  }

  fail(message) {
    this.response.end(`data: ${JSON.stringify({error: {message, type: 'server_error', param: null, code: null}})}\n\ndata: [DONE]\n\n`);
  }

  #chunk(fields) {
    this.response.write(`data: ${JSON.stringify({id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1796000000, model: 'stories-8b', ...fields})}\n\n`);
  }
}

export class MockServer {
  cluster = threeDevices();
  key = '';
  events = true;           // false: /lime/events is 404; 'held': something between keeps what is sent
  still = false;           // it answers nobody, and closes nothing
  progress = null;         // a number: the model is loading
  requests = [];           // [method, path]
  onGeneration = () => {}; // gets each Generation
  #files = pageFiles();
  #headers = pageHeaders();
  #streams = new Set();
  #server = null;
  #sockets = new Set();
  #ticks = null;

  async start(port = 0) {
    this.#server = http.createServer((request, response) => this.#answer(request, response));
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
    await new Promise((resolve) => this.#server.listen(port, '127.0.0.1', resolve));
    this.port = this.#server.address().port;
    this.url = `http://127.0.0.1:${this.port}/`;
    this.#ticks = setInterval(() => this.show(), 500);
  }

  // As a process that is killed: connections end without a word.
  async stop() {
    clearInterval(this.#ticks);
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    this.#streams.clear();
    await closed;
  }

  // Tells all who watch what the cluster is like now.
  show() {
    if (this.still) return;
    for (const stream of this.#streams) stream.write(`event: cluster\ndata: ${JSON.stringify(this.#shown())}\n\n`);
  }

  // While the model is loading, nothing is known of the cluster.
  #shown() {
    return this.progress === null ? this.cluster : {...this.cluster, name: '', model: '', plan: null, devices: [], links: [], timeline: {step: null, spans: [], predicted: []}, progress: this.progress};
  }

  deviceOf(name) {
    return this.cluster.devices.find((one) => one.name === name);
  }

  #error(response, status, message, code, type = 'invalid_request_error', headers = {}) {
    this.#json(response, {error: {message, type, param: null, code}}, status, headers);
  }

  #json(response, value, status = 200, headers = {}) {
    response.writeHead(status, {'Content-Type': 'application/json', 'x-request-id': 'r1', ...headers});
    response.end(JSON.stringify(value));
  }

  async #answer(request, response) {
    const path = new URL(request.url, 'http://page').pathname;
    this.requests.push([request.method, path]);
    if (this.still) return;
    const file = this.#files.get(path);
    if (file) {
      const headers = {...this.#headers, 'Content-Type': file.type, ETag: file.etag};
      const known = request.headers['if-none-match'] === file.etag;
      response.writeHead(known ? 304 : 200, headers);
      response.end(known ? undefined : file.bytes);
      return;
    }
    if (path === '/health') {
      this.#json(response, this.progress === null ? {status: 'ok'} : {status: 'loading', progress: this.progress}, this.progress === null ? 200 : 503);
      return;
    }
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) {
      this.#error(response, 401, 'The key is missing or unknown: send "Authorization: Bearer KEY".', 'invalid_api_key', undefined, {'WWW-Authenticate': 'Bearer'});
    } else if (this.progress !== null && !path.startsWith('/lime/')) {
      this.#error(response, 503, 'The model is loading; try again later.', 'loading', 'server_error');
    } else if (path === '/v1/models') {
      this.#json(response, {object: 'list', data: [{id: 'stories-8b', object: 'model', created: 1796000000, owned_by: 'lime', max_model_len: 8192}]});
    } else if (path === '/lime/cluster') {
      this.#json(response, this.#shown());
    } else if (path === '/lime/events' && this.events === 'held') {
      return;
    } else if (path === '/lime/events' && this.events) {
      response.writeHead(200, {'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'});
      response.write(': begins\n\n');
      this.#streams.add(response);
      response.on('close', () => this.#streams.delete(response));
      this.show();
    } else if (path === '/v1/chat/completions' && request.method === 'POST') {
      let body = '';
      for await (const piece of request.setEncoding('utf8')) body += piece;
      const parsed = JSON.parse(body);
      parsed.text = body;
      this.onGeneration(new Generation(parsed, response));
    } else {
      this.#error(response, 404, `There is no ${request.method} ${path}.`, 'unknown_url');
    }
  }
}

// Alone: three devices that change a little, and answers about limes.
if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = new MockServer();
  server.key = process.env.KEY || '';
  const words = 'The lime tree flowers in June. Its wood is soft, so carvers like it, and bees like the rest.\n\nA lime is also a fruit.'.split(/(?<= )/);
  server.onGeneration = (generation) => {
    generation.begin();
    let at = -8;
    const timer = setInterval(() => {
      if (at < 0) generation.write({reasoning_content: `thought ${at + 8}, `});
      else if (at < words.length) generation.write(words[at]);
      else generation.end();
      if (at++ >= words.length) clearInterval(timer);
    }, 80);
    generation.closed.then(() => clearInterval(timer));
  };
  await server.start(Number(process.argv[2] || 5463));
  console.log(server.url);
}
