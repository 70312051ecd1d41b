// Markdown, first half: lines to blocks. Pure; the second half (markdown.ts) makes elements of them.

export type Align = "left" | "center" | "right" | "";

type Body =
  | { kind: "paragraph"; text: string }
  | { kind: "heading"; level: number; text: string }
  | { kind: "code"; language: string; text: string }
  | { kind: "math"; text: string }
  | { kind: "rule" }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; start: number | null; items: Block[][] }
  | { kind: "table"; align: Align[]; head: string[]; rows: string[][] };

/** A block and the lines it is made of: two blocks of equal source look equal. */
export type Block = Body & { source: string };

/** Quotes and lists within each other, at most. Deeper ones are text. */
const DEPTH = 12;

const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(\S*)/;
const HEADING = /^ {0,3}(#{1,6})(\s.*|)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
/** What begins a formula of its own lines, and what ends it. */
const MATH = /^\s*(\\\[|\$\$)/;
const AFTER_MATH = /^\s*[.,;:]?\s*$/;
/** Lines of a formula, at most: where there is no end it is looked for at each beginning. */
const MATH_LINES = 100;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])(\s+|$)/;
/** What a line below the head of a table is made of, and each of its cells. */
const DELIMITERS = /^[\s|:-]+$/;
const DELIMITER = /^:?-+:?$/;

export function blocks(text: string): Block[] {
  return parse(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function parse(lines: string[], depth: number): Block[] {
  const found: Block[] = [];
  for (let at = 0; at < lines.length; ) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, end] = next(lines, at, depth);
    found.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return found;
}

/** The block that begins at a line, and the line after it. */
function next(lines: string[], at: number, depth: number): [Body, number] {
  const line = lines[at] ?? "";
  const heading = HEADING.exec(line);
  if (heading) {
    const text = (heading[2] ?? "").trim().replace(/(?<=^|\s)#+$/, "");
    return [{ kind: "heading", level: heading[1]?.length ?? 1, text: text.trim() }, at + 1];
  }
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (FENCE.test(line)) return code(lines, at);
  if (depth < DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  const formula = mathEnd(lines, at);
  if (formula > 0) return [{ kind: "math", text: lines.slice(at, formula).join("\n") }, formula];
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((one) => one.trim());
  return [{ kind: "paragraph", text: text.join("\n") }, end];
}

function blank(line: string | undefined): boolean {
  return line === undefined || line.trim() === "";
}

/** Whether a paragraph ends before this line. */
function interrupts(lines: string[], at: number, depth: number): boolean {
  const line = lines[at] ?? "";
  if (blank(line) || HEADING.test(line) || RULE.test(line) || FENCE.test(line) || isTable(lines, at)) return true;
  if (mathEnd(lines, at) > 0) return true;
  return depth < DEPTH && (QUOTE.test(line) || ITEM.test(line));
}

/** The line after the formula that begins at a line, in which no line is empty; 0 if there is none. One that is still being
 * written ends where the text does. */
function mathEnd(lines: string[], at: number): number {
  const first = lines[at] ?? "";
  const begin = MATH.exec(first);
  if (!begin) return 0;
  const close = begin[1] === "$$" ? "$$" : "\\]";
  const rest = first.slice(begin[0].length);
  // What goes on behind its end is text with a formula in it.
  if (rest.includes(close)) return AFTER_MATH.test(rest.slice(rest.indexOf(close) + 2)) ? at + 1 : 0;
  let end = at + 1;
  while (end < Math.min(lines.length, at + MATH_LINES) && !blank(lines[end])) {
    const line = lines[end] ?? "";
    const ends = line.lastIndexOf(close);
    if (ends >= 0 && AFTER_MATH.test(line.slice(ends + 2))) return end + 1;
    end += 1;
  }
  return end === lines.length ? end : 0;
}

/** A fenced block; one that is not closed yet reaches to the end. */
function code(lines: string[], at: number): [Body, number] {
  const first = lines[at] ?? "";
  const [, fence = "```", language = ""] = FENCE.exec(first) ?? [];
  const indent = indentOf(first);
  const isEnd = (line: string) => {
    const text = line.trim();
    return text.length >= fence.length && text === (fence[0] ?? "`").repeat(text.length);
  };
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end] ?? "")) end += 1;
  const text = lines.slice(at + 1, end).map((line) => dedent(line, indent));
  return [{ kind: "code", language, text: text.join("\n") }, Math.min(end + 1, lines.length)];
}

function dedent(line: string, columns: number): string {
  return line.slice(Math.min(indentOf(line), columns));
}

function quote(lines: string[], at: number, depth: number): [Body, number] {
  let end = at + 1;
  while (end < lines.length && QUOTE.test(lines[end] ?? "")) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ kind: "quote", blocks: parse(inner, depth + 1) }, end];
}

function indentOf(line: string): number {
  return line.length - line.trimStart().length;
}

function list(lines: string[], at: number, depth: number): [Body, number] {
  const first = ITEM.exec(lines[at] ?? "");
  const ordered = first?.[3] !== undefined;
  const items: string[][] = [];
  // Lines indented this far belong to the item. Models are careless about it: two columns do.
  let inside = 0;
  /** Whether a line begins an item beside the first, whatever its indent. */
  const isSibling = (line: string, item: RegExpExecArray | null) =>
    item !== null && (item[3] !== undefined) === ordered && indentOf(line) < inside && !RULE.test(line);
  let end = at;
  while (end < lines.length) {
    const line = lines[end] ?? "";
    const item = ITEM.exec(line);
    if (items.length === 0 || isSibling(line, item)) {
      items.push([line.slice(item?.[0].length)]);
      inside = indentOf(line) + Math.min(2, item?.[0].length ?? 2);
    } else if (blank(line)) {
      let after = end;
      while (after < lines.length && blank(lines[after])) after += 1;
      const follower = lines[after] ?? "";
      if (after === lines.length || !(indentOf(follower) >= inside || isSibling(follower, ITEM.exec(follower)))) break;
      items.at(-1)?.push("");
      end = after - 1;
    } else if (indentOf(line) >= inside) {
      items.at(-1)?.push(dedent(line, inside));
    } else if (blank(lines[end - 1]) || interrupts(lines, end, depth)) {
      break;
    } else {
      items.at(-1)?.push(line);
    }
    end += 1;
  }
  const start = ordered ? Number(first?.[3]) : null;
  return [{ kind: "list", start, items: items.map((item) => parse(item, depth + 1)) }, end];
}

function isTable(lines: string[], at: number): boolean {
  const head = lines[at] ?? "";
  const below = lines[at + 1] ?? "";
  if (!head.includes("|") || !below.includes("-") || !DELIMITERS.test(below)) return false;
  const columns = cells(below);
  return columns.every((cell) => DELIMITER.test(cell)) && cells(head).length === columns.length;
}

function table(lines: string[], at: number): [Body, number] {
  const head = cells(lines[at] ?? "");
  const align = cells(lines[at + 1] ?? "").map((cell): Align => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return cell.startsWith(":") ? "left" : "";
  });
  let end = at + 2;
  while (end < lines.length && (lines[end] ?? "").includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => {
    const row = cells(line);
    return head.map((_, column) => row[column] ?? "");
  });
  return [{ kind: "table", align, head, rows }, end];
}

/** The cells of a row. Bars behind a backslash or within backticks are text. */
function cells(line: string): string[] {
  const text = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  const found = [""];
  let code = false;
  for (let at = 0; at < text.length; at += 1) {
    const letter = text[at] ?? "";
    if (letter === "`") code = !code && text.includes("`", at + 1);
    if (letter === "\\" && text[at + 1] === "|") {
      found.push(`${found.pop() ?? ""}|`);
      at += 1;
    } else if (letter === "|" && !code) {
      found.push("");
    } else {
      found.push((found.pop() ?? "") + letter);
    }
  }
  return found.map((cell) => cell.trim());
}
