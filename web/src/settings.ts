// The settings dialog: the system prompt of a conversation, and what goes with every request.

import { byId } from "./dom";
import type { Conversation, Settings, Store } from "./store";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"] as const;

function field(name: string): HTMLInputElement {
  return byId<HTMLInputElement>(`set-${name}`);
}

export class SettingsDialog {
  private readonly dialog = byId<HTMLDialogElement>("settings");
  private conversation: Conversation | null = null;
  /** What the fields said when they were shown. */
  private shown: Partial<Settings> = {};

  /** `saved` is called with whether the API key is another one. */
  constructor(
    private readonly store: Store,
    private readonly saved: (conversation: Conversation, otherKey: boolean) => void,
  ) {
    this.dialog.addEventListener("close", () => {
      if (this.dialog.returnValue === "save") this.take();
    });
    byId("settings-cancel").addEventListener("click", () => this.dialog.close("cancel"));
    byId("set-defaults").addEventListener("click", () => {
      for (const name of NUMBERS) field(name).value = "";
      byId<HTMLSelectElement>("set-reasoning").value = "";
    });
  }

  open(conversation: Conversation): void {
    const { settings } = this.store;
    this.conversation = conversation;
    byId<HTMLTextAreaElement>("set-system").value = conversation.system;
    field("system-new").checked = conversation.system === settings.system;
    for (const name of NUMBERS) field(name).value = settings[name] === null ? "" : String(settings[name]);
    byId<HTMLSelectElement>("set-reasoning").value = settings.reasoning;
    field("key").value = settings.key;
    this.shown = this.fields();
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  /** What the fields say. */
  private fields(): Partial<Settings> {
    const numbers = NUMBERS.map((name) => [name, field(name).value === "" ? null : field(name).valueAsNumber]);
    return {
      ...(Object.fromEntries(numbers) as Partial<Settings>),
      reasoning: byId<HTMLSelectElement>("set-reasoning").value as Settings["reasoning"],
      key: field("key").value.trim(),
    };
  }

  private take(): void {
    if (!this.conversation) return;
    this.conversation.system = byId<HTMLTextAreaElement>("set-system").value;
    // What was left alone here may have been changed in another tab meanwhile.
    const changes = Object.entries(this.fields()).filter(([name, value]) => value !== this.shown[name as keyof Settings]);
    this.store.change({
      ...(Object.fromEntries(changes) as Partial<Settings>),
      ...(field("system-new").checked && { system: this.conversation.system }),
    });
    const otherKey = changes.some(([name]) => name === "key");
    this.saved(this.conversation, otherKey);
  }
}
