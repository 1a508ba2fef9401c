// The cluster as /lime/cluster and /lime/events describe it: facts, devices, links, recoveries.
import {ago, bytes, byId, count, duration, fromTemplate, isNumber, keepChildren, listOf, milliseconds, NOTHING, rate, setShare, setText} from './lime-text.js';
import {TimelineView} from './lime-timeline.js';

const KINDS = [['weights', 'weights'], ['kv', 'KV'], ['ring', 'ring'], ['activations', 'activations'], ['runtime', 'runtime']];
const STATES = {ok: 'ready', loading: 'loading', lost: 'lost'};
const OLD_MS = 10e3;     // a rate that was measured longer ago says so
const MOST_NAMES = 6;    // of streamed blocks
const MOST_EVENTS = 20;

const field = (name) => document.querySelector(`[data-testid="${name}"]`);
const clock = (date) => date.toTimeString().slice(0, 8);
const sum = (values) => values.reduce((total, value) => total + (isNumber(value) ? value : 0), 0);
const stateOf = (device) => (device.state in STATES ? device.state : 'loading');

// In each token, every streamed block is read once.
function plannedDiskRate(device, plan) {
  if (isNumber(device.planned_disk_bytes_per_second)) return device.planned_disk_bytes_per_second;
  const read = sum(listOf(device.streamed_blocks).map((block) => block.bytes));
  return read > 0 && plan?.predicted_ms_per_token > 0 ? read / plan.predicted_ms_per_token * 1000 : null;
}

function streamsText(device) {
  const blocks = listOf(device.streamed_blocks);
  const all = isNumber(device.blocks) ? count(device.blocks, 'block') : 'its blocks';
  if (blocks.length === 0) return device.blocks === 0 ? 'Holds no blocks; nothing streams.' : `Holds ${all}; nothing streams.`;
  const names = blocks.slice(0, MOST_NAMES).map((block) => block.name).join(', ');
  const others = blocks.length > MOST_NAMES ? ` and ${blocks.length - MOST_NAMES} more` : '';
  return `Streams ${blocks.length} of ${all}, ${bytes(sum(blocks.map((block) => block.bytes)))} a token: ${names}${others}`;
}

const percent = (share) => (isNumber(share) ? `${Math.round(share * 100)} %` : NOTHING);

// Goes on after the sentence `before`.
function expertsText(experts, before) {
  if (!isNumber(experts?.kept)) return '';
  return `${before.endsWith('.') ? '' : '.'} Keeps ${experts.kept} of ${experts.of} experts of a layer: ${percent(experts.expected_hit_share)} expected in memory, ` +
    `${percent(experts.measured_hit_share)} measured.`;
}

function showMemory(card, device) {
  const memory = device.memory || {};
  const budget = device.budget_bytes;
  const used = sum(Object.values(memory));
  const whole = Math.max(budget || 0, used) || 1;
  setText(card.querySelector('.total'), `${bytes(used)} of ${bytes(budget)}`);
  const kinds = [...KINDS, ...Object.keys(memory).filter((kind) => !KINDS.some(([name]) => name === kind)).map((kind) => [kind, kind])]
    .filter(([kind]) => isNumber(memory[kind]));
  const classOf = (kind) => (KINDS.some(([name]) => name === kind) ? kind : 'runtime');
  keepChildren(card.querySelector('.stack'), kinds, ([kind]) => kind, ([kind]) => {
    const part = document.createElement('i');
    part.className = classOf(kind);
    return part;
  }, (part, [kind]) => setShare(part, memory[kind] / whole));
  keepChildren(card.querySelector('.kinds'), kinds, ([kind]) => kind, ([kind]) => {
    const item = fromTemplate('kind-template');
    item.dataset.kind = kind;
    item.querySelector('.swatch').classList.add(classOf(kind));
    return item;
  }, (item, [kind, word]) => {
    setText(item.querySelector('.what'), word);
    setText(item.querySelector('.value'), bytes(memory[kind]));
  });
}

function showDevice(card, device, plan) {
  const state = stateOf(device);
  card.dataset.device = device.name;
  card.dataset.state = state;
  setText(card.querySelector('h4'), device.name);
  setText(card.querySelector('.state'), STATES[state]);
  const about = [device.address, device.backend, device.numerics_id].filter(Boolean);
  if (isNumber(device.rss_bytes)) about.push(`process ${bytes(device.rss_bytes)}`);
  setText(card.querySelector('.about'), about.join(' · '));
  showMemory(card, device);
  setText(card.querySelector('.streams'), streamsText(device) + expertsText(device.experts, streamsText(device)));
  const planned = plannedDiskRate(device, plan);
  const measured = device.disk_bytes_per_second;
  card.querySelector('.disk').hidden = !planned && !measured;
  card.querySelector('.bar-of').hidden = !planned;
  setText(card.querySelector('[data-testid="disk-rate"]'), `${rate(measured)}, planned ${rate(planned)}`);
  setShare(card.querySelector('.bar-of i'), planned ? measured / planned : 0);
}

function showLink(row, link) {
  row.dataset.from = link.from;
  row.dataset.to = link.to;
  setText(row.querySelector('th'), `${link.from} → ${link.to}`);
  const measured = isNumber(link.measured_bytes_per_second);
  setText(row.querySelector('.measured .rate'), measured ? rate(link.measured_bytes_per_second) : 'not yet');
  setText(row.querySelector('.age'), measured && link.age_ms >= OLD_MS ? `${ago(link.age_ms)} ago` : '');
  setText(row.querySelector('.planned'), rate(link.planned_bytes_per_second));
}

function planText(plan) {
  if (!isNumber(plan?.epoch)) return NOTHING;
  const stages = Array.isArray(plan.stages) ? plan.stages.length : plan.stages;
  return `epoch ${plan.epoch}${isNumber(stages) ? `, ${count(stages, 'stage')}` : ''}`;
}

const withUnit = (value, unit) => (isNumber(value) ? `${milliseconds(value)} ${unit}` : NOTHING);

export class ClusterView {
  #timeline = new TimelineView();
  #states = new Map();   // by device, as they were last
  #shown = null;         // when what is shown came
  #gone = new Set();     // devices that were lost and are not ready again
  #epoch = null;
  #back = 0;             // devices that came back while this page was open

  // Whether what is shown is of now.
  setLive(live) {
    document.querySelector('.cluster').classList.toggle('stale', !live);
    byId('as-of').hidden = live || !this.#shown;
    if (this.#shown) setText(byId('as-of'), `As of ${clock(this.#shown)}`);
  }

  show(cluster) {
    this.#shown = new Date();
    const {plan, requests = {}} = cluster;
    setText(field('measured-ms'), withUnit(cluster.measured_ms_per_token, 'ms'));
    setText(field('predicted-ms'), withUnit(plan?.predicted_ms_per_token, 'ms'));
    setText(field('tokens-per-second'), withUnit(cluster.tokens_per_second, 'tokens/s'));
    setText(field('predicted-ttft'), isNumber(plan?.predicted_ttft_ms) ? duration(plan.predicted_ttft_ms) : NOTHING);
    setText(field('requests'), `${requests.running ?? NOTHING} running, ${requests.waiting ?? NOTHING} waiting`);
    setText(field('plan'), planText(plan));

    const devices = listOf(cluster.devices);
    byId('no-devices').hidden = devices.length > 0;
    keepChildren(byId('devices'), devices, (device) => device.name, () => fromTemplate('device-template'),
      (card, device) => showDevice(card, device, plan));
    const links = listOf(cluster.links);
    byId('links-part').hidden = links.length === 0;
    keepChildren(byId('links'), links, (link) => JSON.stringify([link.from, link.to]), () => fromTemplate('link-template'), showLink);
    this.#timeline.show(cluster);
    this.#showRecoveries(cluster, devices);
  }

  #showRecoveries(cluster, devices) {
    for (const device of devices) {
      const [before, now] = [this.#states.get(device.name), stateOf(device)];
      this.#states.set(device.name, now);
      if (before === undefined || before === now) continue;
      if (now === 'lost') this.#gone.add(device.name);
      const again = now === 'ok' && this.#gone.delete(device.name);
      if (again) ++this.#back;
      this.#note(`${device.name} ${now === 'lost' ? 'was lost' : now === 'loading' ? 'loads its part' : again ? 'is ready again' : 'is ready'}`);
    }
    const epoch = cluster.plan?.epoch;
    if (this.#epoch !== null && isNumber(epoch) && epoch !== this.#epoch) this.#note(`Plan ${epoch} is installed`);
    if (isNumber(epoch)) this.#epoch = epoch;
    const seen = this.#back === 0 ? 'None since this page was opened.' : `${count(this.#back, 'device')} came back since this page was opened.`;
    setText(field('recoveries'), isNumber(cluster.recoveries) ? `${count(cluster.recoveries, 'recovery', 'recoveries')} since the server began.` : seen);
  }

  #note(sentence) {
    const item = document.createElement('li');
    const time = document.createElement('time');
    time.textContent = clock(new Date());
    item.append(time, ` ${sentence}`);
    byId('events').prepend(item);
    while (byId('events').children.length > MOST_EVENTS) byId('events').lastChild.remove();
  }
}
