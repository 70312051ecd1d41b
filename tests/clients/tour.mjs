// What the tours of the Node clients have in common: where the server is, and steps one after the other.

export const URL = process.env.KVAS_URL;
export const KEY = process.env.KVAS_KEY;

export const QUESTION = [{ role: 'user', content: 'Tell me of a fox.' }];
export const PARAMETERS = {
  type: 'object',
  properties: { zone: { enum: ['UTC', 'CET'] } },
  required: ['zone'],
  additionalProperties: false,
};
// The small model likes white space between the parts of a JSON text: what fits one of these takes up to 400 tokens.
export const SCHEMA = {
  type: 'object',
  properties: { animal: { enum: ['fox', 'hen'] }, legs: { enum: [2, 4] } },
  required: ['animal', 'legs'],
  additionalProperties: false,
};

/** Whether a text is JSON of SCHEMA. */
export function fits(text) {
  const { animal, legs, ...others } = JSON.parse(text);
  return ['fox', 'hen'].includes(animal) && [2, 4].includes(legs) && Object.keys(others).length === 0;
}

/** Waits until no slot is busy, as it has to be soon after a client has left. */
export async function freeAgain() {
  for (let tries = 0; tries < 500; tries++) {
    const reply = await fetch(`${URL}/slots`, { headers: { Authorization: `Bearer ${KEY}` } });
    if (!(await reply.json()).some((slot) => slot.is_processing)) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error('a slot is still busy');
}

/** Every step; what fails is said, and the exit code is 1. */
export async function run(client, steps) {
  for (const step of steps) {
    try {
      await step();
      console.log(`ok      ${client}: ${step.name}`);
    } catch (error) {
      process.exitCode = 1;
      console.log(`FAILED  ${client}: ${step.name}\n${error.stack}`);
    }
  }
}
