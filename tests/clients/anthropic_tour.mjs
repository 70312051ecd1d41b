// A tour of the server with Anthropic's Node client.

import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { fits, freeAgain, KEY, PARAMETERS, QUESTION, run, SCHEMA, URL } from './tour.mjs';

const client = new Anthropic({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const TOOL = { name: 'clock', description: 'The time.', input_schema: PARAMETERS };
const ask = (more) => ({ model: 'tiny', messages: QUESTION, max_tokens: 16, temperature: 0, ...more });
const create = (more) => client.messages.create(ask(more));

async function chat_and_stream() {
  const whole = await create();
  const stream = client.messages.stream(ask());
  let said = '';
  stream.on('text', (text) => (said += text));
  const last = await stream.finalMessage();
  assert.equal(said, whole.content[0].text);
  assert.deepEqual([last.content[0].text, last.stop_reason], [said, 'max_tokens']);
}

async function count() {
  const { input_tokens } = await client.messages.countTokens({ model: 'tiny', messages: QUESTION });
  const { usage } = await create();
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
}

async function tools() {
  const tool_choice = { type: 'tool', name: 'clock', disable_parallel_tool_use: true };
  const forced = { tools: [TOOL], tool_choice, max_tokens: 400 };
  const message = await create(forced);
  const use = message.content.find((block) => block.type === 'tool_use');
  assert.ok(message.stop_reason === 'tool_use' && ['UTC', 'CET'].includes(use.input.zone));
  const streamed = await client.messages.stream(ask(forced)).finalMessage();
  assert.deepEqual(streamed.content.find((block) => block.type === 'tool_use').input, use.input);
}

async function schema() {
  const output_format = { type: 'json_schema', schema: SCHEMA };
  assert.ok(fits((await create({ output_format, max_tokens: 400 })).content[0].text));
}

async function cancel() {
  const stream = await create({ stream: true, max_tokens: 800, ignore_eos: true });
  let events = 0;
  for await (const _ of stream) if (++events === 4) break;
  stream.controller.abort();
  await freeAgain();
}

async function models() {
  assert.deepEqual((await client.models.list()).data.map((model) => model.id), ['tiny']);
}

async function errors() {
  await assert.rejects(create({ messages: [] }), Anthropic.BadRequestError);
  await assert.rejects(client.models.retrieve('none'), Anthropic.NotFoundError);
  const stranger = new Anthropic({ baseURL: URL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.messages.create(ask()), Anthropic.AuthenticationError);
}

await run('anthropic, Node', [chat_and_stream, count, tools, schema, cancel, models, errors]);
