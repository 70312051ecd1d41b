// A Chromium for the tests, and the gestures that they share.

import { mkdirSync } from "node:fs";
import { delimiter, join } from "node:path";
import { accessSync, constants } from "node:fs";
import { tmpdir } from "node:os";
import { chromium } from "playwright-core";

/** Where screenshots go. */
export const SHOTS = process.env.KVAS_SHOTS ?? join(tmpdir(), "kvas-page-shots");
mkdirSync(SHOTS, { recursive: true });

function executable() {
  const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
  const found = (process.env.PATH ?? "").split(delimiter).flatMap((folder) => names.map((name) => join(folder, name)));
  const is = (path) => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  };
  const path = process.env.CHROMIUM ?? found.find(is);
  if (!path) throw new Error("no Chromium in PATH: install it, or name it in CHROMIUM");
  return path;
}

export async function launch() {
  return chromium.launch({ executablePath: executable(), args: ["--no-sandbox", "--disable-gpu"] });
}

/** A fresh profile's tab on the page, with what went wrong and where it asked. */
export async function visit(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(15000);
  page.asked = [];
  page.wrong = [];
  page.on("request", (request) => page.asked.push(request.url()));
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("console", (message) => {
    // The browser itself reports every status from 400 on.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) page.wrong.push(message.text());
  });
  await enter(page, url);
  return page;
}

async function enter(page, url) {
  await page.goto(url);
  await page.waitForFunction(() => !document.querySelector("#model").disabled || !document.querySelector("#notice").hidden);
}

/** Makes a tab fresh again, which is faster than another one. */
export async function renew(page, url) {
  await page.unrouteAll();
  for (const other of page.context().pages()) if (other !== page) await other.close();
  await page.goto(`${url}style.css`);
  await page.evaluate(() => (localStorage.clear(), sessionStorage.clear()));
  page.asked = [];
  page.wrong = [];
  await enter(page, url);
}

export async function send(page, text) {
  await page.fill("#input", text);
  await page.press("#input", "Enter");
}

/** Until nothing is being answered here. */
export function settled(page, timeout = 15000) {
  return page.waitForFunction(
    () => document.querySelector("#stop").hidden && !document.querySelector("[aria-busy=true]"),
    undefined,
    { timeout, polling: 20 },
  );
}

export async function ask(page, text) {
  await send(page, text);
  await settled(page);
}

export function text(page, selector) {
  return page.locator(selector).allInnerTexts();
}

export const questions = (page) => text(page, ".user > .text");
export const answers = (page) => text(page, ".answer > .text");
export const titles = (page) => text(page, "#conversations .open");

export function shot(page, name) {
  return page.screenshot({ path: join(SHOTS, `${name}.png`) });
}
