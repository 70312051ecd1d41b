// What needs no browser: the bundle is what the sources build, event streams, blocks, requests.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { buildSync } from "esbuild";
import { MARKDOWN } from "./mock.mjs";

const WEB = fileURLToPath(new URL("..", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "kvas-page-"));
after(() => rmSync(folder, { recursive: true }));

/** A module of the page, to be called from here. */
async function load(name) {
  const outfile = join(folder, `${name}.mjs`);
  buildSync({ entryPoints: [join(WEB, "src", `${name}.ts`)], bundle: true, format: "esm", outfile });
  return import(pathToFileURL(outfile));
}

test("dist is what the sources build", () => {
  execFileSync(join(WEB, "build"), [join(folder, "dist")]);
  const names = readdirSync(join(WEB, "dist")).sort();
  assert.deepEqual(names, readdirSync(join(folder, "dist")).sort());
  for (const name of names) {
    assert.equal(readFileSync(join(WEB, "dist", name), "utf8"), readFileSync(join(folder, "dist", name), "utf8"), `${name} is stale: run web/build`);
  }
});

test("events do not depend on how their text is cut", async () => {
  const { EventReader } = await load("events");
  const text = ": note\r\n\r\ndata: {\"a\":1}\r\n\r\ndata:two\rdata: lines\n\ndata: three\r\ndata: more\r\n\r\nevent: x\nid: 3\n\ndata\n\ndata: last";
  const wanted = ["{\"a\":1}", "two\nlines", "three\nmore", "last"];
  for (let first = 0; first <= text.length; first += 1) {
    for (let second = first; second <= text.length; second += 1) {
      const reader = new EventReader();
      const pieces = [text.slice(0, first), text.slice(first, second), text.slice(second)];
      const found = [...pieces.flatMap((piece) => reader.push(piece)), ...reader.finish()];
      assert.deepEqual(found, wanted, `cut at ${first} and ${second}`);
    }
  }
});

test("blocks", async () => {
  const { blocks } = await load("blocks");
  const strip = (found) => JSON.parse(JSON.stringify(found, (key, value) => (key === "source" ? undefined : value)));
  const paragraph = (text) => ({ kind: "paragraph", text });
  const cases = [
    ["", []],
    ["one\ntwo\n\nthree", [paragraph("one\ntwo"), paragraph("three")]],
    ["# a #\n####### b", [{ kind: "heading", level: 1, text: "a" }, paragraph("####### b")]],
    ["```js\nif (a) {\n\n  b\n", [{ kind: "code", language: "js", text: "if (a) {\n\n  b\n" }]],
    ["````\n```\n````\nx", [{ kind: "code", language: "", text: "```" }, paragraph("x")]],
    ["a\n***\n> b\n> c", [paragraph("a"), { kind: "rule" }, { kind: "quote", blocks: [paragraph("b\nc")] }]],
    ["- a\n- b\n  - c\n\n  d\n\nend", [
      { kind: "list", start: null, items: [[paragraph("a")], [paragraph("b"), { kind: "list", start: null, items: [[paragraph("c")]] }, paragraph("d")]] },
      paragraph("end"),
    ]],
    ["3. a\nlazy\n4. b\n\n- c", [
      { kind: "list", start: 3, items: [[paragraph("a\nlazy")], [paragraph("b")]] },
      { kind: "list", start: null, items: [[paragraph("c")]] },
    ]],
    ["1. a\n  - b\n\n2. c", [
      { kind: "list", start: 1, items: [[paragraph("a"), { kind: "list", start: null, items: [[paragraph("b")]] }], [paragraph("c")]] },
    ]],
    ["a | b\n--|:-:\n1 | `x|y` \\| z\nover", [
      { kind: "table", align: ["", "center"], head: ["a", "b"], rows: [["1", "`x|y` | z"]] },
      paragraph("over"),
    ]],
    ["a | b\n---", [paragraph("a | b"), { kind: "rule" }]],
    ["So:\n\\[\na &= b \\\\\n- c\n\\].\nand", [paragraph("So:"), { kind: "math", text: "\\[\na &= b \\\\\n- c\n\\]." }, paragraph("and")]],
    ["$$x_1$$\n$$ is\n\nno end", [{ kind: "math", text: "$$x_1$$" }, paragraph("$$ is"), paragraph("no end")]],
    ["$$x$$ and $$\n# y", [paragraph("$$x$$ and $$"), { kind: "heading", level: 1, text: "y" }]],
  ];
  for (const [text, wanted] of cases) assert.deepEqual(strip(blocks(text)), wanted, text);
});

test("no text is lost or slow to read, whatever it is", async () => {
  const { blocks } = await load("blocks");
  const size = 60_000;
  const texts = [" ", "\t ", ">", "- ", "  - ", "1. ", "|", "a|b\n-|-\n", "\n", "```", "# ", "#\u0020\u0020", "* ", "- a\n\n\n", "- a\n  ", "_ ", "$$", "$$\n", "\\[\n", "a\n$$ "];
  for (const text of texts) {
    const began = performance.now();
    blocks(text.repeat(size / text.length));
    // Below what may be the head of a table, and ended by what is none.
    blocks(`|\n-${text.repeat(size / text.length)}x`);
    blocks(`${text.repeat(size / text.length)}a\n\nb`);
    assert.ok(performance.now() - began < 4000, `${JSON.stringify(text)} took ${performance.now() - began} ms`);
  }
  for (let end = 0; end <= MARKDOWN.length; end += 1) {
    const words = (value) => JSON.stringify(value).match(/[A-Za-z0-9]{2,}/g) ?? [];
    const sources = blocks(MARKDOWN.slice(0, end)).map(({ source }) => source).join("\n");
    assert.deepEqual(words(sources), words(MARKDOWN.slice(0, end)), `cut at ${end}`);
  }
});

test("arguments of a call are laid out and stay what they are", async () => {
  const { indented } = await load("transcript");
  const wanted = '{\n  "id": 12345678901234567890,\n  "x": 1.0,\n  "none": [],\n  "all": [\n    "a, {\\"b\\": 1}",\n    {\n      "c": null\n    }\n  ]\n}';
  assert.equal(indented('{"id":12345678901234567890, "x": 1.0,"none":[ ],"all":["a, {\\"b\\": 1}",{"c":null}]}'), wanted);
  for (const text of ["", '{"a": ', "no JSON", "{}", "[]", '"a"', "7"]) assert.equal(indented(text), text);
});

test("a request holds what was said and what was set", async () => {
  globalThis.addEventListener ??= () => undefined;
  const { apply, body, history } = await load("chat");
  const message = (role, content, more = {}) => ({ id: content, role, content, reasoning: "", calls: [], stats: null, note: null, error: null, ...more });
  const conversation = {
    system: "Be brief.",
    messages: [
      message("user", "one"),
      message("assistant", "", { error: "no" }),
      message("user", "two"),
      message("assistant", "yes", { reasoning: "hm" }),
      message("user", "three"),
    ],
  };
  assert.deepEqual(history(conversation), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "one\n\ntwo" },
    { role: "assistant", content: "yes", reasoning_content: "hm" },
    { role: "user", content: "three" },
  ]);
  const unset = { model: "", temperature: null, top_p: null, top_k: null, min_p: null, max_tokens: null, seed: null, reasoning: "", key: "k" };
  assert.deepEqual(Object.keys(body(conversation, unset)), ["messages", "stream", "stream_options"]);
  const set = body(conversation, { ...unset, model: "m", temperature: 0, seed: 7, reasoning: "off" });
  assert.deepEqual({ ...set, messages: [] }, {
    model: "m", messages: [], stream: true, stream_options: { include_usage: true }, temperature: 0, seed: 7,
    chat_template_kwargs: { enable_thinking: false },
  });

  const answer = message("assistant", "");
  apply(answer, { choices: [{ delta: { content: null, tool_calls: [{ index: 9, id: "a", function: { name: "f", arguments: "{" } }] } }] });
  apply(answer, { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: "}" } }] }, finish_reason: "length" }], usage: null });
  apply(answer, { choices: [], usage: { prompt_tokens: 10, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 8 } } });
  assert.deepEqual(answer.calls, [{ id: "a", name: "f", arguments: "{}" }]);
  assert.deepEqual(answer.stats, { rate: null, written: 3, read: 2, cached: 8, miss: null });
  assert.match(answer.note, /cut off/);
});

test("what two tabs know of a conversation is put together", async () => {
  globalThis.addEventListener ??= () => undefined;
  const { merge } = await load("store");
  const message = (id, content = id, role = "user") => ({ id, role, content });
  const [q, a, half] = [message("q"), message("a", "a whole answer", "assistant"), message("a", "a wh", "assistant")];
  const ids = (messages) => messages.map(({ id }) => id).join("");
  // Nothing is written here: the other tab says what there is, and the longer of two is the newer.
  assert.deepEqual(merge([q, half], [{ ...q }, a], null), [q, a]);
  assert.equal(merge([q, half], [{ ...q }, a], null)[0], q, "what is the same stays the same object");
  assert.equal(merge([q, a], [q, half], null)[1], a);
  assert.deepEqual(merge([q, a], [q], null), [q], "dropped there");
  // An answer is written here: it stays, and what was asked there is added.
  const [r, b] = [message("r"), message("b", "b", "assistant")];
  assert.equal(ids(merge([q, half], [q, a, r, b], half)), "qarb");
  assert.equal(merge([q, half], [q, a, r, b], half)[1], half);
  assert.deepEqual(merge([q, half, r, b], [q, a], b), [q, a, r, b]);
  assert.equal(ids(merge([q, a], [q, r, b], a)), "qarb");
  assert.equal(ids(merge([q, a], [q, b], a)), "qa", "answered again there");
});

test("answers of two tabs to one message are both kept", async () => {
  globalThis.addEventListener ??= () => undefined;
  const { Store } = await load("store");
  const message = (id, content, role = "assistant") => ({ id, role, content, reasoning: "", calls: [], stats: null, note: null, error: null });
  const before = { id: "c", title: "A fox", named: false, system: "", updated: 1, messages: [message("q", "Who?", "user")] };
  // Each tab hears what the other one has written.
  const tabs = [new Store(), new Store()];
  const writing = [null, null];
  const save = (at, answer) => {
    const conversation = { ...structuredClone(before), messages: [...structuredClone(before.messages), answer] };
    tabs[at].save(conversation);
    tabs[1 - at].adopt("c", structuredClone(conversation), writing[1 - at]);
  };
  const shown = (at) => Object.fromEntries(tabs[at].list().map(({ id, messages }) => [id, messages.at(-1).content]));
  save(0, (writing[0] = message("x", "")));
  save(1, (writing[1] = message("y", "")));
  // The first one to end is kept beside what the other tab is writing.
  writing[0] = null;
  save(0, message("x", "A fox."));
  assert.equal(shown(1)["c-x"], "A fox.");
  writing[1] = null;
  save(1, message("y", "A hen."));
  assert.deepEqual(shown(1), { c: "A hen.", "c-x": "A fox." });
  assert.deepEqual(shown(0), { c: "A hen." }, "what stands in the conversation needs no copy");
  assert.equal(tabs[1].get("c-x").title, "A fox (other tab)");
  // Answered again there, while nothing is written here: that is meant.
  save(0, message("z", "A cow."));
  assert.deepEqual(shown(1), { c: "A cow.", "c-x": "A fox." });
});

test("a square shows who holds most of it, and what is held before what is free", async () => {
  globalThis.addEventListener ??= () => undefined;
  const { cellsOf } = await load("memory");
  assert.deepEqual(cellsOf([[0, 2], [-1, 1], [3, 1]], 1).map(({ owner }) => owner), [0, 0, -1, 3]);
  const cells = cellsOf([[-1, 9], [5, 1], [2, 3], [-2, 2], [-1, 5], [-3, 1]], 5);
  assert.deepEqual(cells, [{ first: 0, owner: -1 }, { first: 5, owner: 5 }, { first: 10, owner: 2 }, { first: 15, owner: -1 }, { first: 20, owner: -3 }]);
  assert.deepEqual(cellsOf([], 4), []);
});
