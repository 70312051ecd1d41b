// The list of conversations: open, rename, fork, delete.

import { h, icon } from "./dom";
import type { Conversation } from "./store";

export interface ListActions {
  open(conversation: Conversation): void;
  rename(conversation: Conversation, title: string): void;
  fork(conversation: Conversation): void;
  remove(conversation: Conversation): void;
}

export class ConversationList {
  private drawn = "";

  constructor(
    private readonly target: HTMLElement,
    private readonly actions: ListActions,
  ) {}

  /** Draws the list if it differs from what is drawn. `busy` tells which conversations are being answered. */
  show(conversations: Conversation[], current: Conversation, busy: (conversation: Conversation) => boolean): void {
    const state = JSON.stringify(conversations.map((one) => [one.id, one.title, one === current, busy(one)]));
    if (state === this.drawn || this.target.querySelector("input")) return;
    this.drawn = state;
    const focused = this.target.contains(document.activeElement) ? document.activeElement : null;
    const mark = focused ? [focused.closest("li")?.dataset["id"], focused.getAttribute("data-act")] : null;
    this.target.replaceChildren(...conversations.map((one) => this.row(one, one === current, busy(one))));
    if (mark) this.target.querySelector<HTMLElement>(`li[data-id="${mark[0]}"] [data-act="${mark[1]}"]`)?.focus();
  }

  private row(conversation: Conversation, current: boolean, busy: boolean): HTMLElement {
    const { title } = conversation;
    const act = (name: "rename" | "fork" | "remove", label: string, click: () => void) =>
      h("button", { type: "button", class: "small", title: label, "aria-label": `${label}: ${title}`, "data-act": name, click }, icon(name));
    const open = h(
      "button",
      {
        type: "button",
        class: "open",
        title,
        "data-act": "open",
        "aria-current": current ? "true" : null,
        click: () => this.actions.open(conversation),
        dblclick: () => this.rename(row, conversation),
      },
      h("span", {}, title),
      busy && h("span", { class: "dot" }, h("span", { class: "hidden" }, " (being answered)")),
    );
    const row: HTMLElement = h(
      "li",
      { "data-id": conversation.id, class: current ? "current" : null },
      open,
      h(
        "span",
        { class: "acts" },
        act("rename", "Rename", () => this.rename(row, conversation)),
        act("fork", "Fork", () => this.actions.fork(conversation)),
        act("remove", "Delete", () => this.actions.remove(conversation)),
      ),
    );
    return row;
  }

  /** Puts a text field in the place of the title. */
  private rename(row: HTMLElement, conversation: Conversation): void {
    const input = h("input", { type: "text", "aria-label": "Title of the conversation", maxlength: 120 });
    input.value = conversation.title;
    let over = false;
    const end = (keep: boolean) => {
      if (over) return;
      over = true;
      const hadFocus = document.activeElement === input;
      const title = input.value.trim();
      row.replaceChildren();
      this.drawn = "";
      this.actions.rename(conversation, keep && title !== "" ? title : conversation.title);
      if (hadFocus) this.target.querySelector<HTMLElement>(`li[data-id="${conversation.id}"] [data-act="rename"]`)?.focus();
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter" && !event.isComposing);
    });
    row.replaceChildren(input);
    input.focus();
    input.select();
  }
}
