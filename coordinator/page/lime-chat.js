// The chat: messages, settings, an answer as it streams, and how to stop it.
import {byId, count, duration, fromTemplate, isNumber, listOf, milliseconds, setText} from './lime-text.js';
import {eventsOf, Locked} from './lime-server.js';

const NEAR_END = 48;  // pixels from the end of the log at which it follows what is added
const MOST_SEED = 2n ** 64n - 1n;

const settings = [
  {id: 'temperature', wants: 'The temperature is a number from 0 to 2.',
    read: (text) => (/^\d*[.,]?\d+$/.test(text) && Number(text.replace(',', '.')) <= 2 ? Number(text.replace(',', '.')) : undefined)},
  {id: 'max-tokens', field: 'max_completion_tokens', wants: 'Max tokens is a whole number of at least 1.',
    read: (text) => (/^\d{1,9}$/.test(text) && Number(text) >= 1 ? Number(text) : undefined)},
  // Digits, since a number of JavaScript holds 53 bits of them.
  {id: 'seed', wants: 'The seed is a whole number from 0 to 18446744073709551615.',
    read: (text) => (/^\d{1,20}$/.test(text) && BigInt(text) <= MOST_SEED ? BigInt(text) : undefined)},
];

// The text of a request; big integers as they are.
function requestText(request) {
  return `{${Object.entries(request).map(([name, value]) =>
    `${JSON.stringify(name)}:${typeof value === 'bigint' ? value : JSON.stringify(value)}`).join(',')}}`;
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Error('The server sent something that is no answer.');
  }
}

export class Chat {
  #server;
  #onLocked;
  #log = document.querySelector('[data-testid="chat-log"]');
  #form = byId('ask');
  #input = byId('message');
  #turns = [];       // {question, answer} that the next request repeats
  #run = null;       // {abort, turn}: the answer that streams
  #frame = 0;        // the frame in which the log follows its end, if one is asked for
  #lost = [];        // names of lost devices
  #cluster = {};

  constructor(server, onLocked) {
    this.#server = server;
    this.#onLocked = onLocked;
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#input.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.#run && !document.querySelector('dialog[open]')) this.stop();
    });
    byId('stop').addEventListener('click', () => this.stop());
    byId('new-chat').addEventListener('click', () => this.#clear());
    for (const {id} of settings) byId(id).addEventListener('change', () => this.#readSettings());
  }

  stop() {
    this.#run?.abort.abort();
  }

  // What a running answer may wait for, and the prediction beside an answer that was stopped.
  onCluster(cluster) {
    this.#cluster = cluster;
    this.#lost = listOf(cluster.devices).filter((device) => device.state === 'lost').map((device) => device.name);
    this.#noteRun();
  }

  #clear() {
    this.stop();
    this.#turns = [];
    for (const message of this.#log.querySelectorAll('.message')) message.remove();
    byId('empty-chat').hidden = false;
    this.#input.focus();
  }

  // The fields of a request, or nothing where one is wrong, which is said.
  #readSettings() {
    const request = {};
    let wrong = '';
    for (const {id, field = id, wants, read} of settings) {
      const input = byId(id);
      const text = input.value.trim();
      const value = text === '' ? null : read(text);
      const bad = value === undefined;
      input.setAttribute('aria-invalid', String(bad));
      if (bad) {
        input.setAttribute('aria-describedby', 'setting-error');
        wrong = wrong || wants;
      } else {
        input.removeAttribute('aria-describedby');
        if (value !== null) request[field] = value;
      }
    }
    setText(byId('setting-error'), wrong);
    byId('setting-error').hidden = wrong === '';
    return wrong === '' ? request : undefined;
  }

  async #send() {
    const question = this.#input.value.trim();
    if (question === '' || this.#run) return;
    const fields = this.#readSettings();
    if (!fields) {
      document.querySelector('.settings').open = true;
      document.querySelector('.settings [aria-invalid="true"]').focus();
      return;
    }
    const system = byId('system').value.trim();
    const messages = system === '' ? [] : [{role: 'system', content: system}];
    const turns = this.#turns;  // of this chat, though another may begin before the answer ends
    for (const turn of turns) messages.push({role: 'user', content: turn.question}, {role: 'assistant', content: turn.answer});
    messages.push({role: 'user', content: question});

    this.#input.value = '';
    byId('empty-chat').hidden = true;
    this.#addMessage('user', 'You').querySelector('.answer').textContent = question;
    const turn = new Answer(this.#addMessage('assistant', 'Answer'));
    this.#run = {abort: new AbortController(), turn};
    this.#showRunning(true);
    this.#toEnd();
    const body = requestText({messages, ...fields, stream: true, stream_options: {include_usage: true}});
    try {
      await this.#stream(body, turn);
    } catch (error) {
      this.#failed(error, turn, question);
    }
    this.#grow(() => turn.end(fields.seed, this.#cluster));
    if (turn.text !== '') turns.push({question, answer: turn.text});
    this.#run = null;
    this.#showRunning(false);
  }

  async #stream(body, turn) {
    const {signal} = this.#run.abort;
    const response = await this.#server.call('v1/chat/completions', {body, signal});
    for await (const {data} of eventsOf(response)) {
      if (data === '[DONE]') return;
      const chunk = parsed(data);
      if (chunk.error) throw new Error(chunk.error.message || 'The server could not finish the answer.');
      this.#grow(() => turn.add(chunk));
    }
    throw new TypeError('the stream has no end');
  }

  #failed(error, turn, question) {
    if (this.#run.abort.signal.aborted) {
      turn.fail(turn.text === '' ? 'Stopped before the first word. This question is not part of the chat.' : 'Stopped.', false);
      return;
    }
    if (error instanceof Locked) {
      turn.fail('The server asks for a key.');
      this.#onLocked();
    } else {
      turn.fail(error instanceof TypeError ? 'The server was lost before the answer ended.' : error.message);
    }
    if (turn.text === '' && this.#input.value === '') this.#input.value = question;  // to send again
  }

  #addMessage(role, label) {
    const message = fromTemplate('message-template');
    message.dataset.role = role;
    message.setAttribute('aria-label', label);
    this.#log.append(message);
    return message;
  }

  // `add` makes the log longer, and the log follows if its end was seen. What is added is laid out
  // once for each frame, not for each token: the height is asked for when nothing is new, and the
  // position within the frame, since its reader may have moved until then.
  #grow(add) {
    if (this.#frame === 0) {
      const height = this.#log.scrollHeight;
      this.#frame = requestAnimationFrame(() => {
        this.#frame = 0;
        if (height - this.#log.scrollTop - this.#log.clientHeight < NEAR_END) this.#toEnd();
      });
    }
    add();
  }

  #toEnd() {
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  #showRunning(runs) {
    const [send, stop] = [byId('send'), byId('stop')];
    const held = document.activeElement === stop || document.activeElement === send;
    send.disabled = runs;
    stop.disabled = !runs;
    if (held) this.#input.focus();  // a disabled button loses the keyboard
    this.#noteRun();
  }

  #noteRun() {
    const runs = this.#run !== null;
    byId('keys').hidden = runs;
    byId('run-note').hidden = !runs;
    if (!runs) return setText(byId('run-note'), '');
    const lost = this.#lost.length === 0 ? '' :
      `${this.#lost.join(' and ')} ${this.#lost.length === 1 ? 'is' : 'are'} lost. The answer goes on as soon as it can.`;
    setText(byId('run-note'), lost || (this.#run.turn.begun ? 'Answering' : 'Waiting for the first token'));
  }
}

// One answer of the model, in its message.
class Answer {
  text = '';
  begun = false;
  #message;
  #parts;            // text nodes, which grow without copying
  #lime = null;
  #usage = null;
  #finish = '';
  // When the first and the last piece came, and how many: for an answer that is stopped.
  #first = 0;
  #last = 0;
  #pieces = 0;

  constructor(message) {
    this.#message = message;
    message.setAttribute('aria-busy', 'true');
    this.#parts = {answer: document.createTextNode(''), reasoning: document.createTextNode('')};
    message.querySelector('.answer').append(this.#parts.answer);
  }

  add(chunk) {
    this.#lime = chunk.lime || this.#lime;
    this.#usage = chunk.usage || this.#usage;
    for (const {delta = {}, finish_reason: finish} of listOf(chunk.choices)) {
      this.#finish = finish || this.#finish;
      if (delta.reasoning_content) {
        if (!this.#parts.reasoning.parentNode) this.#addReasoning();
        this.#piece('reasoning', delta.reasoning_content);
      }
      if (delta.content) {
        this.text += delta.content;
        this.#piece('answer', delta.content);
      }
    }
  }

  fail(sentence, isError = true) {
    const wrong = this.#message.querySelector('.wrong');
    wrong.textContent = sentence;
    wrong.classList.toggle('mild', !isError);
    wrong.hidden = false;
  }

  // `seed`: what was asked for, if anything.
  end(seed, cluster) {
    this.#message.setAttribute('aria-busy', 'false');
    if (this.#finish === 'length') this.fail('Cut here: max tokens or the end of the context is reached.', false);
    const timings = this.#lime?.timings || {
      ms_per_token: this.#pieces > 1 ? (this.#last - this.#first) / (this.#pieces - 1) : null,
      predicted_ms_per_token: cluster.plan?.predicted_ms_per_token,
    };
    if (!this.#lime && this.#pieces === 0) return;
    const stats = fromTemplate('stats-template');
    this.#message.append(stats);
    stats.firstChild.textContent = `${milliseconds(timings.ms_per_token)} ms a token, predicted ${milliseconds(timings.predicted_ms_per_token)}`;
    stats.lastChild.textContent = this.#more(timings, seed).map((text) => ` · ${text}`).join('');
  }

  #addReasoning() {
    const reasoning = fromTemplate('reasoning-template');
    reasoning.querySelector('.text').append(this.#parts.reasoning);
    this.#message.prepend(reasoning);
  }

  #more(timings, seed) {
    const more = [];
    if (isNumber(this.#usage?.completion_tokens)) more.push(count(this.#usage.completion_tokens, 'token'));
    if (isNumber(timings.ttft_ms)) more.push(`first after ${duration(timings.ttft_ms)}`);
    if (timings.queue_ms >= 100) more.push(`waited ${duration(timings.queue_ms)}`);
    const cached = this.#usage?.prompt_tokens_details?.cached_tokens;
    if (cached > 0) more.push(`${cached} of ${this.#usage.prompt_tokens} prompt tokens computed before`);
    if (this.#lime?.recoveries > 0) more.push(count(this.#lime.recoveries, 'recovery', 'recoveries'));
    if (this.#lime?.plan_changes > 0) more.push(count(this.#lime.plan_changes, 'plan change'));
    if (seed !== undefined || isNumber(this.#lime?.seed)) more.push(`seed ${seed ?? this.#lime.seed}`);
    return more;
  }

  #piece(part, text) {
    this.#last = performance.now();
    this.#first ||= this.#last;
    ++this.#pieces;
    this.begun = true;
    this.#parts[part].appendData(text);
  }
}
