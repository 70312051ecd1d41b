// The two panels beside the conversation. On narrow screens one of them covers it.

import { byId } from "./dom";
import type { Store } from "./store";

export type Panel = "list" | "memory";

/** What the style sheet calls narrow (a panel covers everything), and tight (there is room for one panel). */
const NARROW = matchMedia("(max-width: 719px)");
const TIGHT = matchMedia("(max-width: 1079px)");

export class Panels {
  private readonly open: Record<Panel, boolean> = { list: false, memory: false };

  constructor(
    private readonly store: Store,
    private readonly onMemory: (visible: boolean) => void,
  ) {
    for (const panel of ["list", "memory"] as const) {
      byId(`toggle-${panel}`).addEventListener("click", () => this.toggle(panel));
      byId(`close-${panel}`).addEventListener("click", () => this.toggle(panel));
    }
    for (const query of [NARROW, TIGHT]) query.addEventListener("change", () => this.start());
  }

  get narrow(): boolean {
    return NARROW.matches;
  }

  /** As the settings have it; narrow screens begin with the conversation. */
  start(): void {
    const { list, memory } = this.store.settings;
    this.open.memory = memory && !this.narrow;
    this.open.list = list && !this.narrow && !(TIGHT.matches && this.open.memory);
    this.draw();
  }

  toggle(panel: Panel): void {
    const open = !this.open[panel];
    this.open[panel] = open;
    if (open && TIGHT.matches) this.open[panel === "list" ? "memory" : "list"] = false;
    if (!this.narrow) {
      this.store.change({ [panel]: open });
    }
    const hadFocus = byId(panel).contains(document.activeElement);
    this.draw();
    if (open && this.narrow) byId(`close-${panel}`).focus();
    else if (hadFocus) byId(`toggle-${panel}`).focus();
  }

  /** Closes what covers the conversation. */
  escape(): void {
    for (const panel of ["list", "memory"] as const) if (this.narrow && this.open[panel]) this.toggle(panel);
  }

  /** After a conversation was chosen. */
  leaveList(): void {
    if (this.narrow && this.open.list) this.toggle("list");
  }

  private draw(): void {
    for (const panel of ["list", "memory"] as const) {
      byId(panel).hidden = !this.open[panel];
      byId(`toggle-${panel}`).setAttribute("aria-expanded", String(this.open[panel]));
    }
    byId("main").inert = this.narrow && (this.open.list || this.open.memory);
    this.onMemory(this.open.memory);
  }
}
