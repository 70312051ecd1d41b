// A tour of the server with OpenAI's Node client.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { fits, freeAgain, KEY, PARAMETERS, QUESTION, run, SCHEMA, URL } from './tour.mjs';

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, maxRetries: 0 });
const TOOL = { type: 'function', function: { name: 'clock', parameters: PARAMETERS } };
const ask = (more) => ({ model: 'tiny', messages: QUESTION, max_tokens: 16, temperature: 0, ...more });
const create = (more, options) => client.chat.completions.create(ask(more), options);

async function chat_and_stream() {
  const whole = await create();
  let said = '';
  for await (const chunk of await create({ stream: true })) said += chunk.choices[0]?.delta.content ?? '';
  assert.equal(said, whole.choices[0].message.content);
  assert.ok(said.length > 16 && whole.usage.completion_tokens === 16);
}

async function responses() {
  const ask = { model: 'tiny', max_output_tokens: 12, temperature: 0 };
  const first = await client.responses.create({ input: 'Tell me of a fox.', ...ask });
  let said = '';
  let last;
  for await (const event of await client.responses.create({ input: 'Tell me of a fox.', stream: true, ...ask })) {
    if (event.type === 'response.output_text.delta') said += event.delta;
    last = event;
  }
  assert.equal(said, first.output_text);
  assert.equal(last.type, 'response.incomplete');
  const second = await client.responses.create({ input: 'And then?', previous_response_id: first.id, ...ask });
  await client.responses.delete(second.id);
  await assert.rejects(client.responses.retrieve(second.id), OpenAI.NotFoundError);
}

async function tools() {
  const forced = { tools: [TOOL], tool_choice: 'required', parallel_tool_calls: false, max_tokens: 400 };
  const { message } = (await create(forced)).choices[0];
  const [call] = message.tool_calls;
  assert.ok(call.function.name === 'clock' && ['UTC', 'CET'].includes(JSON.parse(call.function.arguments).zone));
  const streamed = await client.chat.completions.stream(ask(forced)).finalMessage();
  assert.equal(streamed.tool_calls[0].function.arguments, call.function.arguments);
  const told = [...QUESTION, message, { role: 'tool', tool_call_id: call.id, content: 'noon' }];
  assert.equal((await create({ messages: told, tools: [TOOL] })).choices[0].message.role, 'assistant');
}

async function schema() {
  const response_format = { type: 'json_schema', json_schema: { name: 'animal', schema: SCHEMA, strict: true } };
  assert.ok(fits((await create({ response_format, max_tokens: 400 })).choices[0].message.content));
}

async function embeddings() {
  const { data } = await client.embeddings.create({ model: 'tiny', input: ['a fox', 'a hen'] });
  const length = data[0].embedding.reduce((sum, x) => sum + x * x, 0);
  assert.ok(data.length === 2 && Math.abs(length - 1) < 1e-4);
}

async function cancel() {
  const stream = await create({ stream: true, max_tokens: 800, ignore_eos: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 3) break;
  stream.controller.abort();
  await freeAgain();
}

async function models() {
  assert.deepEqual((await client.models.list()).data.map((model) => model.id), ['tiny']);
}

async function errors() {
  await assert.rejects(create({ temperature: -1 }), (error) => {
    return error instanceof OpenAI.BadRequestError && error.message.includes('temperature');
  });
  await assert.rejects(client.models.retrieve('none'), OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
}

await run('openai, Node', [chat_and_stream, responses, tools, schema, embeddings, cancel, models, errors]);
