// Keyboard shortcuts, and the dialog that lists them.

import { byId, h } from "./dom";

export interface Shortcut {
  /** As the help shows it. */
  keys: string;
  text: string;
  /** KeyboardEvent.code, pressed with Alt; none for keys that are handled elsewhere. */
  code?: string;
  act?: () => void;
}

export class Keys {
  private readonly dialog = byId<HTMLDialogElement>("help");

  constructor(shortcuts: Shortcut[], escape: () => void) {
    byId("help-keys").append(
      ...shortcuts.flatMap(({ keys, text }) => [
        h("dt", {}, ...keys.split(" ").map((key) => h("kbd", {}, key))),
        h("dd", {}, text),
      ]),
    );
    byId("help-close").addEventListener("click", () => this.dialog.close());
    document.addEventListener("keydown", (event) => {
      // Dialogs have their own keys.
      if (document.querySelector("dialog[open]") || event.isComposing) return;
      if (event.key === "Escape") escape();
      if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const found = shortcuts.find(({ code }) => code === event.code);
      if (!found?.act) return;
      event.preventDefault();
      found.act();
    });
  }

  help(): void {
    this.dialog.showModal();
  }
}
