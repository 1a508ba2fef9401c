// What each device did for one token, over what was predicted: three lanes a device. The upper one
// computes or waits, the second loads, the third sends. The prediction is the pale part behind.
import {byId, fromTemplate, isNumber, keepChildren, listOf, milliseconds, setText} from './lime-text.js';

const SVG = 'http://www.w3.org/2000/svg';
const KINDS = [['compute', 'computes', 0], ['wait', 'waits', 0], ['load', 'loads', 1], ['send', 'sends', 2]];
const LANE = 14;             // pixels
const MOST_SPANS = 300;      // of one device; neighbours are joined above it

const laneOf = (kind) => (KINDS.find(([name]) => name === kind) || KINDS[0])[2];

// Spans of one kind that lie closer than `gap` become one.
function joined(spans, gap) {
  const result = [];
  for (const span of [...spans].sort((a, b) => (a.kind < b.kind ? -1 : a.kind > b.kind ? 1 : a.begin_ms - b.begin_ms))) {
    const last = result.at(-1);
    if (last && last.kind === span.kind && span.begin_ms - last.end_ms < gap) {
      last.end_ms = Math.max(last.end_ms, span.end_ms);
      last.what = last.what === span.what ? last.what : 'several';
    } else {
      result.push({...span});
    }
  }
  return result;
}

const fewer = (spans, length) => (spans.length > MOST_SPANS ? joined(spans, length / MOST_SPANS) : spans);

// The time that each kind takes, overlaps counted once: [['computes', 31.5], ...].
function sums(spans) {
  return KINDS.map(([kind, word]) => [
    word, joined(spans.filter((span) => span.kind === kind), 1e-9).reduce((sum, span) => sum + span.end_ms - span.begin_ms, 0)]);
}

function rectangle(span, scale, predicted) {
  const rect = document.createElementNS(SVG, 'rect');
  const inset = (span.kind === 'wait' ? 3 : 0) + (predicted ? 0 : 2);  // waiting is a line, work is a bar
  rect.setAttribute('x', `${((span.begin_ms - scale.begin) / scale.length * 100).toFixed(3)}%`);
  rect.setAttribute('width', `${(Math.max(span.end_ms - span.begin_ms, 0.002 * scale.length) / scale.length * 100).toFixed(3)}%`);
  rect.setAttribute('y', laneOf(span.kind) * LANE + 1 + inset);
  rect.setAttribute('height', LANE - 2 - 2 * inset);
  rect.setAttribute('class', `${predicted ? 'predicted' : 'span'} ${KINDS.some(([kind]) => kind === span.kind) ? span.kind : ''}`);
  rect.dataset.kind = span.kind;
  rect.dataset.testid = predicted ? 'predicted-span' : 'span';
  const title = document.createElementNS(SVG, 'title');
  title.textContent = `${predicted ? 'predicted: ' : ''}${span.kind} ${span.what || ''} from ${milliseconds(span.begin_ms - scale.begin)} ` +
      `to ${milliseconds(span.end_ms - scale.begin)} ms`;
  rect.append(title);
  return rect;
}

function drawLanes(lanes, {device, measured, predicted}, scale) {
  const words = sums(measured).filter(([, ms]) => ms > 0).map(([word, ms]) => `${word} ${milliseconds(ms)}`).join(', ');
  setText(lanes.querySelector('.who'), device);
  setText(lanes.querySelector('.value'), words ? `${words} ms` : 'nothing recorded');
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('height', 3 * LANE);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `${device}: ${words || 'nothing'} ms`);
  for (const lane of [0, 1, 2]) {
    const ground = document.createElementNS(SVG, 'rect');
    for (const [name, value] of [['y', lane * LANE + 1], ['width', '100%'], ['height', LANE - 2], ['class', 'ground']]) ground.setAttribute(name, value);
    svg.append(ground);
  }
  svg.append(...fewer(predicted, scale.length).map((span) => rectangle(span, scale, true)));
  svg.append(...fewer(measured, scale.length).map((span) => rectangle(span, scale, false)));
  if (isNumber(scale.predictedEnd)) {
    const line = document.createElementNS(SVG, 'rect');
    line.setAttribute('x', `${Math.min((scale.predictedEnd - scale.begin) / scale.length * 100, 99.6).toFixed(3)}%`);
    line.setAttribute('width', 2);
    line.setAttribute('height', 3 * LANE);
    line.setAttribute('class', 'end');
    svg.append(line);
  }
  lanes.querySelector('svg')?.remove();
  lanes.append(svg);
}

const valid = (spans) => listOf(spans).filter((span) => span && isNumber(span.begin_ms) && isNumber(span.end_ms) && span.end_ms >= span.begin_ms);

export class TimelineView {
  #shown = '';
  #list = document.querySelector('[data-testid="timeline"]');

  constructor() {
    byId('legend').append(...[...KINDS.map(([kind]) => [kind, kind]), ['end', 'predicted end']].map(([kind, word]) => {
      const item = document.createElement('li');
      const swatch = document.createElement('i');
      swatch.className = `swatch ${kind}`;
      item.append(swatch, word);
      return item;
    }));
  }

  // `timeline.predicted`: spans of the plan's schedule, if the server has them.
  show(cluster) {
    const timeline = cluster.timeline || {};
    const measured = valid(timeline.spans);
    const predicted = valid(timeline.predicted);
    const predictedMs = cluster.plan?.predicted_ms_per_token;
    const shown = JSON.stringify([timeline, predictedMs, listOf(cluster.devices).map((device) => device.name)]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    byId('timeline-part').hidden = measured.length + predicted.length === 0;
    if (byId('timeline-part').hidden) return;

    const begin = measured.reduce((least, span) => Math.min(least, span.begin_ms), measured.length > 0 ? Infinity : 0);
    const end = measured.reduce((most, span) => Math.max(most, span.end_ms), begin);
    const from = predicted.reduce((least, span) => Math.min(least, span.begin_ms), predicted.length > 0 ? Infinity : 0);
    const moved = predicted.map((span) => ({...span, begin_ms: span.begin_ms - from + begin, end_ms: span.end_ms - from + begin}));
    const predictedEnd = isNumber(predictedMs) ? begin + predictedMs : moved.reduce((most, span) => Math.max(most, span.end_ms), begin);
    const length = Math.max(end, predictedEnd, moved.reduce((most, span) => Math.max(most, span.end_ms), begin)) - begin || 1;
    const scale = {begin, length, predictedEnd};

    const names = [...new Set([...listOf(cluster.devices).map((device) => device.name), ...measured.map((span) => span.device)])];
    const rows = names.map((device) => ({
      device,
      measured: measured.filter((span) => span.device === device),
      predicted: moved.filter((span) => span.device === device),
    }));
    keepChildren(this.#list, rows, (row) => row.device, () => fromTemplate('lane-template'), (lanes, row) => {
      lanes.dataset.device = row.device;
      drawLanes(lanes, row, scale);
    });
    setText(byId('timeline-note'), `Step ${timeline.step ?? '–'}: ${milliseconds(end - begin)} ms, predicted ${milliseconds(predictedEnd - begin)} ms. ` +
        'The pale bars behind are the prediction.');
  }
}
