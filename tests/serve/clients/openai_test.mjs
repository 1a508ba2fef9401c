// The package openai: every method that a local server is asked for, its streams, its helpers, its errors.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';
import {all, baseURL, hello, isLook, look, model, openai, short} from './server.mjs';

const tools = [{type: 'function', function: look}];

test('models are listed and found', async () => {
  const listed = await all(await openai.models.list());
  assert.ok(listed.some(({id}) => id === model));
  assert.equal((await openai.models.retrieve(model)).id, model);
});

test('a chat, whole and as a stream', async () => {
  const request = {...short, messages: hello};
  const whole = await openai.chat.completions.create(request);
  const chunks = await all(await openai.chat.completions.create({...request, stream: true, stream_options: {include_usage: true}}));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), whole.choices[0].message.content);
  assert.deepEqual(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  const helped = await openai.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(helped.choices[0].message.content, whole.choices[0].message.content);
});

test('log-probabilities of a stream are put together', async () => {
  const answer = await openai.chat.completions.stream({...short, messages: hello, logprobs: true, top_logprobs: 3, logit_bias: {257: -100}}).finalChatCompletion();
  assert.equal(answer.choices[0].logprobs.content.length, short.max_tokens);
});

test('several choices of a stream are put together', async () => {
  const request = {...short, messages: hello, n: 3};
  const whole = await openai.chat.completions.create(request);
  const streamed = await openai.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(streamed.choices.map((choice) => choice.message.content), whole.choices.map((choice) => choice.message.content));
});

test('a forced call, whole and as a stream', async () => {
  const request = {...short, ignore_eos: false, max_tokens: 400, messages: hello, tools};
  for (const tool_choice of ['required', {type: 'function', function: {name: 'look'}}]) {
    const whole = await openai.chat.completions.create({...request, tool_choice, parallel_tool_calls: false});
    assert.equal(whole.choices[0].finish_reason, 'tool_calls');
    assert.ok(isLook(JSON.parse(whole.choices[0].message.tool_calls[0].function.arguments)));
    const streamed = await openai.chat.completions.stream({...request, tool_choice, parallel_tool_calls: false}).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.tool_calls.map((call) => call.function), whole.choices[0].message.tool_calls.map((call) => call.function));
  }
});

test('tools run, and their results go back', async () => {
  const looked = [];
  const runner = openai.chat.completions.runTools({
    ...short, ignore_eos: false, max_tokens: 300, messages: hello, parallel_tool_calls: false, tool_choice: {type: 'function', function: {name: 'look'}},
    tools: [{type: 'function', function: {...look, parse: JSON.parse, function: (input) => {
      looked.push(input);
      return 'a hill';
    }}}],
  }, {maxChatCompletions: 2});
  await runner.done();
  assert.ok(looked.length >= 1 && looked.every(isLook));
  assert.ok(runner.messages.some((message) => message.role === 'tool' && message.content === 'a hill'));
});

test('an answer by a schema is parsed', async () => {
  const answer = await openai.chat.completions.parse({...short, ignore_eos: false, max_tokens: 300, messages: hello,
    response_format: {type: 'json_schema', json_schema: {name: 'look', strict: true, schema: look.parameters}}});
  assert.ok(isLook(JSON.parse(answer.choices[0].message.content)));
});

test('completions, whole, as a stream, and of several prompts', async () => {
  const request = {...short, prompt: ['Once', 'Twice']};
  const whole = await openai.completions.create(request);
  assert.equal(whole.choices.length, 2);
  const chunks = await all(await openai.completions.create({...request, stream: true}));
  for (const index of [0, 1]) {
    assert.equal(chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index).map((choice) => choice.text).join(''), whole.choices[index].text);
  }
});

test('responses, whole and as a stream', async () => {
  const {max_tokens: max_output_tokens, ...rest} = short;
  const request = {...rest, max_output_tokens, input: 'Hello', instructions: 'Be short.'};
  const whole = await openai.responses.create(request);
  assert.equal(whole.status, 'incomplete');
  const stream = openai.responses.stream(request);
  const kinds = (await all(stream)).map((event) => event.type);
  assert.equal(kinds[0], 'response.created');
  assert.equal((await stream.finalResponse()).output_text, whole.output_text);
});

test('a call of responses and its result', async () => {
  const request = {model, temperature: 0.8, seed: 5, max_output_tokens: 400, input: hello, tools: [{type: 'function', strict: true, ...look}]};
  const stream = openai.responses.stream({...request, tool_choice: 'required'});
  const [call] = (await stream.finalResponse()).output;
  assert.equal(call.type, 'function_call');
  assert.ok(isLook(JSON.parse(call.arguments)));
  const {type, call_id, name, arguments: text} = call;
  const input = [...hello, {type, call_id, name, arguments: text}, {type: 'function_call_output', call_id, output: 'a hill'}];
  const answer = await openai.responses.create({...request, input, tool_choice: 'none', max_output_tokens: 8});
  assert.equal(answer.output[0].type, 'message');
});

test('errors have the class, code and param of their kind', async () => {
  const cases = [
    [() => openai.chat.completions.create({...short, messages: []}), OpenAI.BadRequestError, 'invalid_value', 'messages'],
    [() => openai.chat.completions.create({...short, messages: hello, temperature: 9}), OpenAI.BadRequestError, 'invalid_value', 'temperature'],
    [() => openai.chat.completions.create({...short, messages: hello, model: 'nobody'}), OpenAI.NotFoundError, 'model_not_found', 'model'],
    [() => openai.chat.completions.create({...short, messages: [{role: 'user', content: 'a'.repeat(1e6)}]}), OpenAI.BadRequestError, 'context_length_exceeded', 'messages'],
    [() => openai.embeddings.create({model, input: 'a'}), OpenAI.NotFoundError, 'unknown_url', null],
  ];
  if (process.env.LIME_KEY) {
    cases.push([() => new OpenAI({baseURL, apiKey: 'wrong', maxRetries: 0}).models.list(), OpenAI.AuthenticationError, 'invalid_api_key', null]);
  }
  for (const [request, kind, code, param] of cases) {
    await assert.rejects(request, (error) => {
      assert.ok(error instanceof kind, String(error));
      assert.equal(error.code, code);
      assert.equal(error.param ?? null, param);
      assert.ok(error.requestID);
      return true;
    });
  }
});

test('a stream that is aborted ends, and the server goes on', async () => {
  const stream = await openai.chat.completions.create({...short, messages: hello, max_tokens: 1900, stream: true});
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) break;
  }
  assert.ok(stream.controller.signal.aborted);
  const answer = await openai.chat.completions.create({...short, messages: hello});
  assert.equal(answer.choices[0].finish_reason, 'length');
});
