// The keyboard tour: everything a conversation needs, without a pointer. Against the mock, or against a server with a
// model: KVAS_URL=http://… web/test/run

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answers, launch, questions, settled, titles, visit } from "./browser.mjs";
import { start } from "./mock.mjs";

/** A model may take its time. */
const PATIENCE = process.env.KVAS_URL ? 120_000 : 15_000;
let browser;
let mock = null;
let url = process.env.KVAS_URL;

before(async () => {
  browser = await launch();
  if (url) return;
  mock = await start();
  url = mock.url;
});
after(async () => {
  await browser.close();
  await mock?.close();
});

/** Presses a key until the focus is where it should be, which also shows that it can be seen. */
async function reach(page, selector, key = "Tab") {
  for (let presses = 0; presses < 60; presses += 1) {
    const there = await page.evaluate((wanted) => {
      const focused = document.activeElement;
      if (!focused?.matches(wanted)) return false;
      const { outlineStyle, outlineWidth } = getComputedStyle(focused);
      if (outlineStyle === "none" || outlineWidth === "0px") throw new Error(`the focus on ${wanted} cannot be seen`);
      return true;
    }, selector);
    if (there) return;
    await page.keyboard.press(key);
  }
  assert.fail(`${key} does not lead to ${selector}`);
}

test("a conversation by keyboard alone", { timeout: 4 * PATIENCE }, async () => {
  const page = await visit(browser, url);
  const { keyboard } = page;
  const say = async (words) => {
    await keyboard.type(words);
    await keyboard.press("Enter");
  };

  // The field has the focus at the beginning.
  await keyboard.type("Say hello");
  await keyboard.press("Shift+Enter");
  await say("in one sentence.");
  await settled(page, PATIENCE);
  assert.deepEqual(await questions(page), ["Say hello\nin one sentence."]);
  const [first] = await answers(page);
  assert.notEqual(first, "");
  assert.equal(await page.locator(".answer .error:visible").count(), 0);

  // A long answer, stopped.
  await say("slow: tell a long story.");
  await page.waitForFunction(() => document.querySelectorAll(".answer > .text")[1]?.textContent.length > 20, undefined, { timeout: PATIENCE });
  await keyboard.press("Escape");
  await settled(page, PATIENCE);
  assert.ok((await answers(page))[1].length > 20);

  // The last question in other words.
  await keyboard.press("ArrowUp");
  await keyboard.press("ControlOrMeta+KeyA");
  await say("Say goodbye.");
  await settled(page, PATIENCE);
  assert.deepEqual(await questions(page), ["Say hello\nin one sentence.", "Say goodbye."]);

  await keyboard.press("Alt+KeyR");
  await settled(page, PATIENCE);
  assert.equal((await answers(page)).length, 2);

  await keyboard.press("Alt+KeyK");
  assert.equal((await titles(page)).length, 2);
  await say("And again.");
  await settled(page, PATIENCE);
  await keyboard.press("Alt+ArrowDown");
  assert.equal((await questions(page)).length, 2, "the original");
  await keyboard.press("Alt+ArrowUp");
  assert.equal((await questions(page)).length, 3, "the fork");

  // Rename and delete with Tab and Enter.
  await reach(page, "li.current [data-act=rename]", "Shift+Tab");
  await keyboard.press("Enter");
  await say("Renamed");
  assert.equal((await titles(page))[0], "Renamed");
  await reach(page, "li.current [data-act=remove]");
  await keyboard.press("Enter");
  assert.equal((await titles(page)).length, 1);
  await page.getByRole("button", { name: "Undo" }).focus();
  await keyboard.press("Enter");
  assert.equal((await titles(page)).length, 2);

  // Settings: every field is reached, and Escape leaves.
  await keyboard.press("Alt+Comma");
  for (const name of ["system", "system-new", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "reasoning", "defaults", "key"]) {
    await reach(page, `#set-${name}`);
  }
  await keyboard.press("Escape");

  // Every control of the frame is reached.
  await keyboard.press("Alt+KeyN");
  for (const id of ["input", "send", "new", "toggle-list", "model", "toggle-memory", "open-settings", "open-help", "scroller"]) {
    await reach(page, `#${id}`);
  }
  await keyboard.press("Alt+Slash");
  assert.equal(await page.locator("#help").isVisible(), true);
  await reach(page, "#help-close");
  await keyboard.press("Enter");

  await keyboard.press("Alt+KeyM");
  await page.waitForSelector("#memory-body:visible, #memory-error:visible");
  if (await page.locator("#memory-body").isVisible()) {
    assert.ok((await page.locator("#slots tr").count()) > 0);
    assert.equal(await page.locator("#owners tr").count(), 4);
  }
  await keyboard.press("Alt+KeyL");
  assert.equal(await page.locator("#list").isVisible(), false);
  await keyboard.press("Alt+KeyI");
  await reach(page, "#input");

  await page.reload();
  assert.equal((await questions(page)).length, 3, "the conversation last answered is shown");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});
