// A server with the forms of `kvas serve` and no model: a word in the question decides what happens.
// `node web/test/mock.mjs [PORT]` serves the page with it, to look at.

import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { basename, dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const DIST = join(dirname(fileURLToPath(import.meta.url)), "..", "dist");
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8" };

export const HOSTILE = [
  "<img src=x onerror=\"window.hacked = 1\"> <script>window.hacked = 2</script>",
  "",
  "[click](javascript:window.hacked=3) ![picture](https://elsewhere.example/a.png) <https://elsewhere.example/>",
  "",
  "| <b>a</b> | b |",
  "|---|---|",
  "| <svg onload=window.hacked=4> | `<i>` |",
  "",
  "```<html onclick=1>",
  "</code></pre><script>window.hacked = 5</script>",
  "```",
].join("\n");

export const MARKDOWN = `# The replay ring

A *checkpoint* and a **ring** of what was written since; see [the notes](https://example.org/notes_(2)) or
\`Backend::rewind\`. Not snake_case_words, not 2 * 3 * 4.

## Steps

1. Read the checkpoint
   - once per step
   - never per token
2. Replay the ring:

   \`\`\`rust
   for entry in ring.entries() {
       state.apply(entry); // at most 16
   }
   \`\`\`
3. Done

| nature | grows | bytes |
|:---|:---:|---:|
| pages | per token | 12 288 |
| slots | never | 27 144 192 |

> What is in the ring can be taken back.

---

### Last

~~Nothing~~ A \\*star\\* and <b>no bold</b>.
`;

export const MATHS = String.raw`The root of \(x_{1,2} * \{a\}\) is $a_1 * b_1$ and costs $5 or $6, *that is* 1*2*3:
\[
  a &= b \\
  - c & * d
\]`;

export const ENTITIES = "a &lt; b &amp;&#x26; c&nbsp;&#8211; &bogus; &constructor; &#0; `&lt;` &lt;b&gt;no&lt;/b&gt;\n\n| one |\n|---|\n| two<br>three<BR />four |";

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** What to do for a question: pieces of deltas, the pause between them, and how it ends. */
function script(question, asked) {
  const words = (text) => (text.match(/\S+\s*|\s+/g) ?? []).map((content) => ({ content }));
  const rule = Object.entries({
    slow: () => ({ deltas: Array.from({ length: 400 }, (_, at) => ({ content: `word${at} ` })), every: 25 }),
    markdown: () => ({ deltas: words(MARKDOWN), every: 1 }),
    maths: () => ({ deltas: words(MATHS), every: 1 }),
    entities: () => ({ deltas: words(ENTITIES), every: 1 }),
    hostile: () => ({ deltas: words(HOSTILE), every: 1 }),
    reason: () => ({
      deltas: [
        ...["Let me ", "think ", "<b>hard</b>."].map((reasoning_content) => ({ reasoning_content })),
        { content: "Done thinking." },
      ],
      every: 40,
    }),
    tool: () => ({
      deltas: [
        { content: "I look it up. " },
        { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: "" } }] },
        ...["{\"city\":", " \"Bergen\",", " \"days\": 3}"].map((text) => ({
          tool_calls: [{ index: 0, function: { arguments: text } }],
        })),
        { tool_calls: [{ index: 1, id: "call_2", type: "function", function: { name: "time", arguments: "{}" } }] },
      ],
      finish: "tool_calls",
    }),
    length: () => ({ deltas: words("This goes on and"), finish: "length" }),
    broken: () => ({ deltas: words("Half an ans"), finish: "break" }),
    silent: () => ({ deltas: words("Half an ans"), finish: "close" }),
    midway: () => ({ deltas: words("So far so"), error: "the device ran out of memory" }),
    failing: () => (asked === 1 ? { status: 500, error: "the device failed:\nno more pages" } : { deltas: words("Now it works.") }),
    plain: () => (asked === 1 ? { status: 502, text: "<html>bad gateway</html>" } : { deltas: words("Now it works.") }),
    busy: () => (asked === 1 ? { status: 503, error: "all slots are taken", retry: 2 } : { deltas: words("There was a slot.") }),
    full: () => ({ status: 503, error: "all slots are taken", retry: 30 }),
    refused: () => ({ status: 503, error: "the server is going down" }),
  }).find(([word]) => question.includes(word));
  return rule ? rule[1]() : { deltas: words(`You said: ${question} – grüße, 你好, 🌊!`), every: 5 };
}

export async function start({ port = 0, key = null } = {}) {
  // `ready` may be a function that says when the next delta may go, given how many went before.
  const mock = { requests: [], memoryPolls: 0, memory: true, closed: 0, active: 0, read: 0, ready: null };

  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://mock").pathname;
    if (path.startsWith("/v1/") || path === "/memory") return api(request, response, path);
    const file = join(DIST, path === "/" ? "index.html" : basename(path));
    if (!existsSync(file)) return response.writeHead(404).end("not found");
    response.writeHead(200, { "Content-Type": TYPES[file.slice(file.lastIndexOf("."))] });
    createReadStream(file).pipe(response);
  });

  function fail(response, status, message, headers = {}) {
    response.writeHead(status, { "Content-Type": "application/json", ...headers });
    response.end(JSON.stringify({ error: { message, type: "server_error", code: status } }));
  }

  async function api(request, response, path) {
    if (key !== null && request.headers.authorization !== `Bearer ${key}`) return fail(response, 401, "the API key is missing or wrong");
    if (path === "/v1/models") {
      response.writeHead(200, { "Content-Type": "application/json" });
      return response.end(JSON.stringify({ object: "list", data: [{ id: "hybrid-14m" }, { id: "hybrid-8b" }] }));
    }
    if (path === "/memory") {
      mock.memoryPolls += 1;
      if (!mock.memory) return fail(response, 404, "no such path");
      response.writeHead(200, { "Content-Type": "application/json" });
      return response.end(JSON.stringify(report(mock)));
    }
    let text = "";
    for await (const piece of request) text += piece;
    const body = JSON.parse(text);
    mock.requests.push({ body, headers: request.headers });
    const question = body.messages.at(-1).content;
    const same = ({ body: other }) => other.messages.at(-1).content === question;
    const what = script(question, mock.requests.filter(same).length);
    if (what.status && what.text) return response.writeHead(what.status).end(what.text);
    if (what.status) return fail(response, what.status, what.error, what.retry ? { "Retry-After": String(what.retry) } : {});
    return answer(response, body, what);
  }

  async function answer(response, body, what) {
    let gone = false;
    let left = Buffer.alloc(0);
    response.on("close", () => {
      gone = true;
      if (!response.writableFinished) mock.closed += 1;
    });
    // Bytes are cut where no character or line ends, to be put together by the reader.
    const write = (text) => {
      const all = Buffer.concat([left, Buffer.from(text)]);
      const cut = Math.max(all.length - 7, 0);
      response.write(all.subarray(0, cut));
      left = all.subarray(cut);
    };
    const chunk = (rest) => write(`data: ${JSON.stringify({ id: "chatcmpl-1", object: "chat.completion.chunk", model: body.model, ...rest })}\r\n\r\n`);
    const choice = (delta, finish_reason = null) => chunk({ choices: [{ index: 0, delta, finish_reason }] });
    mock.active += 1;
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache" });
    write(": hello\r\n\r\n");
    choice({ role: "assistant", content: "" });
    for (const [at, delta] of what.deltas.entries()) {
      await (mock.ready?.(at) ?? pause(what.every ?? 5));
      if (gone) break;
      choice(delta);
      mock.read += 1;
    }
    mock.active -= 1;
    if (gone) return;
    if (what.finish === "break") {
      await pause(50);
      return response.destroy();
    }
    if (what.finish === "close") return response.end(left);
    if (what.error) write(`data: ${JSON.stringify({ error: { message: what.error } })}\r\n\r\n`);
    else {
      choice({}, what.finish ?? "stop");
      const written = what.deltas.length;
      const cached = body.messages.length > 1 ? 96 : 0;
      chunk({
        choices: [],
        usage: { prompt_tokens: 108, completion_tokens: written, total_tokens: 108 + written, prompt_tokens_details: { cached_tokens: cached } },
        timings: {
          prompt_n: 108 - cached,
          cache_n: cached,
          cache_miss_reason: cached > 0 ? "parts from what was read at token 96" : null,
          prompt_ms: 40,
          predicted_n: written,
          predicted_ms: written * 30,
          predicted_per_second: 33.3333,
        },
      });
      write("data: [DONE]\r\n\r\n");
    }
    response.end(left);
  }

  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  mock.url = `http://127.0.0.1:${server.address().port}/`;
  mock.close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return mock;
}

/** A memory report with every owner; the slot that is answering grows. */
function report(mock) {
  const busy = mock.active > 0;
  const grown = Math.min(Math.floor(mock.read / 16), 200);
  const map = [[-3, 24], [0, 61], [-2, 118], [0, 9], [1, 40], [-1, 12], [1, 33], [2, 7], [-2, 40], [0, grown], [-1, 680 - grown]];
  const free = map.filter(([owner]) => owner === -1).reduce((sum, [, run]) => sum + run, 0);
  return {
    pages: { total: 1024, free, page_size: 16, page_bytes: 65536, map },
    slots: [
      { id: 0, state: busy ? "generating" : "idle", tokens: 1120 + mock.read, context: 4096, ring: { held: (mock.read % 8) + 1, capacity: 8 }, conversation: "The replay ring, explained" },
      { id: 1, state: "prompt", tokens: 1168, context: 4096, ring: { held: 0, capacity: 8 }, conversation: null },
      { id: 2, state: "waiting", tokens: 112, context: 4096, ring: { held: 5, capacity: 8 }, conversation: null },
      { id: 3, state: "idle", tokens: 0, context: 4096, ring: { held: 0, capacity: 0 }, conversation: null },
    ],
    snapshots: { held: 9, total: 24, bytes: 9 * 22_420_480, host: null, disk: { held: 3, bytes: 71_303_168 } },
    queue: busy ? 1 : 0,
    tokens_read: 18_432 + mock.read,
  };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const mock = await start({ port: Number(process.argv[2] ?? 8081) });
  console.log(mock.url);
}
