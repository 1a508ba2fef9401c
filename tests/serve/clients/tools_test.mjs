// Calls of functions in the syntax of one template (LIME_SYNTAX): forced, streamed, answered, told again in the history.
import assert from 'node:assert/strict';
import test from 'node:test';
import {hello, isLook, look, openai, short, url} from './server.mjs';

const syntax = process.env.LIME_SYNTAX;
const add = {name: 'add', parameters: {type: 'object', required: ['values', 'note'], properties: {
  values: {type: 'array', items: {type: 'number'}, minItems: 1, maxItems: 3}, note: {type: 'string', maxLength: 12}, exact: {type: 'boolean'}}}};
const tools = [look, add].map((described) => ({type: 'function', function: described}));
const request = {...short, ignore_eos: false, max_tokens: 600, messages: hello, tools};

const forced = (name) => ({type: 'function', function: {name}});

function isAdd(input) {
  return Array.isArray(input.values) && input.values.length >= 1 && input.values.length <= 3 && input.values.every((value) => typeof value === 'number') &&
    typeof input.note === 'string' && [...input.note].length <= 12 && ['undefined', 'boolean'].includes(typeof input.exact);
}

async function rendered(messages) {
  const response = await fetch(`${url}/apply-template`, {method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify({messages, tools})});
  assert.equal(response.status, 200, await response.clone().text());
  return (await response.json()).prompt;
}

for (const [name, fits] of [['look', isLook], ['add', isAdd]]) {
  test(`${syntax}: a call of ${name} is valid by its schema, ten times`, async () => {
    for (let seed = 0; seed < 10; ++seed) {
      const answer = await openai.chat.completions.create({...request, seed, tool_choice: forced(name), parallel_tool_calls: false});
      const {message, finish_reason} = answer.choices[0];
      assert.equal(finish_reason, 'tool_calls');
      const [call] = message.tool_calls;
      assert.equal(message.tool_calls.length, 1);
      assert.equal(call.function.name, name);
      assert.ok(fits(JSON.parse(call.function.arguments)), call.function.arguments);
      assert.ok(call.id && (syntax !== 'mistral' || /^[A-Za-z0-9]{9}$/.test(call.id)), call.id);
      assert.ok(!message.content, message.content);  // no markup is left over
    }
  });
}

test(`${syntax}: neither a stop text nor ignore_eos keeps a call from its end`, async () => {
  const answer = await openai.chat.completions.create({...request, ignore_eos: true, tool_choice: forced('look'), stop: ['\n', '{', 'at', 'look']});
  const {message, finish_reason} = answer.choices[0];
  assert.equal(finish_reason, 'tool_calls');
  assert.equal(message.tool_calls.length, 1);
  assert.ok(isLook(JSON.parse(message.tool_calls[0].function.arguments)), message.tool_calls[0].function.arguments);
});

test(`${syntax}: a stream tells the name first, then the arguments alone`, async () => {
  const deltas = [];
  for await (const chunk of await openai.chat.completions.create({...request, tool_choice: 'required', stream: true})) {
    for (const choice of chunk.choices) deltas.push(...(choice.delta.tool_calls ?? []));
  }
  const begun = new Set();
  const texts = [];
  for (const delta of deltas) {
    if (!begun.has(delta.index)) {
      assert.equal(delta.index, begun.size);
      assert.equal(delta.type, 'function');
      assert.ok(delta.id && ['look', 'add'].includes(delta.function.name));
      assert.equal(delta.function.arguments, '');
      begun.add(delta.index);
      texts.push({name: delta.function.name, text: ''});
    } else {
      assert.deepEqual(Object.keys(delta).sort(), ['function', 'index']);
      assert.deepEqual(Object.keys(delta.function), ['arguments']);
      texts[delta.index].text += delta.function.arguments;
    }
  }
  assert.ok(texts.length >= 1);
  for (const {name, text} of texts) assert.ok((name === 'look' ? isLook : isAdd)(JSON.parse(text)), text);
});

test(`${syntax}: a call and its result go back to the model`, async () => {
  const answer = await openai.chat.completions.create({...request, tool_choice: forced('look'), parallel_tool_calls: false});
  const {message} = answer.choices[0];
  const [call] = message.tool_calls;
  const messages = [...hello, message, {role: 'tool', tool_call_id: call.id, content: 'a hill, 3 km away'}];
  const prompt = await rendered(messages);
  assert.match(prompt, /look/);
  assert.match(prompt, /a hill, 3 km away/);
  assert.match(prompt, new RegExp(JSON.parse(call.function.arguments).at));
  const said = await openai.chat.completions.create({...request, ignore_eos: true, messages, tool_choice: 'none', max_tokens: 16});
  assert.equal(said.choices[0].finish_reason, 'length');
  assert.equal(said.choices[0].message.tool_calls, undefined);
  assert.ok(said.usage.prompt_tokens > answer.usage.prompt_tokens);
});

test(`${syntax}: arguments that are no JSON reach the template as text`, async () => {
  const call = {id: 'abcdefghi', type: 'function', function: {name: 'look', arguments: 'not {json'}};
  if (syntax === 'qwen3_coder') return;  // its templates go over the items of an object
  assert.match(await rendered([...hello, {role: 'assistant', content: null, tool_calls: [call]}, {role: 'tool', tool_call_id: call.id, content: 'no'}]), /not \{json/);
});

test(`${syntax}: none is none, and auto may be none`, async () => {
  for (const tool_choice of ['none', 'auto']) {
    const answer = await openai.chat.completions.create({...request, tool_choice, max_tokens: 24});
    assert.ok(['stop', 'length', 'tool_calls'].includes(answer.choices[0].finish_reason));
    if (tool_choice === 'none') assert.equal(answer.choices[0].message.tool_calls, undefined);
  }
});
