// Answers that are held to twenty schemas, which ajv checks, whatever the model would say and however few tokens there are.
import assert from 'node:assert/strict';
import test from 'node:test';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import {hello, openai, short} from './server.mjs';

const object = (properties, more = {}) => ({type: 'object', properties, required: Object.keys(properties), additionalProperties: false, ...more});
const word = {type: 'string', maxLength: 8};

const schemas = {
  boolean: {type: 'boolean'},
  'an integer of a range': {type: 'integer', minimum: -12, maximum: 345},
  'a number of an open range': {type: 'number', exclusiveMinimum: 0, exclusiveMaximum: 1},
  'a short string': {type: 'string', minLength: 2, maxLength: 5},
  'a pattern': {type: 'string', pattern: '^[A-Z]{2}-[0-9]{3,5}$'},
  'a date': {type: 'string', format: 'date'},
  'a moment': {type: 'string', format: 'date-time'},
  'a uuid': {type: 'string', format: 'uuid'},
  'one of values of all kinds': {enum: ['a', 1, null, true, {b: [2]}, 'ü€']},
  'a constant': {const: {deep: [1, {er: 'x'}]}},
  'a list of types': {type: ['string', 'null', 'integer'], maxLength: 4},
  'an array of bounded length': {type: 'array', items: {type: 'integer', minimum: 0, maximum: 99}, minItems: 2, maxItems: 4},
  'a tuple': {type: 'array', prefixItems: [word, {type: 'boolean'}], items: false, minItems: 2},
  'an object': object({name: word, age: {type: 'integer', minimum: 0, maximum: 150}}),
  'optional fields': {type: 'object', properties: {a: word, b: {type: 'boolean'}, c: {type: 'null'}}, required: ['b'], additionalProperties: false},
  'named and other fields': {type: 'object', properties: {a: {type: 'boolean'}}, required: ['a'], additionalProperties: {type: 'integer', minimum: 0, maximum: 9}},
  'one of several': {anyOf: [object({kind: {const: 'point'}, x: {type: 'integer'}, y: {type: 'integer'}}), object({kind: {const: 'word'}, text: word}), {type: 'null'}]},
  'exactly one by its kind': {oneOf: [object({kind: {const: 'a'}, n: {type: 'integer'}}), object({kind: {const: 'b'}, t: word})]},
  'all of several': {allOf: [object({a: word}, {additionalProperties: undefined}), {type: 'object', properties: {b: {type: 'boolean'}}, required: ['b']}]},
  'a tree': {$defs: {node: object({value: {type: 'integer', minimum: 0, maximum: 9}, children: {type: 'array', items: {$ref: '#/$defs/node'}, maxItems: 2}})}, $ref: '#/$defs/node'},
};
assert.equal(Object.keys(schemas).length, 20);

const ajv = addFormats(new Ajv({strict: false, allErrors: true}));
const plain = (schema) => JSON.parse(JSON.stringify(schema));

for (const [name, schema] of Object.entries(schemas)) {
  const sent = plain(schema);
  const valid = ajv.compile(sent);
  const request = {...short, ignore_eos: false, messages: hello, response_format: {type: 'json_schema', json_schema: {name: 'answer', schema: sent, strict: true}}};

  function check(text) {
    const value = JSON.parse(text);
    assert.ok(valid(value), `${text}: ${ajv.errorsText(valid.errors)}`);
  }

  test(`${name}: valid for each seed and temperature, and within few tokens`, async () => {
    for (const [seed, temperature, max_tokens] of [[1, 0, 400], [2, 0.8, 400], [3, 1.5, 400], [4, 2, 160], [5, 2, 96]]) {
      const answer = await openai.chat.completions.create({...request, seed, temperature, max_tokens});
      assert.equal(answer.choices[0].finish_reason, 'stop', `${answer.choices[0].message.content} (${max_tokens} tokens)`);
      check(answer.choices[0].message.content);
    }
  });

  test(`${name}: valid as a stream, of two choices and with penalties`, async () => {
    // The client's helper for streams parses what has come so far, and fails at a number that ends with its point.
    const said = ['', ''];
    const asked = {...request, n: 2, max_tokens: 400, temperature: 1, frequency_penalty: 1, presence_penalty: 1, stream: true};
    for await (const chunk of await openai.chat.completions.create(asked)) {
      for (const {index, delta} of chunk.choices) said[index] += delta.content ?? '';
    }
    for (const text of said) check(text);
  });
}

test('any object', async () => {
  const answer = await openai.chat.completions.create({...short, ignore_eos: false, messages: hello, max_tokens: 400, response_format: {type: 'json_object'}});
  assert.equal(answer.choices[0].finish_reason, 'stop');
  const value = JSON.parse(answer.choices[0].message.content);
  assert.ok(value !== null && typeof value === 'object' && !Array.isArray(value));
});
