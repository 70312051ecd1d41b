// Markdown, second half: blocks to elements. Whatever the text says becomes text nodes, never markup.

import { type Block, blocks } from "./blocks";
import { copy, h } from "./dom";

/** Emphasis within emphasis, at most. Deeper marks are text. */
const DEPTH = 8;
/** Characters of a link's text, and of its address, at most. */
const LINK_TEXT = 300;
const LINK_ADDRESS = 2000;

/** Shows a text that grows: elements of blocks that stayed the same are kept. */
export class MarkdownView {
  private shown: Block[] = [];

  constructor(private readonly target: HTMLElement) {}

  show(text: string): void {
    const wanted = blocks(text);
    let same = 0;
    while (same < wanted.length && this.shown[same]?.source === wanted[same]?.source && this.sameKind(wanted, same)) same += 1;
    const [old, grown] = [this.shown[same], wanted[same]];
    // Code that is still being written keeps its element, and with it scrolling, selection and focus.
    if (old?.kind === "code" && grown?.kind === "code" && old.language === grown.language) {
      const code = this.target.children[same]?.querySelector("code");
      if (code) code.textContent = grown.text;
      same += 1;
    }
    while (this.target.children.length > same) this.target.lastElementChild?.remove();
    for (const block of wanted.slice(same)) this.target.append(element(block));
    this.shown = wanted;
  }

  /** A table's first line alone is a paragraph: equal sources are not enough. */
  private sameKind(wanted: Block[], at: number): boolean {
    return this.shown[at]?.kind === wanted[at]?.kind;
  }
}

function element(block: Block): HTMLElement {
  switch (block.kind) {
    case "paragraph":
      return h("p", {}, ...inline(block.text));
    case "heading": {
      // The page's own headings are of levels 1 and 2.
      const level = Math.min(block.level + 2, 6) as 3 | 4 | 5 | 6;
      return h(`h${level}`, {}, ...inline(block.text));
    }
    case "code":
      return code(block.language, block.text);
    case "math":
      return h("p", { class: "math" }, block.text);
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, ...block.blocks.map(element));
    case "list": {
      const items = block.items.map((item) => h("li", {}, ...tight(item)));
      return block.start === null ? h("ul", {}, ...items) : h("ol", { start: block.start }, ...items);
    }
    case "table":
      return table(block);
  }
}

/** An item that begins with a paragraph needs no element around it. */
function tight(item: Block[]): Node[] {
  const [first, ...rest] = item;
  if (first?.kind !== "paragraph") return item.map(element);
  return [h("span", {}, ...inline(first.text)), ...rest.map(element)];
}

function code(language: string, text: string): HTMLElement {
  const inner = h("code", {}, text);
  const button = h("button", { type: "button", click: () => void copy(inner.textContent ?? "", button) }, "Copy");
  const name = language === "" ? "Code" : `Code, ${language}`;
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, language), button),
    h("pre", { tabindex: 0, role: "group", "aria-label": name }, inner),
  );
}

function table(block: Block & { kind: "table" }): HTMLElement {
  const row = (cells: string[], tag: "th" | "td") =>
    h("tr", {}, ...cells.map((cell, at) => {
      const align = block.align[at];
      return h(tag, { class: align ? `align-${align}` : null, scope: tag === "th" ? "col" : null }, ...inline(cell));
    }));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row(block.head, "th")), h("tbody", {}, ...block.rows.map((cells) => row(cells, "td")))),
  );
}

/** The nodes of a text with inline marks. */
export function inline(text: string, depth = 0): Node[] {
  const nodes: Node[] = [];
  let plain = "";
  const flush = () => {
    if (plain !== "") nodes.push(document.createTextNode(plain));
    plain = "";
  };
  const ends = new Ends(text);
  for (let at = 0; at < text.length; ) {
    const found = depth < DEPTH ? mark(text, at, ends, depth) : null;
    if (!found) {
      plain += text[at];
      at += 1;
    } else {
      if (typeof found.node === "string") plain += found.node;
      else {
        flush();
        nodes.push(found.node);
      }
      at = found.end;
    }
  }
  flush();
  return nodes;
}

interface Found {
  node: Node | string;
  end: number;
}

/** The mark that begins at a place. */
function mark(text: string, at: number, ends: Ends, depth: number): Found | null {
  const letter = text[at] ?? "";
  switch (letter) {
    case "\n":
      return { node: h("br"), end: at + 1 };
    case "\\": {
      const next = text[at + 1] ?? "";
      if (next === "(" || next === "[") return formula(text, at, ends, next === "(" ? ["\\(", "\\)"] : ["\\[", "\\]"]) ?? { node: next, end: at + 2 };
      if (next === "\n") return { node: h("br"), end: at + 2 };
      return /[!-/:-@[-`{-~]/.test(next) ? { node: next, end: at + 2 } : null;
    }
    case "`":
      return span(text, at, ends);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, ends, depth);
    case "$":
      return text[at + 1] === "$" ? formula(text, at, ends, ["$$", "$$"]) : formula(text, at, ends, ["$", "$"]);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, depth) : null;
    case "[":
      return link(text, at, depth);
    case "&":
      return entity(text, at);
    case "<": {
      // The only way to a new line in a cell of a table.
      const line = /^<br\s*\/?>/i.exec(text.slice(at, at + 8));
      if (line) return { node: h("br"), end: at + line[0].length };
      const found = /^<(https?:\/\/[^\s<>]{1,2000})>/.exec(text.slice(at, at + LINK_ADDRESS));
      return found?.[1] ? { node: anchor(found[1], [document.createTextNode(found[1])]), end: at + found[0].length } : null;
    }
    case "h":
      return bare(text, at);
    default:
      return null;
  }
}

/** What models write instead of letters that mean something to Markdown or HTML. */
const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0", ndash: "–", mdash: "—", hellip: "…", times: "×" };

function entity(text: string, at: number): Found | null {
  const found = /^&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-z]{2,6}));/.exec(text.slice(at, at + 10));
  if (!found) return null;
  const [all, decimal, hexadecimal, name] = found;
  const code = decimal ? Number(decimal) : Number.parseInt(hexadecimal ?? "0", 16);
  const isLetter = code >= 0x20 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
  const letter = name ? (Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : undefined) : isLetter ? String.fromCodePoint(code) : undefined;
  return letter === undefined ? null : { node: letter, end: at + all.length };
}

function run(text: string, at: number): number {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** Code within a line: as many backticks at its end as at its beginning. */
function span(text: string, at: number, ends: Ends): Found {
  const length = run(text, at);
  const end = ends.find("`".repeat(length), at + length, (place) => run(text, place) === length && text[place - 1] !== "`");
  if (end < 0) return { node: "`".repeat(length), end: at + length };
  const inner = text.slice(at + length, end);
  const padded = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
  return { node: h("code", {}, padded ? inner.slice(1, -1) : inner), end: end + length };
}

/** A formula within a line: it stands as it was written, since its backslashes, stars and dashes are no marks. A single
 * dollar sign is one where no sum of money could be meant. */
function formula(text: string, at: number, ends: Ends, [begin, close]: [string, string]): Found | null {
  const start = at + begin.length;
  if (begin === "$" && /[\s$]/.test(text[start] ?? " ")) return null;
  const isMoney = (place: number) => begin === "$" && (/\s/.test(text[place - 1] ?? " ") || /[\d$]/.test(text[place + 1] ?? ""));
  const end = ends.find(close, start, (place) => place > start && !isMoney(place));
  return end < 0 ? null : { node: h("span", { class: "math" }, text.slice(at, end + close.length)), end: end + close.length };
}

function emphasis(text: string, at: number, ends: Ends, depth: number): Found | null {
  const letter = text[at] ?? "";
  const length = run(text, at);
  const marks = letter === "~" ? "~~" : letter.repeat(length >= 2 ? 2 : 1);
  const whole = { node: letter.repeat(length), end: at + length };
  const start = at + marks.length;
  const before = text[at - 1] ?? " ";
  if (length < marks.length || length > 3 || /\s/.test(text[at + length] ?? " ")) return whole;
  if (letter === "_" && /[\p{L}\p{N}]/u.test(before)) return whole;
  // The last of a longer run of marks closes, so that what is within keeps its own.
  const end = ends.find(marks, start, (place) => {
    const count = run(text, place);
    const after = text[place + count] ?? " ";
    if (place <= start || text[place - 1] === letter || /\s/.test(text[place - 1] ?? "")) return false;
    if (marks.length === 1 && count === 2) return false;
    return count >= marks.length && !(letter === "_" && /[\p{L}\p{N}]/u.test(after));
  });
  if (end < 0) return whole;
  const close = end + run(text, end) - marks.length;
  const last = marks.length === 1 ? end : close;
  const tag = letter === "~" ? "del" : marks.length === 2 ? "strong" : "em";
  return { node: h(tag, {}, ...inline(text.slice(start, last), depth + 1)), end: last + marks.length };
}

/** [text](address "title"); images are shown as links, nothing is loaded. */
function link(text: string, at: number, depth: number): Found | null {
  let open = 0;
  let end = at;
  for (; end < text.length && end < at + LINK_TEXT; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") open += 1;
    else if (text[end] === "]") open -= 1;
    if (open === 0) break;
  }
  if (open !== 0 || text[end + 1] !== "(") return null;
  const address = /^\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(
    text.slice(end + 1, end + 1 + LINK_ADDRESS),
  );
  if (!address || !/^(https?:\/\/|mailto:)/i.test(address[1] ?? "")) return null;
  const label = text.slice(at + 1, end) || (address[1] ?? "");
  const start = text[at - 1] === "!" ? "image: " : "";
  const inner = inline(label, depth + 1);
  return { node: anchor(address[1] ?? "", [document.createTextNode(start), ...inner]), end: end + 1 + address[0].length };
}

/** An address that stands by itself. */
function bare(text: string, at: number): Found | null {
  if (!text.startsWith("http", at) || /[\p{L}\p{N}]/u.test(text[at - 1] ?? " ")) return null;
  const found = /^https?:\/\/[^\s<>"`]+/.exec(text.slice(at, at + LINK_ADDRESS));
  if (!found) return null;
  let address = found[0].replace(/[.,;:!?'*_~]+$/, "");
  if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
  return { node: anchor(address, [document.createTextNode(address)]), end: at + address.length };
}

function anchor(address: string, children: Node[]): HTMLElement {
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

/** Looks for closing marks, and remembers in vain: a text full of open marks is read once, not once per mark. */
class Ends {
  private readonly missing = new Map<string, number>();

  constructor(private readonly text: string) {}

  find(marks: string, from: number, fits: (place: number) => boolean): number {
    if (from >= (this.missing.get(marks) ?? Infinity)) return -1;
    for (let at = this.text.indexOf(marks, from); at >= 0; at = this.text.indexOf(marks, at + 1)) {
      if (this.text[at - 1] !== "\\" && fits(at)) return at;
    }
    this.missing.set(marks, from);
    return -1;
  }
}
