// The page in a headless Chromium, against the mock.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { SHOTS, answers, ask, launch, questions, renew, send, settled, shot, text, titles, visit } from "./browser.mjs";
import { MARKDOWN, start } from "./mock.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let browser;
let mock;
let shared;

before(async () => {
  [browser, mock] = await Promise.all([launch(), start()]);
  shared = await visit(browser, mock.url);
});
after(async () => {
  await browser.close();
  await mock.close();
  console.log(`# screenshots: ${SHOTS}`);
});

/** A test on a fresh page, which must not have failed or looked elsewhere. With options it has a profile of its own. */
function onPage(name, act, { failures = false, ...options } = {}) {
  test(name, async () => {
    const own = Object.keys(options).length > 0;
    const page = own ? await visit(browser, mock.url, options) : shared;
    if (!own) await renew(page, mock.url);
    mock.requests.length = 0;
    mock.read = 0;
    mock.ready = null;
    try {
      await act(page);
      if (!failures) assert.deepEqual(page.wrong, []);
      const elsewhere = page.asked.filter((url) => !url.startsWith(mock.url) && !url.startsWith("data:"));
      assert.deepEqual(elsewhere, [], "requests that left the origin");
    } catch (error) {
      await shot(page, "failure").catch(() => undefined);
      throw error;
    } finally {
      if (own) await page.context().close();
    }
  });
}

onPage("an answer streams and ends with what it cost", async (page) => {
  await page.evaluate(() => {
    window.lengths = new Set();
    window.said = [];
    new MutationObserver(() => window.lengths.add(document.querySelector(".answer > .text")?.textContent.length))
      .observe(document.querySelector("#messages"), { subtree: true, childList: true, characterData: true });
    new MutationObserver(() => window.said.push(document.querySelector("#live").textContent))
      .observe(document.querySelector("#live"), { childList: true });
  });
  const wanted = "You said: hello there, how are you today? – grüße, 你好, 🌊!";
  const words = wanted.match(/\S+\s*/g);
  // A word goes when the page shows those before it, but for the last, whose line the mock has not ended yet.
  const shows = (text) => document.querySelector(".answer > .text")?.textContent.startsWith(text);
  mock.ready = (at) => {
    const before = words.slice(0, Math.max(at - 1, 0)).join("").trimEnd();
    return page.waitForFunction(shows, before, { timeout: 10000 }).catch(() => (mock.ready = null));
  };
  await ask(page, "hello there, how are you today?");
  mock.ready = null;
  assert.deepEqual(await answers(page), [wanted]);
  assert.ok((await page.evaluate(() => window.lengths.size)) >= words.length - 1, "the text grew word by word");
  assert.deepEqual(await page.evaluate(() => window.said), ["Asked.", `Answer: ${wanted}`], "said once, when done");
  assert.deepEqual(await text(page, ".answer .status"), ["33.3 tokens/s · 12 written · 108 read · 0 cached"]);
  assert.deepEqual(mock.requests[0].body, {
    model: "hybrid-14m",
    messages: [{ role: "user", content: "hello there, how are you today?" }],
    stream: true,
    stream_options: { include_usage: true },
  });
  await ask(page, "again");
  assert.match((await text(page, ".answer .status"))[1], /12 read · 96 cached · read again because: parts from what was read at token 96$/);
  assert.equal(mock.requests[1].body.messages.length, 3);
  assert.equal(await page.title(), "hello there, how are you today? – kvas");
});

onPage("stop keeps what was written, also over a reload", async (page) => {
  const closed = mock.closed;
  await send(page, "slow");
  await page.waitForFunction(() => document.querySelector(".answer > .text")?.textContent.includes("word5"));
  await page.press("#input", "Escape");
  await settled(page);
  const [answer] = await answers(page);
  assert.match(answer, /^word0 word1 .*word5/);
  assert.match((await text(page, ".answer .status"))[0], /^stopped/);
  for (let tries = 0; mock.closed === closed && tries < 100; tries += 1) await page.waitForTimeout(10);
  assert.equal(mock.closed, closed + 1, "the server was told");
  await page.reload();
  assert.deepEqual(await answers(page), [answer]);
});

onPage("a reload in the middle of an answer keeps what there was", async (page) => {
  await send(page, "slow");
  await page.waitForFunction(() => document.querySelector(".answer > .text")?.textContent.includes("word9"));
  await page.reload();
  assert.match((await answers(page))[0], /^word0 .*word9/);
  assert.deepEqual(await text(page, ".answer .status"), ["cut off when the page was left"]);
});

onPage("formulas stand as they were written", async (page) => {
  await ask(page, "maths");
  const formulas = [String.raw`\(x_{1,2} * \{a\}\)`, "$a_1 * b_1$", "\\[\n  a &= b \\\\\n  - c & * d\n\\]"];
  assert.deepEqual(await text(page, ".answer .math"), formulas);
  assert.deepEqual(await text(page, ".answer em"), ["that is", "2"]);
});

onPage("lines of cells are broken and entities are letters, which make no elements", async (page) => {
  await ask(page, "entities");
  assert.deepEqual(await text(page, ".answer > .text > p"), ["a < b && c\u00a0– &bogus; &constructor; &#0; &lt; <b>no</b>"]);
  const cell = await page.evaluate(() => document.querySelector(".answer td").innerHTML);
  assert.equal(cell, "two<br>three<br>four");
});

onPage("the text of a file that is dropped or pasted goes into the field", async (page) => {
  const give = (kind, name, content, words = "") =>
    page.evaluate(([kind, name, content, words]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(content)], name));
      if (words !== "") data.setData("text/plain", words);
      const options = { bubbles: true, cancelable: true };
      const event = kind === "drop" ? new DragEvent("drop", { ...options, dataTransfer: data }) : new ClipboardEvent("paste", { ...options, clipboardData: data });
      return !document.querySelector(kind === "drop" ? "#messages" : "#input").dispatchEvent(event);
    }, [kind, name, content, words]);
  await page.fill("#input", "What is this? ");
  assert.equal(await give("drop", "a.md", [..."```\nhé"].flatMap((letter) => [...Buffer.from(letter)])), true);
  await page.waitForFunction(() => document.querySelector("#input").value.includes("hé"));
  assert.equal(await page.inputValue("#input"), "What is this? a.md\n````\n```\nhé\n````\n");
  assert.equal(await give("paste", "b.png", [0x89, 0x50, 0x4e, 0x47, 0xff, 0]), true);
  await page.waitForFunction(() => !document.querySelector("#notice").hidden);
  assert.match((await text(page, "#notice"))[0], /^b\.png: expected text/);
  assert.equal(await give("paste", "cell.png", [0xff], "7"), false, "text beside a picture is pasted as ever");
});

onPage("regenerate asks the same again and drops what followed", async (page) => {
  await ask(page, "first");
  await ask(page, "second");
  await page.getByRole("button", { name: "Regenerate" }).first().click();
  await settled(page);
  assert.deepEqual(await questions(page), ["first"]);
  assert.equal((await answers(page)).length, 1);
  assert.deepEqual(mock.requests[2].body.messages, mock.requests[0].body.messages);
});

onPage("edit replaces a question and drops what followed", async (page) => {
  await ask(page, "first");
  await ask(page, "second");
  await page.getByRole("button", { name: "Edit" }).first().click();
  await page.keyboard.press("Escape");
  assert.deepEqual(await questions(page), ["first", "second"], "escape changes nothing");
  await page.getByRole("button", { name: "Edit" }).first().click();
  await page.getByLabel("Edit your message").fill("first,\nbetter");
  await page.keyboard.press("Enter");
  await settled(page);
  assert.deepEqual(await questions(page), ["first,\nbetter"]);
  assert.deepEqual(mock.requests[2].body.messages, [{ role: "user", content: "first,\nbetter" }]);
});

onPage("what an edit or a regeneration drops can be brought back", async (page) => {
  await ask(page, "first");
  await ask(page, "second");
  const [asked, said] = [await questions(page), await answers(page)];
  const undo = page.locator("#notice").getByRole("button", { name: "Undo" });
  const isBack = async (name) => assert.deepEqual([await questions(page), await answers(page)], [asked, said], name);
  const edit = async (text) => {
    await page.getByRole("button", { name: "Edit" }).first().click();
    await page.getByLabel("Edit your message").fill(text);
    await page.keyboard.press("Enter");
  };
  await edit("slow");
  await page.waitForSelector("#stop:visible");
  await undo.click();
  await isBack("in the middle of the new answer");
  await settled(page);
  await edit("another");
  await settled(page);
  await undo.click();
  await isBack("after it");
  // The last answer alone is dropped without a word, if there is another one.
  await page.getByRole("button", { name: "Regenerate" }).last().click();
  await settled(page);
  assert.equal(await page.locator("#notice").isVisible(), false);
  await page.route("**/v1/**", (route) => route.abort());
  await page.getByRole("button", { name: "Regenerate" }).last().click();
  await settled(page);
  await page.getByRole("button", { name: "Retry" }).last().click();
  await settled(page);
  await undo.click();
  await isBack("when nothing came in its place");
  await page.reload();
  await isBack("also after a reload");
}, { failures: true });

onPage("a question can be edited while it is answered", async (page) => {
  await send(page, "slow");
  await page.waitForFunction(() => document.querySelector(".answer > .text")?.textContent.includes("word5"));
  await page.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Edit your message").fill("slow, but another");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".answer > .text")?.textContent.includes("word2"));
  assert.deepEqual(await questions(page), ["slow, but another"]);
  assert.equal(await page.locator("#stop").isVisible(), true);
  await page.press("#input", "Escape");
  await settled(page);
  assert.match((await text(page, ".answer .status"))[0], /^stopped/);
});

onPage("a title ends with a whole character", async (page) => {
  await ask(page, `a${"😀".repeat(80)}`);
  assert.deepEqual(await titles(page), [`a${"😀".repeat(59)}…`]);
});

onPage("fork, rename, delete, undo; a reload restores", async (page) => {
  await ask(page, "first");
  await ask(page, "second");
  await page.getByRole("button", { name: "Fork", exact: true }).nth(1).click();
  assert.deepEqual(await titles(page), ["first (fork)", "first"]);
  assert.deepEqual(await questions(page), ["first"], "up to the answer that was forked from");
  await ask(page, "third");
  await page.getByRole("button", { name: "first", exact: true }).click();
  assert.deepEqual(await questions(page), ["first", "second"], "the original is untouched");
  await page.getByRole("button", { name: "Fork: first", exact: true }).click();
  assert.deepEqual((await titles(page))[0], "first (fork 2)");
  assert.deepEqual(await questions(page), ["first", "second"]);

  await page.getByRole("button", { name: "Rename: first (fork 2)" }).click();
  await page.keyboard.type("Another");
  await page.keyboard.press("Enter");
  assert.equal(await page.locator("#title").innerText(), "Another");
  await page.reload();
  assert.deepEqual((await titles(page)).sort(), ["Another", "first", "first (fork)"]);
  assert.equal(await page.locator("#title").innerText(), "Another");
  assert.deepEqual(await questions(page), ["first", "second"]);

  await page.getByRole("button", { name: "Delete: Another" }).click();
  assert.equal((await titles(page)).length, 2);
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal((await titles(page)).length, 3);
  await page.getByRole("button", { name: "Delete: Another" }).click();
  await page.reload();
  assert.equal((await titles(page)).length, 2);
});

onPage("a conversation is answered while another is shown", async (page) => {
  await send(page, "slow");
  await page.waitForSelector(".answer");
  await page.click("#new");
  await ask(page, "meanwhile");
  assert.deepEqual(await titles(page), ["meanwhile", "slow\n(being answered)"]);
  await page.getByRole("button", { name: /^slow/ }).click();
  assert.equal(await page.locator("#stop").isVisible(), true);
  await page.keyboard.press("Escape");
  await settled(page);
});

onPage("two tabs see the same conversations", async (page) => {
  const other = await page.context().newPage();
  await other.goto(mock.url);
  await ask(page, "from the first tab");
  await other.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
  await other.getByRole("button", { name: "from the first tab", exact: true }).click();
  assert.equal((await answers(other)).length, 1);
  await ask(other, "and from the second");
  await page.waitForFunction(() => document.querySelectorAll(".user").length === 2);
});

onPage("what two tabs ask of one conversation is kept, and what is edited stays open", async (page) => {
  await ask(page, "hello");
  const other = await page.context().newPage();
  await other.goto(mock.url);
  await other.waitForSelector(".user");
  await other.getByRole("button", { name: "Edit" }).first().click();
  await other.getByLabel("Edit your message").fill("in other words");
  await page.bringToFront();
  await send(page, "slow");
  await other.waitForFunction(() => /word9/.test(document.querySelectorAll(".answer > .text")[1]?.textContent));
  assert.equal(await other.getByLabel("Edit your message").inputValue(), "in other words");
  await other.bringToFront();
  await ask(other, "from the second");
  const all = ["hello", "slow", "from the second"];
  assert.deepEqual((await questions(other)).slice(-2), all.slice(-2));
  await page.bringToFront();
  await page.waitForFunction(() => document.querySelectorAll(".user").length === 3);
  assert.equal(await page.locator("#stop").isVisible(), true);
  await page.press("#input", "Escape");
  await settled(page);
  const said = await answers(page);
  assert.match(said[1], /^word0 .*word9/);
  assert.match(said[2], /^You said: from the second/);
  await page.reload();
  assert.deepEqual(await questions(page), all);
  assert.deepEqual(await answers(page), said);
});

onPage("what is deleted in one tab is not written again by another", async (page) => {
  await ask(page, "hello");
  const other = await page.context().newPage();
  await other.goto(mock.url);
  await other.waitForSelector(".user");
  await send(other, "slow");
  await other.waitForFunction(() => /word2/.test(document.querySelectorAll(".answer > .text")[1]?.textContent));
  await page.getByRole("button", { name: /^Delete: / }).first().click();
  await other.waitForFunction(() => document.querySelectorAll(".user").length === 0);
  // Longer than from one writing of a growing answer to the next.
  await other.waitForTimeout(1500);
  const kept = () => Object.keys(localStorage).filter((key) => key.startsWith("kvas.conversation.")).length;
  assert.equal(await other.evaluate(kept), 0);
  assert.equal(await page.locator("#conversations li").count(), 0);
  // What another tab writes before it hears of it is not taken for new.
  const late = { id: "x", title: "late", named: false, system: "", messages: [], updated: 1 };
  await ask(page, "again");
  const key = await page.evaluate(() => Object.keys(localStorage).find((name) => name.startsWith("kvas.conversation.")));
  await page.getByRole("button", { name: /^Delete: / }).first().click();
  await other.evaluate(([name, value]) => localStorage.setItem(name, JSON.stringify(value)), [key, { ...late, id: key.slice(18) }]);
  await page.waitForFunction(() => !Object.keys(localStorage).some((name) => name.startsWith("kvas.conversation.")));
  assert.equal(await page.locator("#conversations li").count(), 0);
  await page.getByRole("button", { name: "Undo" }).click();
  await other.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
});

onPage("settings go with every request", async (page) => {
  await page.click("#open-settings");
  await page.fill("#set-system", "Be brief.");
  for (const [name, value] of Object.entries({ temperature: 0.7, top_p: 0.9, top_k: 40, min_p: 0.05, max_tokens: 64, seed: 7 })) {
    await page.fill(`#set-${name}`, String(value));
  }
  await page.selectOption("#set-reasoning", "off");
  await page.fill("#set-key", "secret");
  await page.getByRole("button", { name: "Save" }).click();
  await page.selectOption("#model", "hybrid-8b");
  await ask(page, "hello");
  const { messages, stream, stream_options: options, ...rest } = mock.requests[0].body;
  assert.ok(stream && options.include_usage);
  assert.deepEqual(messages[0], { role: "system", content: "Be brief." });
  assert.deepEqual(rest, {
    model: "hybrid-8b", temperature: 0.7, top_p: 0.9, top_k: 40, min_p: 0.05, max_tokens: 64, seed: 7,
    chat_template_kwargs: { enable_thinking: false },
  });
  assert.equal(mock.requests[0].headers.authorization, "Bearer secret");
  await page.reload();
  await page.waitForFunction(() => document.querySelector("#model").value === "hybrid-8b");
  await page.click("#open-settings");
  await page.fill("#set-temperature", "9");
  await page.getByRole("button", { name: "Save" }).click();
  assert.equal(await page.locator("#settings").isVisible(), true, "a wrong value is not taken");
  await page.fill("#set-temperature", "");
  await page.keyboard.press("Escape");
  await ask(page, "hello again");
  assert.equal(mock.requests[1].body.temperature, 0.7, "escape changes nothing");
});

onPage("settings of one tab are not lost by another", async (page) => {
  const other = await page.context().newPage();
  await other.goto(mock.url);
  await other.waitForSelector("#toggle-memory");
  await page.bringToFront();
  await page.click("#open-settings");
  await page.fill("#set-temperature", "0.3");
  await page.fill("#set-key", "secret");
  await page.getByRole("button", { name: "Save" }).click();
  await page.waitForFunction(() => localStorage.getItem("kvas.settings")?.includes("secret"));
  await other.bringToFront();
  await other.click("#toggle-memory");
  const kept = await other.evaluate(() => JSON.parse(localStorage.getItem("kvas.settings")));
  assert.deepEqual([kept.key, kept.temperature, kept.memory], ["secret", 0.3, true]);
  await other.click("#open-settings");
  await page.bringToFront();
  await page.click("#open-settings");
  await page.fill("#set-top_k", "5");
  await page.getByRole("button", { name: "Save" }).click();
  await page.waitForFunction(() => JSON.parse(localStorage.getItem("kvas.settings")).top_k === 5);
  await other.bringToFront();
  await other.fill("#set-min_p", "0.25");
  await other.getByRole("button", { name: "Save" }).click();
  await ask(other, "hello");
  assert.equal(mock.requests[0].headers.authorization, "Bearer secret");
  const { temperature, top_k: topK, min_p: minP } = mock.requests[0].body;
  assert.deepEqual([temperature, topK, minP], [0.3, 5, 0.25]);
});

onPage("a key that cannot be sent is not taken for a server that is away", async (page) => {
  await page.click("#open-settings");
  await page.fill("#set-key", "ключ");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#notice:visible");
  assert.match(await page.locator("#notice").innerText(), /^The API key has characters that no key has, expected ASCII\. .*settings/);
  await ask(page, "hello");
  assert.match(await page.locator(".answer .error:visible").innerText(), /^The API key has characters/);
});

test("a server that wants a key says so", async () => {
  const locked = await start({ key: "secret" });
  const page = await visit(browser, locked.url);
  assert.match(await page.locator("#notice").innerText(), /the API key is missing or wrong/);
  await page.locator("#notice").getByRole("button", { name: "Settings" }).click();
  await page.fill("#set-key", "secret");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !document.querySelector("#model").disabled);
  await ask(page, "hello");
  assert.equal((await answers(page)).length, 1);
  await page.context().close();
  await locked.close();
});

onPage("reasoning folds, tool calls show", async (page) => {
  await ask(page, "reason");
  const fold = page.locator(".answer > .fold").first();
  assert.equal(await fold.getAttribute("open"), null);
  await fold.locator("summary").click();
  assert.equal(await fold.locator(".text").innerText(), "Let me think <b>hard</b>.");
  assert.deepEqual(await answers(page), ["Done thinking."]);
  await ask(page, "tool");
  const last = page.locator(".answer").last();
  assert.deepEqual(await last.locator("div > .fold summary").allInnerTexts(), ["Tool call: weather", "Tool call: time"]);
  assert.equal(await last.locator("pre").first().innerText(), '{\n  "city": "Bergen",\n  "days": 3\n}');
  await ask(page, "thanks");
  assert.deepEqual(mock.requests[2].body.messages[3].tool_calls[0], {
    id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": "Bergen", "days": 3}' },
  });
  assert.equal(mock.requests[2].body.messages[1].reasoning_content, "Let me think <b>hard</b>.");
  await ask(page, "length");
  assert.match((await text(page, ".answer .status"))[3], /^cut off at the most tokens allowed/);
});

onPage("errors are one line, and a retry goes on", async (page) => {
  const error = page.locator(".answer .error:visible");
  for (const [word, message] of [["failing", "the device failed: no more pages Retry"], ["plain", "HTTP 502 Bad Gateway Retry"]]) {
    await page.click("#new");
    await ask(page, word);
    assert.equal(await error.innerText(), message);
    await error.getByRole("button", { name: "Retry" }).click();
    await settled(page);
    assert.deepEqual(await answers(page), ["Now it works."]);
    assert.equal(await error.count(), 0);
  }
  for (const [word, message, kept] of [
    ["broken", /^The connection broke before the answer ended/, "Half an"],
    ["silent", /^The connection was closed before the answer ended/, "Half an ans"],
    ["midway", /^the device ran out of memory/, "So far so"],
    ["refused", /^the server is going down/, ""],
  ]) {
    await page.click("#new");
    await ask(page, word);
    assert.match(await error.innerText(), message);
    assert.ok((await answers(page))[0].startsWith(kept), word);
  }
  await page.route("**/v1/**", (route) => route.abort());
  await page.click("#new");
  await ask(page, "hello");
  assert.match(await error.innerText(), /^The server cannot be reached/);
}, { failures: true });

onPage("a busy server is asked again when it wants to be", async (page) => {
  const began = performance.now();
  await send(page, "busy");
  await page.waitForFunction(() => /busy\. Asking again in [12] s/.test(document.querySelector(".answer .status")?.textContent));
  await settled(page);
  assert.ok(performance.now() - began > 1900);
  assert.deepEqual(await answers(page), ["There was a slot."]);
  await send(page, "full");
  await page.waitForFunction(() => /Asking again in (30|29) s/.test(document.querySelector(".answer:last-child .status")?.textContent));
  await page.keyboard.press("Escape");
  await settled(page);
  assert.equal(mock.requests.length, 3);
});

onPage("Markdown becomes elements", async (page) => {
  await page.evaluate(() => {
    window.redrawn = 0;
    const isTitle = (node) => node.nodeName === "H3" && node.textContent === "The replay ring";
    new MutationObserver((all) => (window.redrawn += all.flatMap((one) => [...one.removedNodes]).filter(isTitle).length))
      .observe(document.querySelector("#messages"), { subtree: true, childList: true });
  });
  await ask(page, "markdown");
  const body = page.locator(".answer > .text");
  assert.deepEqual(await body.locator("h3, h4, h5").allInnerTexts(), ["The replay ring", "Steps", "Last"]);
  assert.deepEqual(await body.locator("em, strong, del, p > code").allInnerTexts(), ["checkpoint", "ring", "Backend::rewind", "Nothing"]);
  assert.equal(await body.locator("p").first().innerText(),
    "A checkpoint and a ring of what was written since; see the notes or\nBackend::rewind. Not snake_case_words, not 2 * 3 * 4.");
  assert.deepEqual(await body.locator("ol > li > ul > li").allInnerTexts(), ["once per step", "never per token"]);
  assert.match(await body.locator("ol > li:nth-child(2) pre").innerText(), /^for entry in ring.entries\(\) \{\n    state.apply/);
  assert.deepEqual(await body.locator("td").allInnerTexts(), ["pages", "per token", "12 288", "slots", "never", "27 144 192"]);
  assert.equal(await body.locator("td.align-right").count(), 2);
  assert.match(await body.innerText(), /A \*star\* and <b>no bold<\/b>\./);
  const link = body.locator("a");
  assert.equal(await link.getAttribute("href"), "https://example.org/notes_(2)");
  assert.equal(await link.getAttribute("rel"), "noopener noreferrer");
  assert.equal(await page.evaluate(() => window.redrawn), 0, "what is finished is left alone");
  // What was drawn piece by piece is what is drawn at once.
  const streamed = await body.evaluate((element) => element.innerHTML);
  await page.reload();
  assert.equal(await body.evaluate((element) => element.innerHTML), streamed);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await body.getByRole("button", { name: "Copy" }).click();
  await body.getByRole("button", { name: "Copied" }).waitFor();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^for entry in ring/);
  await page.locator(".answer .foot").getByRole("button", { name: "Copy" }).click();
  await page.waitForFunction(async (wanted) => (await navigator.clipboard.readText()) === wanted, MARKDOWN);
});

onPage("what is written from the right is shown so, paragraph by paragraph", async (page) => {
  await ask(page, "שלום!\nhello!");
  // Where a character stands, by its place in the text of an element.
  const left = (selector, at) => page.locator(selector).evaluate((element, place) => {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    let node = walker.nextNode();
    for (; place >= node.length; node = walker.nextNode()) place -= node.length;
    const range = document.createRange();
    range.setStart(node, place);
    range.setEnd(node, place + 1);
    return range.getBoundingClientRect().left;
  }, at);
  const text = ".user > .text";
  assert.ok((await left(text, 4)) < (await left(text, 0)), "the mark stands at the left of the first line");
  assert.ok((await left(text, 11)) > (await left(text, 6)), "and at the right of the second");
  await page.fill("#input", "שלום");
  assert.equal(await page.locator("#input").evaluate((field) => getComputedStyle(field).unicodeBidi), "plaintext");
});

onPage("hostile text is text", async (page) => {
  await ask(page, "hostile <img src=x onerror='window.hacked=9'>");
  await page.click("#open-settings");
  await page.fill("#set-system", "<script>window.hacked=8</script>");
  await page.getByRole("button", { name: "Save" }).click();
  await page.waitForTimeout(50);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("#messages :is(img, script, b, svg, i, [onerror], [onclick])").count(), 0);
  assert.deepEqual(await page.locator("#messages a").evaluateAll((all) => all.map((one) => one.protocol)), ["https:", "https:"]);
  assert.match((await answers(page))[0], /<img src=x onerror="window\.hacked = 1"> <script>window\.hacked = 2<\/script>/);
  assert.match((await titles(page))[0], /^hostile <img/);
});

onPage("a text full of open marks is drawn in time", async (page) => {
  const worst = ["*a ", "**a *b ", "_a", "`", "``a`", "[", "[a](", "![", "~~a", "<https://", "http://a(", "\\", "h", "a|b\n-|-\n"];
  await page.evaluate((texts) => {
    const message = (role, content) => ({ id: content.slice(0, 9), role, content, reasoning: "", calls: [], stats: null, note: null, error: null });
    texts.forEach((text, at) => {
      const messages = [message("user", text), message("assistant", text.repeat(40000 / text.length))];
      localStorage.setItem(`kvas.conversation.${at}`, JSON.stringify({ id: String(at), title: text, named: true, system: "", messages, updated: at + 1 }));
    });
  }, worst);
  await page.reload();
  for (let at = worst.length - 1; at >= 0; at -= 1) {
    const took = await page.evaluate((id) => {
      const began = performance.now();
      document.querySelector(`li[data-id="${id}"] .open`).click();
      return performance.now() - began;
    }, at);
    assert.ok(took < 4000, `${worst[at]} took ${took} ms`);
    assert.ok((await answers(page))[0].length > 0);
  }
});

onPage("entries of another kind in the storage do no harm", async (page) => {
  await page.evaluate(() => {
    localStorage.setItem("kvas.conversation.a", "{");
    localStorage.setItem("kvas.conversation.b", '{"id":"b","title":"t","messages":3}');
    localStorage.setItem("kvas.settings", "[");
  });
  await page.reload();
  await ask(page, "hello");
  assert.equal((await titles(page)).length, 1);
});

onPage("a full storage is said, and the chat goes on", async (page) => {
  await page.evaluate(() => (Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); }));
  await ask(page, "hello");
  assert.match(await page.locator("#notice").innerText(), /keeps no more/);
  assert.equal((await answers(page)).length, 1);
});

onPage("the memory view draws pages, rings and a table", async (page) => {
  await page.click("#toggle-memory");
  await page.waitForSelector("#memory-body:visible");
  const colours = await page.evaluate(() => {
    const canvas = document.querySelector("#pages");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(Array.from({ length: data.length / 4 }, (_, at) => data.slice(at * 4, at * 4 + 4).join())).size;
  });
  assert.ok(colours >= 7, `${colours} colours: three slots, kept, shared, free, gaps`);
  const cells = (selector) => page.locator(selector).evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.replace(/\s+/g, " "))));
  assert.deepEqual(await cells("#owners tr"), [
    ["held by one slot", "150", "15 %", "9.38 MiB"],
    ["shared by several", "24", "2.3 %", "1.50 MiB"],
    ["kept prefixes", "158", "15 %", "9.88 MiB"],
    ["free", "692", "68 %", "43.3 MiB"],
  ]);
  const slots = await cells("#slots tr");
  assert.deepEqual(slots.map((row) => row[0]), ["0", "1", "2", "3"]);
  assert.deepEqual(slots[1].slice(1), ["prompt", "1,168/4,096", "73", "0/8"]);
  assert.equal(slots[3][4], "none");
  assert.equal(await page.locator("#slots svg.ring").count(), 3);
  assert.equal(await page.locator("#snapshots").innerText(), "9 of 24 held, 192.4 MiB");
  assert.equal(await page.locator("#disk").innerText(), "3 held, 68.0 MiB");
  await page.hover("#pages", { position: { x: 3, y: 3 } });
  assert.equal(await page.locator("#pages-hint").innerText(), "Page 0: shared by several");

  const before = mock.memoryPolls;
  await page.waitForTimeout(2300);
  const polls = mock.memoryPolls - before;
  assert.ok(polls >= 2 && polls <= 3, `${polls} polls in 2.3 s`);
  await page.click("#toggle-memory");
  await page.waitForTimeout(100);
  const closed = mock.memoryPolls;
  await page.waitForTimeout(1300);
  assert.equal(mock.memoryPolls, closed, "no polls while closed");
  mock.memory = false;
  await page.click("#toggle-memory");
  await page.waitForSelector("#memory-error:visible");
  mock.memory = true;
  assert.equal(await page.locator("#memory-error").innerText(), "This server does not report its memory.");
});

onPage("nothing moves for those who want it so", async (page) => {
  await send(page, "full");
  await page.waitForSelector(".answer");
  assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
  await page.emulateMedia({ reducedMotion: "no-preference" });
  await page.waitForFunction(() => document.getAnimations().length > 0);
}, { colorScheme: "light" });

/** Elements that stick out of the screen, but for those that can be scrolled to. Runs in the page. */
function outside() {
  const scrolls = (element) => element && (["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  return [...document.querySelectorAll("body *:not(.skip)")]
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5 && !scrolls(element.parentElement))
    .map((element) => element.outerHTML.slice(0, 80));
}

for (const [name, options] of Object.entries({
  light: { colorScheme: "light" },
  dark: { colorScheme: "dark" },
  narrow: { colorScheme: "light", viewport: { width: 360, height: 720 }, hasTouch: true, isMobile: true },
})) {
  onPage(`accessible, and nothing sticks out: ${name}`, async (page) => {
    const check = async (state) => {
      if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
      const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ").slice(0, 300)}`), [], state);
      assert.deepEqual(await page.evaluate(outside), [], `${state}: wider than the screen`);
      await shot(page, `${name}-${state}`);
    };
    await check("empty");
    await ask(page, "What does reasoning cost here?");
    await ask(page, "tool");
    await ask(page, "markdown");
    await page.locator("#scroller").evaluate((element) => (element.scrollTop = element.scrollHeight));
    await check("chat");
    await page.keyboard.press("Alt+KeyM");
    await page.waitForSelector("#memory-body:visible");
    await check("memory");
    await page.keyboard.press("Alt+KeyM");
    if (name === "narrow") await page.keyboard.press("Alt+KeyL");
    await check("list");
    if (name === "narrow") await page.keyboard.press("Alt+KeyL");
    await page.keyboard.press("Alt+Comma");
    await check("settings");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Alt+Slash");
    await check("help");
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Edit" }).last().click();
    await page.keyboard.press("Escape");
    await send(page, "failing for real");
    await settled(page);
    await page.locator("#scroller").evaluate((element) => (element.scrollTop = element.scrollHeight));
    await check("error");
  }, options);
}
