// The memory view: who holds the pages, what is in the rings, which snapshots are kept.

import { type Memory, ServerError, type Tier, memory } from "./api";
import { byId, bytes, count, h, plural, setText, svg } from "./dom";

const FREE = -1;
const KEPT = -2;
const SHARED = -3;
const SLOT_COLOURS = 8;
/** Milliseconds between two looks, and after a look that failed. */
const EVERY = 1000;
const AFTER_FAILURE = 5000;
/** Sides of a page's square that are tried, and the height that the grid may have, in pixels. */
const SIDES = [12, 10, 8, 7, 6, 5, 4];
const HEIGHT = 240;

interface Cell {
  first: number;
  owner: number;
}

function ownerName(owner: number): string {
  if (owner === FREE) return "free";
  if (owner === KEPT) return "kept prefixes";
  return owner === SHARED ? "shared by several" : `slot ${owner}`;
}

function colourName(owner: number): string {
  if (owner === FREE) return "--page-free";
  if (owner === KEPT) return "--page-kept";
  return owner === SHARED ? "--page-shared" : `--slot-${owner % SLOT_COLOURS}`;
}

/** One owner per cell of so many pages: whoever holds most of it; that something is held outweighs what is free. */
export function cellsOf(map: [number, number][], pagesPerCell: number): Cell[] {
  const cells: Cell[] = [];
  let shares = new Map<number, number>();
  let filled = 0;
  let first = 0;
  const close = () => {
    const ranked = [...shares].sort((a, b) => b[1] - a[1]);
    const owner = (ranked.find(([one]) => one !== FREE) ?? ranked[0])?.[0] ?? FREE;
    cells.push({ first, owner });
    first += filled;
    filled = 0;
    shares = new Map();
  };
  for (const [owner, run] of map) {
    for (let left = run; left > 0; ) {
      const take = Math.min(left, pagesPerCell - filled);
      shares.set(owner, (shares.get(owner) ?? 0) + take);
      filled += take;
      left -= take;
      if (filled === pagesPerCell) close();
    }
  }
  if (filled > 0) close();
  return cells;
}

/** Pages by owner. */
function totals(map: [number, number][]): Map<number, number> {
  const found = new Map<number, number>();
  for (const [owner, run] of map) found.set(owner, (found.get(owner) ?? 0) + run);
  return found;
}

/** The squares of all pages. */
class Grid {
  private cells: Cell[] = [];
  private pagesPerCell = 1;
  private side = 10;
  private columns = 1;
  private last: Memory["pages"] | null = null;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly hint: HTMLElement,
  ) {
    new ResizeObserver(() => this.draw(this.last)).observe(canvas.parentElement ?? canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.last));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.describe());
  }

  draw(pages: Memory["pages"] | null): void {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!pages || width === 0) return;
    this.last = pages;
    this.lay(pages.total, width);
    this.cells = cellsOf(pages.map, this.pagesPerCell);
    const rows = Math.max(Math.ceil(this.cells.length / this.columns), 1);
    const scale = devicePixelRatio || 1;
    const height = rows * this.side;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.scale(scale, scale);
    const style = getComputedStyle(this.canvas);
    const gap = this.side > 5 ? 2 : 1;
    this.cells.forEach((cell, at) => {
      context.fillStyle = style.getPropertyValue(colourName(cell.owner));
      const [x, y] = [(at % this.columns) * this.side, Math.floor(at / this.columns) * this.side];
      context.fillRect(x, y, this.side - gap, this.side - gap);
    });
    this.describe();
  }

  /** Chooses side and pages per square so that all fit. */
  private lay(total: number, width: number): void {
    const room = (side: number) => Math.max(Math.floor(width / side), 1) * Math.floor(HEIGHT / side);
    const smallest = SIDES.at(-1) ?? 4;
    this.side = SIDES.find((side) => room(side) >= total) ?? smallest;
    this.columns = Math.max(Math.floor(width / this.side), 1);
    this.pagesPerCell = Math.max(Math.ceil(total / room(this.side)), 1);
  }

  private point(event: PointerEvent): void {
    const [column, row] = [Math.floor(event.offsetX / this.side), Math.floor(event.offsetY / this.side)];
    const cell = column < this.columns ? this.cells[row * this.columns + column] : undefined;
    if (!cell) return this.describe();
    const last = Math.min(cell.first + this.pagesPerCell, this.last?.total ?? Infinity) - 1;
    const range = last > cell.first ? `Pages ${count(cell.first)} to ${count(last)}` : `Page ${count(cell.first)}`;
    setText(this.hint, `${range}: ${ownerName(cell.owner)}`);
  }

  private describe(): void {
    const square = this.pagesPerCell === 1 ? "a page" : plural(this.pagesPerCell, "page");
    setText(this.hint, `A square is ${square} of ${plural(this.last?.page_size ?? 0, "token")}.`);
  }
}

/** The colour of an owner; null stands for all slots. */
function swatch(owner: number | null): HTMLElement {
  const name = owner === null ? "all" : owner < 0 ? `m${-owner}` : owner % SLOT_COLOURS;
  return h("span", { class: `swatch s${name}`, "aria-hidden": "true" });
}

/** A ring as a circle of its entries. */
function ring(held: number, capacity: number): SVGElement {
  const [radius, length] = [8, 2 * Math.PI * 8];
  const part = capacity > 0 ? length / capacity : length;
  const gap = capacity > 1 && capacity <= 16 ? 1.5 : 0;
  const dashes = (entries: number) =>
    gap > 0 ? `${`${part - gap} ${gap} `.repeat(entries)}0 ${length}` : `${part * entries} ${length}`;
  const circle = (kind: string, entries: number) =>
    svg("circle", { class: kind, cx: 11, cy: 11, r: radius, "stroke-dasharray": dashes(entries), transform: "rotate(-90 11 11)" });
  const all = [circle("ring-all", capacity), ...(held > 0 ? [circle("ring-held", Math.min(held, capacity))] : [])];
  return svg("svg", { viewBox: "0 0 22 22", class: "ring", "aria-hidden": "true" }, ...all);
}

/** A bar that is filled in part. */
function bar(part: number, whole: number): HTMLElement {
  const inner = h("span");
  inner.style.width = `${whole > 0 ? Math.min((part / whole) * 100, 100) : 0}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, inner);
}

/** Table rows that are made anew only when what they show has changed. */
class Rows {
  private drawn = "";

  constructor(private readonly body: HTMLElement) {}

  show<T>(data: T[], row: (one: T) => HTMLElement): void {
    const state = JSON.stringify(data);
    if (state === this.drawn) return;
    this.drawn = state;
    this.body.replaceChildren(...data.map(row));
  }
}

export class MemoryView {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private open = false;
  private before: { at: number; read: number } | null = null;
  private readonly canvas = byId<HTMLCanvasElement>("pages");
  private readonly grid = new Grid(this.canvas, byId("pages-hint"));
  private readonly owners = new Rows(byId("owners"));
  private readonly slots = new Rows(byId("slots"));

  constructor(private readonly key: () => string) {
    document.addEventListener("visibilitychange", () => this.plan(0));
  }

  /** Begins or ends to look. */
  set visible(open: boolean) {
    this.open = open;
    this.before = null;
    this.plan(0);
  }

  private plan(milliseconds: number): void {
    clearTimeout(this.timer);
    if (this.open && document.visibilityState === "visible") this.timer = setTimeout(() => void this.look(), milliseconds);
  }

  private async look(): Promise<void> {
    const error = byId("memory-error");
    try {
      this.show(await memory(this.key()));
      error.hidden = true;
      byId("memory-body").hidden = false;
      this.plan(EVERY);
    } catch (failure) {
      const missing = failure instanceof ServerError && failure.status === 404;
      const other = failure instanceof ServerError ? failure.message : "The server's memory report has an unknown form.";
      setText(error, missing ? "This server does not report its memory." : other);
      error.hidden = false;
      this.plan(AFTER_FAILURE);
    }
  }

  private show(report: Memory): void {
    byId("memory-body").hidden = false;
    this.showPages(report);
    this.showSlots(report);
    const { held, total, bytes: size, host, disk } = report.snapshots;
    const tier = (kept: Tier | null) => (kept ? `${count(kept.held)} held, ${bytes(kept.bytes)}` : "not used");
    setText(byId("snapshots"), `${count(held)} of ${count(total)} held, ${bytes(size)}`);
    byId("snapshots-bar").replaceChildren(bar(held, total));
    setText(byId("host"), tier(host));
    setText(byId("disk"), tier(disk));
    setText(byId("queue"), plural(report.queue, "request"));
    setText(byId("tokens-read"), `${count(report.tokens_read)}${this.rate(report.tokens_read)}`);
  }

  private showPages({ pages }: Memory): void {
    const held = totals(pages.map);
    const inSlots = [...held].reduce((sum, [owner, number]) => (owner >= 0 ? sum + number : sum), 0);
    const rows = [
      { owner: null, name: "held by one slot", number: inSlots },
      { owner: SHARED, name: ownerName(SHARED), number: held.get(SHARED) ?? 0 },
      { owner: KEPT, name: ownerName(KEPT), number: held.get(KEPT) ?? 0 },
      { owner: FREE, name: ownerName(FREE), number: held.get(FREE) ?? 0 },
    ];
    const facts = rows.map((row) => ({ ...row, share: row.number / Math.max(pages.total, 1), bytes: row.number * pages.page_bytes }));
    const used = pages.total - pages.free;
    const summary = `${count(used)} of ${plural(pages.total, "page")} in use, ${bytes(used * pages.page_bytes)}`;
    setText(byId("pages-summary"), summary);
    this.canvas.setAttribute("aria-label", `Pages by owner: ${summary}. The table below has the numbers.`);
    this.owners.show(facts, (row) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, swatch(row.owner), row.name),
        h("td", {}, count(row.number)),
        h("td", {}, `${(row.share * 100).toFixed(row.share > 0 && row.share < 0.1 ? 1 : 0)} %`),
        h("td", {}, bytes(row.bytes)),
      ),
    );
    this.grid.draw(pages);
  }

  private showSlots({ pages, slots }: Memory): void {
    const held = totals(pages.map);
    const facts = slots.map((slot) => ({ ...slot, pages: held.get(slot.id) ?? 0 }));
    this.slots.show(facts, (slot) =>
      h(
        "tr",
        { class: slot.state === "idle" ? "idle" : null },
        h("th", { scope: "row" }, swatch(slot.id), String(slot.id)),
        h("td", { class: "left" }, slot.state, slot.conversation && h("span", { class: "of", title: slot.conversation }, slot.conversation)),
        h("td", {}, `${count(slot.tokens)}/${count(slot.context)}`, bar(slot.tokens, slot.context)),
        h("td", {}, count(slot.pages)),
        h("td", { class: "ring-cell" }, ...ringCell(slot.ring)),
      ),
    );
  }

  /** Tokens read per second since the last look. */
  private rate(read: number): string {
    const now = performance.now();
    const { before } = this;
    this.before = { at: now, read };
    if (!before || read <= before.read) return "";
    return `, ${count(((read - before.read) / (now - before.at)) * 1000)} per second`;
  }
}

function ringCell(state: { held: number; capacity: number } | null): (Node | string)[] {
  return state && state.capacity > 0 ? [ring(state.held, state.capacity), `${state.held}/${state.capacity}`] : ["none"];
}
