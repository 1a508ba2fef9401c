// The package @langchain/openai.
import assert from 'node:assert/strict';
import test from 'node:test';
import {HumanMessage, ToolMessage} from '@langchain/core/messages';
import {ChatOpenAI, OpenAI} from '@langchain/openai';
import {all, apiKey, baseURL, isLook, look, model} from './server.mjs';

const settings = {model, apiKey, configuration: {baseURL}, temperature: 0, maxTokens: 12, maxRetries: 0};

for (const useResponsesApi of [false, true]) {
  const name = useResponsesApi ? 'responses' : 'chat';
  const chat = (more) => new ChatOpenAI({...settings, useResponsesApi, ...more});

  test(`${name}: an answer, whole and as a stream`, async () => {
    const whole = await chat().invoke('Hello');
    const streamed = (await all(await chat().stream('Hello'))).reduce((sum, chunk) => sum.concat(chunk));
    assert.equal(streamed.text, whole.text);
    assert.ok(whole.usage_metadata.output_tokens > 0);
  });

  test(`${name}: a tool is called, and its result goes back`, async () => {
    const tools = [{type: 'function', function: look}];
    const caller = chat({maxTokens: 300}).bindTools(tools, {tool_choice: 'look'});  // with responses it drops 'required'
    const question = new HumanMessage('Hello');
    const call = await caller.invoke([question]);
    assert.ok(call.tool_calls.length >= 1 && call.tool_calls.every(({args}) => isLook(args)));
    const results = call.tool_calls.map(({id}) => new ToolMessage({content: 'a hill', tool_call_id: id}));
    const answer = await chat().bindTools(tools, {tool_choice: 'none'}).invoke([question, call, ...results]);
    assert.ok(answer.usage_metadata.input_tokens > call.usage_metadata.input_tokens);
  });

  test(`${name}: an answer by a schema`, async () => {
    const structured = chat({maxTokens: 300}).withStructuredOutput(look.parameters, {name: 'look', method: 'jsonSchema', strict: true});
    assert.ok(isLook(await structured.invoke('Hello')));
  });
}

test('several questions at once', async () => {
  const answers = await new ChatOpenAI(settings).batch(['One', 'Two', 'Three', 'Four']);
  assert.equal(answers.length, 4);
});

test('completions', async () => {
  const text = await new OpenAI(settings).invoke('Once');
  assert.equal(typeof text, 'string');
});
