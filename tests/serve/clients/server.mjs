// The server that clients_test.py has started, for the clients of npm.
import OpenAI from 'openai';

export const url = process.env.LIME_URL;
export const baseURL = `${url}/v1`;
export const apiKey = process.env.LIME_KEY || 'none';
export const model = process.env.LIME_MODEL || 'tiny';

export const openai = new OpenAI({baseURL, apiKey, maxRetries: 0});

// A random model may write its end token at any time.
export const short = {model, temperature: 0.8, seed: 5, max_tokens: 12, ignore_eos: true};
export const hello = [{role: 'user', content: 'Hello'}];

export const look = {
  name: 'look',
  description: 'Looks in a direction.',
  parameters: {
    type: 'object',
    properties: {at: {enum: ['north', 'south']}, steps: {type: 'integer', minimum: 1, maximum: 9}},
    required: ['at', 'steps'],
    additionalProperties: false,
  },
};

export function isLook(input) {
  return ['north', 'south'].includes(input?.at) && Number.isInteger(input.steps) && input.steps >= 1 && input.steps <= 9 && Object.keys(input).length === 2;
}

export async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}
