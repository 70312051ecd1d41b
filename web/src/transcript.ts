// The messages of the conversation that is shown. Elements live as long as their messages.

import type { Run } from "./chat";
import { copy, count, h, plural, setText } from "./dom";
import { MarkdownView } from "./markdown";
import type { Call, Conversation, Message, Stats } from "./store";

/** What can be done to a message. */
export interface Actions {
  regenerate(message: Message): void;
  edit(message: Message, text: string): void;
  fork(message: Message): void;
}

export function statsLine(stats: Stats | null): string {
  if (!stats) return "";
  const parts = [
    stats.rate === null ? null : `${stats.rate.toFixed(stats.rate < 100 ? 1 : 0)} tokens/s`,
    stats.written === null ? null : `${count(stats.written)} written`,
    stats.read === null ? null : `${count(stats.read)} read`,
    stats.cached === null ? null : `${count(stats.cached)} cached`,
    stats.miss === null ? null : `read again because: ${stats.miss}`,
  ];
  return parts.filter((part) => part !== null).join(" · ");
}

/** What a run is waiting for. */
function waiting(run: Run): string {
  const now = performance.now();
  if (run.again === null) return `Reading… ${Math.floor((now - run.began) / 1000)} s`;
  const left = Math.max(Math.ceil((run.again - now) / 1000), 0);
  return `The server is busy. Asking again in ${left} s.`;
}

/** JSON with a line for each value. Numbers stay as they are written, which JSON.parse would round. */
export function indented(text: string): string {
  try {
    JSON.parse(text);
  } catch {
    // Not complete yet: as it is.
    return text;
  }
  const tokens: string[] = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return tokens.reduce((done, token, at) => {
    const isEmpty = /^[{[]$/.test(tokens[at - 1] ?? "");
    if (/^[}\]]$/.test(token)) {
      depth -= 1;
      return done + (isEmpty ? "" : line()) + token;
    }
    const before = isEmpty || tokens[at - 1] === "," ? line() : tokens[at - 1] === ":" ? " " : "";
    if (/^[{[]$/.test(token)) depth += 1;
    return done + before + token;
  }, "");
}

class CallView {
  readonly root: HTMLDetailsElement;
  private readonly name = h("span");
  private readonly text = h("pre", { tabindex: 0, role: "group", "aria-label": "Arguments" });

  constructor() {
    this.root = h("details", { class: "fold", open: true }, h("summary", {}, "Tool call: ", this.name), this.text);
  }

  show(call: Call): void {
    setText(this.name, call.name);
    setText(this.text, indented(call.arguments));
  }
}

class MessageView {
  readonly root: HTMLElement;
  private readonly text = h("div", { class: "text" });
  private readonly foot = h("div", { class: "foot" });
  private readonly status = h("span", { class: "status" });
  private readonly error = h("p", { class: "error", hidden: true });
  private readonly errorText = h("span");
  private readonly reasoning: HTMLDetailsElement;
  private readonly reasoningName = h("summary");
  private readonly reasoningText = h("div", { class: "text" });
  private readonly calls = h("div");
  private readonly callViews: CallView[] = [];
  private readonly buttons: HTMLButtonElement[] = [];
  private readonly markdown: MarkdownView;
  /** Whether the run has ended and the last state is drawn. */
  private settled = false;

  constructor(
    readonly message: Message,
    private readonly actions: Actions,
  ) {
    const mine = message.role === "user";
    this.markdown = new MarkdownView(this.text);
    this.reasoning = h("details", { class: "fold", hidden: true }, this.reasoningName, this.reasoningText);
    this.button("Copy", "Copy this message", (button) => void copy(message.content, button));
    if (mine) this.button("Edit", "Edit this message; what follows it is dropped", () => this.edit());
    else this.button("Regenerate", "Answer again; what follows is dropped", () => actions.regenerate(message));
    this.button("Fork", "Copy the conversation up to here into a new one", () => actions.fork(message));
    const retry = h("button", { type: "button", click: () => actions.regenerate(message) }, "Retry");
    this.error.append(this.errorText, " ", retry);
    this.foot.append(this.status, h("span", { class: "actions" }, ...this.buttons));
    this.root = h(
      "article",
      { class: mine ? "message user" : "message answer", "data-id": message.id },
      h("h2", { class: "hidden" }, mine ? "You" : "Answer"),
      this.reasoning,
      this.text,
      this.calls,
      this.error,
      this.foot,
    );
    if (mine) this.text.textContent = message.content;
  }

  private button(label: string, title: string, click: (button: HTMLElement) => void): void {
    const button: HTMLButtonElement = h("button", { type: "button", title, click: () => click(button) }, label);
    this.buttons.push(button);
  }

  /** Draws an answer; with a run while it is being written. */
  update(run: Run | null): void {
    if (this.message.role === "user" || (this.settled && !run)) return;
    const { content, reasoning, calls, error, note, stats } = this.message;
    this.settled = run === null;
    this.root.setAttribute("aria-busy", String(run !== null));
    this.markdown.show(content);
    this.reasoning.hidden = reasoning === "";
    if (reasoning !== "") {
      setText(this.reasoningName, run && content === "" && calls.length === 0 ? "Reasoning…" : "Reasoning");
      setText(this.reasoningText, reasoning);
    }
    calls.forEach((call, at) => {
      if (!this.callViews[at]) {
        this.callViews[at] = new CallView();
        this.calls.append(this.callViews[at].root);
      }
      this.callViews[at].show(call);
    });
    this.error.hidden = error === null;
    setText(this.errorText, error ?? "");
    const [copies, again] = this.buttons;
    for (const button of this.buttons) button.hidden = run !== null;
    if (copies) copies.hidden ||= content === "";
    // An error has a button of its own for that.
    if (again) again.hidden ||= error !== null;
    this.tick(run);
    if (!run) setText(this.status, [note, statsLine(stats)].filter(Boolean).join(" · "));
  }

  /** Draws what changes with time alone. */
  tick(run: Run | null): void {
    if (run) setText(this.status, run.writing ? "" : waiting(run));
  }

  /** Puts a text field in the place of the text. */
  edit(): void {
    if (this.root.querySelector("form")) return;
    const area = h("textarea", { "aria-label": "Edit your message", rows: Math.min(this.message.content.split("\n").length + 1, 12) });
    area.value = this.message.content;
    const close = () => {
      form.remove();
      this.text.hidden = this.foot.hidden = false;
      this.buttons[1]?.focus();
    };
    const send = () => {
      if (area.value.trim() !== "") this.actions.edit(this.message, area.value);
    };
    const keys = (event: KeyboardEvent) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    const form = h(
      "form",
      { class: "edit", keydown: keys, submit: (event: Event) => (event.preventDefault(), send()) },
      area,
      h("div", { class: "row" }, h("button", { class: "strong" }, "Send"), h("button", { type: "button", click: close }, "Cancel")),
    );
    this.text.hidden = this.foot.hidden = true;
    this.text.after(form);
    area.focus();
  }
}

export class Transcript {
  private views: MessageView[] = [];
  private shown: Conversation | null = null;
  private readonly system = h("details", { class: "fold system" });

  constructor(
    private readonly scroller: HTMLElement,
    private readonly list: HTMLElement,
    private readonly actions: Actions,
  ) {}

  /** Draws a conversation, keeping what is drawn of it already. */
  show(conversation: Conversation, run: Run | null): void {
    const other = this.shown?.id !== conversation.id;
    const follow = other || this.atEnd();
    this.shown = conversation;
    let same = 0;
    while (same < this.views.length && this.views[same]?.message === conversation.messages[same]) same += 1;
    for (const view of this.views.splice(same)) view.root.remove();
    if (same === 0) this.list.replaceChildren(this.system);
    this.system.hidden = conversation.system.trim() === "";
    if (!this.system.hidden) {
      this.system.replaceChildren(h("summary", {}, "System prompt"), h("div", { class: "text" }, conversation.system));
    }
    for (const message of conversation.messages.slice(same)) {
      const view = new MessageView(message, this.actions);
      this.views.push(view);
      this.list.append(view.root);
    }
    if (conversation.messages.length === 0) this.list.append(this.empty());
    else this.list.querySelector(".empty")?.remove();
    for (const view of this.views) view.update(run?.answer === view.message ? run : null);
    if (follow) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** Draws the growth of one answer. */
  grow(run: Run): void {
    const view = this.of(run);
    if (!view) return;
    const follow = this.atEnd();
    view.update(run);
    if (follow) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  tick(run: Run): void {
    this.of(run)?.tick(run);
  }

  /** The answer of a run is the last message, unless another tab has asked something meanwhile. */
  private of(run: Run): MessageView | undefined {
    return this.views.findLast((view) => view.message === run.answer);
  }

  /** Begins to edit the last question. */
  editLast(): void {
    this.views.findLast((view) => view.message.role === "user")?.edit();
  }

  private atEnd(): boolean {
    return this.scroller.scrollTop + this.scroller.clientHeight > this.scroller.scrollHeight - 48;
  }

  private empty(): HTMLElement {
    const hint = "Conversations are kept in this browser. Answers are computed where this page comes from.";
    return h("div", { class: "empty" }, h("p", { class: "brand" }, "kvas"), h("p", {}, hint));
  }
}

export function plainAnswer(message: Message): string {
  const calls = message.calls.length > 0 ? ` ${plural(message.calls.length, "tool call")}.` : "";
  return `${message.content.slice(0, 3000)}${calls}`;
}
