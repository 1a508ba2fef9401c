// The package ai, with both of its providers that a local server is used by.
import assert from 'node:assert/strict';
import test from 'node:test';
import {createOpenAI} from '@ai-sdk/openai';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
import {generateText, jsonSchema, Output, stepCountIs, streamText, tool} from 'ai';
import {all, apiKey, baseURL, isLook, look, model} from './server.mjs';

const ours = createOpenAI({baseURL, apiKey});
const models = {
  'openai-compatible': createOpenAICompatible({name: 'lime', baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true})(model),
  'openai, chat': ours.chat(model),
  'openai, responses': ours.responses(model),
};
const settings = {prompt: 'Hello', temperature: 0.8, maxRetries: 0};
const schema = jsonSchema(look.parameters);
const tools = (looked) => ({look: tool({description: look.description, inputSchema: schema, execute: (input) => {
  looked.push(input);
  return 'a hill';
}})});
// One call, then an answer.
const firstLooks = ({stepNumber}) => ({toolChoice: stepNumber === 0 ? 'required' : 'none'});

// All parts of a stream; an error among them fails the test.
async function parts(result) {
  const found = await all(result.fullStream);
  const wrong = found.find((part) => part.type === 'error');
  assert.equal(wrong, undefined, String(wrong?.error));
  return found;
}

for (const [name, languageModel] of Object.entries(models)) {
  const request = {...settings, model: languageModel};

  test(`${name}: text, whole and as a stream`, async () => {
    const whole = await generateText({...request, maxOutputTokens: 12, temperature: 0});
    assert.ok(['length', 'stop'].includes(whole.finishReason));
    assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
    const result = streamText({...request, maxOutputTokens: 12, temperature: 0});
    const kinds = (await parts(result)).map((part) => part.type);
    assert.equal(await result.text, whole.text);
    assert.equal((await result.usage).outputTokens, whole.usage.outputTokens);
    assert.ok(kinds.includes('finish'));
  });

  test(`${name}: a tool runs and its result goes back`, async () => {
    const looked = [];
    const result = await generateText({...request, maxOutputTokens: 300, tools: tools(looked), prepareStep: firstLooks, stopWhen: stepCountIs(2)});
    assert.ok(looked.length >= 1 && looked.every(isLook));
    assert.equal(result.steps.length, 2);
    assert.equal(result.steps[0].finishReason, 'tool-calls');
  });

  test(`${name}: the same as a stream`, async () => {
    const looked = [];
    const found = await parts(streamText({...request, maxOutputTokens: 300, tools: tools(looked), prepareStep: firstLooks, stopWhen: stepCountIs(2)}));
    assert.ok(looked.length >= 1 && looked.every(isLook));
    for (const kind of ['tool-input-start', 'tool-input-delta', 'tool-call', 'tool-result']) assert.ok(found.some((part) => part.type === kind), kind);
  });

  test(`${name}: an object by a schema, whole and as a stream`, async () => {
    const output = Output.object({schema, name: 'look'});
    const whole = await generateText({...request, maxOutputTokens: 300, output});
    assert.ok(isLook(whole.output), JSON.stringify(whole.output));
    const result = streamText({...request, maxOutputTokens: 300, output});
    const partial = await all(result.partialOutputStream);
    assert.ok(isLook(partial.at(-1)));
  });

  test(`${name}: an abort ends the stream`, async () => {
    const abort = new AbortController();
    const result = streamText({...request, maxOutputTokens: 1900, abortSignal: abort.signal, onError() {}});
    for await (const part of result.fullStream) {
      if (part.type === 'text-delta') abort.abort();
    }
    assert.ok((await generateText({...request, maxOutputTokens: 4})).usage.outputTokens > 0);
  });

  test(`${name}: an error is that of the server`, async () => {
    await assert.rejects(generateText({...request, prompt: 'a'.repeat(1e6)}), (error) => {
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /tokens/);
      return true;
    });
  });
}

// By default this provider refers to earlier items by their ids, and the server keeps none.
const own = (itemId) => ({providerOptions: {openai: {itemId}}});
const {prompt, ...unprompted} = settings;
const responses = {...unprompted, model: models['openai, responses'], maxOutputTokens: 12, tools: {look: tool({inputSchema: schema})}, toolChoice: 'none'};
const keepsNothing = {providerOptions: {openai: {store: false}}};
const history = [
  {role: 'user', content: prompt},
  {role: 'assistant', content: [{type: 'text', text: 'I look.', ...own('msg_1')},
    {type: 'tool-call', toolCallId: 'call_1', toolName: 'look', input: {}, ...own('fc_1')}]},
  {role: 'tool', content: [{type: 'tool-result', toolCallId: 'call_1', toolName: 'look', output: {type: 'text', value: 'a hill'}}]},
];

test('openai, responses: later turns send their items where store is false', async () => {
  const first = await generateText({...responses, ...keepsNothing, messages: [{role: 'user', content: prompt}]});
  const messages = [{role: 'user', content: prompt}, ...first.response.messages, {role: 'user', content: 'And then?'}];
  const second = await generateText({...responses, ...keepsNothing, messages});
  assert.ok(second.usage.inputTokens > first.usage.inputTokens);
  const third = await generateText({...responses, ...keepsNothing, messages: history});
  assert.ok(third.usage.inputTokens > first.usage.inputTokens);
});

test('openai, responses: the error of a reference names store', async () => {
  await assert.rejects(generateText({...responses, messages: history}), (error) => {
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /providerOptions\.openai\.store/);
    return true;
  });
});

test('openai, responses: a reference to reasoning is skipped', async () => {
  const thought = {role: 'assistant', content: [{type: 'reasoning', text: 'Hm.', ...own('rs_1')}, {type: 'text', text: 'A hill.'}]};
  const messages = [{role: 'user', content: prompt}, thought, {role: 'user', content: 'And then?'}];
  assert.ok((await generateText({...responses, messages})).usage.outputTokens > 0);
});
