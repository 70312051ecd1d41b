// Elements, icons, announcements and the clipboard. Text reaches the document through text nodes only.

export type Child = Node | string | null | undefined | false;
type Value = string | boolean | number | ((event: never) => void) | null | undefined;

/** An element; functions among the attributes are listeners, false and null leave an attribute out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, Value> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false));
  return element;
}

/** The element of index.html with this id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (!element) throw new Error(`index.html has no element #${id}`);
  return element as T;
}

/** Sets the text only if it differs, so that selections and screen readers are left alone. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function svg(tag: string, attributes: Record<string, string | number>, ...children: Node[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

const ICONS = {
  close: "M4 4l8 8M12 4l-8 8",
  rename: "M3 13l1-4 7-7 3 3-7 7zM9.500 3.500l3 3",
  fork: "M4 2v12M4 9c6 0 8-2 8-7M9.500 4L12 1.500 14.500 4",
  remove: "M2.500 4h11M6 4V2h4v2M4 4l.7 10h6.600L12 4M6.500 7v4M9.500 7v4",
};

export function icon(name: keyof typeof ICONS): SVGElement {
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** Tells screen readers, politely. */
export function announce(text: string): void {
  byId("live").textContent = text;
}

/** Copies text; pages served without TLS to another machine have no clipboard interface, hence the second way. */
export async function copy(text: string, button: HTMLElement): Promise<void> {
  let copied = false;
  try {
    await navigator.clipboard.writeText(text);
    copied = true;
  } catch {
    const area = h("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    copied = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const label = button.textContent ?? "";
  button.textContent = copied ? "Copied" : "Not copied";
  announce(button.textContent);
  button.setAttribute("disabled", "");
  setTimeout(() => {
    button.textContent = label;
    button.removeAttribute("disabled");
  }, 1200);
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

export function plural(value: number, word: string): string {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}
