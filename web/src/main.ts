// The page: puts the parts together and does what buttons and keys ask for.

import { ServerError, models } from "./api";
import { Chat, type Run } from "./chat";
import { announce, byId, h, setText } from "./dom";
import { takeFiles } from "./files";
import { Keys } from "./keys";
import { ConversationList } from "./list";
import { MemoryView } from "./memory";
import { Panels } from "./panels";
import { SettingsDialog } from "./settings";
import { type Conversation, type Message, Store, newMessage } from "./store";
import { Transcript, plainAnswer } from "./transcript";

const CURRENT = "kvas.current";
/** Characters of a question that become the title. */
const TITLE = 60;

const store = new Store();
const chat = new Chat(store);
const input = byId<HTMLTextAreaElement>("input");
const modelSelect = byId<HTMLSelectElement>("model");
const memoryView = new MemoryView(() => store.settings.key);
const panels = new Panels(store, (visible) => (memoryView.visible = visible));
const settings = new SettingsDialog(store, (conversation, otherKey) => {
  if (conversation.messages.length > 0) store.save(conversation);
  show();
  if (otherKey) void loadModels();
});
const transcript = new Transcript(byId("scroller"), byId("messages"), {
  regenerate,
  edit(message, text) {
    chat.stop(current);
    replace(current.messages.indexOf(message), newMessage("user", text));
  },
  fork: (message) => fork(current, message),
});
const list = new ConversationList(byId("conversations"), {
  open: (conversation) => {
    open(conversation);
    panels.leaveList();
  },
  rename(conversation, title) {
    conversation.named ||= title !== conversation.title;
    conversation.title = title;
    store.save(conversation);
    show();
  },
  fork: (conversation) => fork(conversation),
  remove,
});

/** The conversation that is shown. One without messages is not in the store. */
let current: Conversation = atStart();

function atStart(): Conversation {
  let id: string | null = null;
  try {
    id = sessionStorage.getItem(CURRENT);
  } catch {
    // No storage: begin anew.
  }
  return store.get(id ?? "") ?? store.list()[0] ?? store.create();
}

/** Draws what belongs to the current conversation. */
function show(): void {
  const run = chat.run(current);
  transcript.show(current, run);
  showState(run);
}

function showState(run: Run | null): void {
  list.show(store.list(), current, (one) => chat.run(one) !== null);
  setText(byId("title"), current.title);
  document.title = current.messages.length > 0 ? `${current.title} – kvas` : "kvas";
  byId("send").hidden = run !== null;
  byId("stop").hidden = run === null;
}

function open(conversation: Conversation): void {
  current = conversation;
  try {
    sessionStorage.setItem(CURRENT, conversation.id);
  } catch {
    // Not remembered then.
  }
  show();
}

function openNew(): void {
  open(store.create());
  panels.leaveList();
  input.focus();
}

function ask(): void {
  notice(null);
  chat.start(current);
  show();
  announce("Asked.");
  input.focus();
}

/** What stood in a conversation before an edit or a regeneration dropped some of it. */
const before = new Map<Conversation, Message[]>();

/** Drops messages from a place on for others, and asks. */
function replace(at: number, ...by: Message[]): void {
  const dropped = current.messages.slice(at);
  // An answer that failed is nothing to go back to: what stood before it is.
  if (dropped.some((message) => message.role === "assistant" && !failed(message))) before.set(current, [...current.messages]);
  current.messages.splice(at, Infinity, ...by);
  ask();
  // What was asked for is dropped without a word: a question and its answer for a question, an answer for an answer.
  if (dropped.length > by.length + 1) offerBack(current);
}

function failed(answer: Message): boolean {
  return answer.error !== null && answer.content === "" && answer.reasoning === "" && answer.calls.length === 0;
}

/** Offers to put a conversation back to what it was. */
function offerBack(conversation: Conversation): void {
  const messages = before.get(conversation);
  if (!messages) return;
  notice("Messages were dropped.", "Undo", () => {
    chat.stop(conversation);
    before.delete(conversation);
    conversation.messages = messages;
    store.save(conversation);
    open(conversation);
    input.focus();
  });
}

function send(): void {
  const text = input.value;
  if (text.trim() === "" || chat.run(current)) return;
  if (!current.named && current.messages.length === 0) {
    const letters = [...(text.trim().split("\n")[0] ?? "")];
    current.title = letters.length > TITLE ? `${letters.slice(0, TITLE).join("").trimEnd()}…` : letters.join("");
  }
  before.delete(current);
  current.messages.push(newMessage("user", text));
  input.value = "";
  fit();
  open(current);
  byId("scroller").scrollTop = byId("scroller").scrollHeight;
  ask();
}

function regenerate(message?: Message): void {
  const answer = message ?? current.messages.findLast((one) => one.role === "assistant");
  const at = answer ? current.messages.indexOf(answer) : -1;
  if (at >= 0 && !chat.run(current)) replace(at);
}

function fork(from: Conversation, upTo?: Message): void {
  if (from.messages.length === 0) return;
  const copy = store.fork(from, upTo);
  store.save(copy);
  open(copy);
  announce(`Forked: ${copy.title}`);
  input.focus();
}

function remove(conversation: Conversation): void {
  chat.stop(conversation);
  store.remove(conversation.id);
  if (conversation === current) open(store.list()[0] ?? store.create());
  else show();
  notice(`Deleted “${conversation.title}”.`, "Undo", () => {
    store.save(conversation);
    open(conversation);
    input.focus();
  });
}

/** Opens the conversation above or below in the list. */
function step(by: number): void {
  const all = store.list();
  const next = all[all.indexOf(current) + by];
  if (next) open(next);
  announce(next ? next.title : "No further conversation.");
}

/** One line above the field, with at most one thing to do. */
function notice(text: string | null, label = "", act: () => void = () => undefined): void {
  const bar = byId("notice");
  bar.hidden = text === null;
  if (text === null) return;
  const button = (name: string, click: () => void) => h("button", { type: "button", click }, name);
  const dismiss = button("Dismiss", () => (notice(null), input.focus()));
  bar.replaceChildren(h("span", {}, text), dismiss);
  if (label !== "") dismiss.before(button(label, () => (notice(null), act())));
}

async function loadModels(): Promise<void> {
  try {
    const ids = await models(store.settings.key);
    const chosen = ids.includes(store.settings.model) ? store.settings.model : (ids[0] ?? "");
    modelSelect.replaceChildren(...ids.map((id) => h("option", { value: id, selected: id === chosen }, id)));
    modelSelect.disabled = ids.length === 0;
    store.settings.model = chosen;
  } catch (error) {
    const keyless = error instanceof ServerError && error.status === 401;
    const message = error instanceof Error ? error.message : String(error);
    if (keyless) notice(`${message} An API key can be set in the settings.`, "Settings", () => settings.open(current));
    else notice(`The models are not known: ${message}`, "Retry", () => void loadModels());
  }
}

/** Gives the field as many lines as its text has, within what the style sheet allows. */
function fit(): void {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

/** Answers grow faster than screens are drawn: once per frame does. */
const grown = new Set<Run>();
chat.onChange = (run) => {
  if (grown.size === 0) {
    requestAnimationFrame(() => {
      for (const one of grown) if (one.conversation === current && chat.run(current) === one) transcript.grow(one);
      grown.clear();
    });
  }
  grown.add(run);
};

chat.onEnd = (run) => {
  if (run.conversation !== current) return showState(chat.run(current));
  show();
  const { error, note } = run.answer;
  if (failed(run.answer)) offerBack(run.conversation);
  announce(error ? `Error: ${error}` : `${note ? `Answer ${note}` : "Answer"}: ${plainAnswer(run.answer)}`);
};

setInterval(() => {
  const run = chat.run(current);
  if (run) transcript.tick(run);
}, 500);

store.onRefused = () => notice("The browser keeps no more: delete conversations, or this one is lost with the tab.");
store.onForeign = (id, conversation) => {
  const here = store.get(id);
  // What is deleted there is not answered here.
  if (here && !conversation) chat.stop(here);
  store.adopt(id, conversation, (here && chat.run(here)?.answer) ?? null);
  if (current.id !== id) return show();
  open(store.get(id) ?? store.list()[0] ?? store.create());
};

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
input.addEventListener("input", fit);
input.addEventListener("keydown", (event) => {
  if (event.isComposing || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && input.value === "" && !chat.run(current)) {
    event.preventDefault();
    transcript.editLast();
  }
});
takeFiles(
  input,
  (text) => {
    input.setRangeText(text, input.selectionStart, input.selectionEnd, "end");
    fit();
    input.focus();
  },
  (names) => notice(`${names.join(", ")}: expected text of at most 1 MiB; images are not read here.`),
);
byId("stop").addEventListener("click", () => (chat.stop(current), input.focus()));
byId("new").addEventListener("click", openNew);
byId("open-settings").addEventListener("click", () => settings.open(current));
byId("open-help").addEventListener("click", () => keys.help());
modelSelect.addEventListener("change", () => {
  store.change({ model: modelSelect.value });
});

const keys = new Keys(
  [
    { keys: "Enter", text: "Send" },
    { keys: "Shift Enter", text: "New line" },
    { keys: "Esc", text: "Stop the answer; leave a field, a panel or a dialog" },
    { keys: "↑", text: "In the empty field: edit the last message" },
    { keys: "Alt N", text: "New conversation", code: "KeyN", act: openNew },
    { keys: "Alt R", text: "Regenerate the last answer", code: "KeyR", act: () => regenerate() },
    { keys: "Alt U", text: "Edit the last message", code: "KeyU", act: () => transcript.editLast() },
    { keys: "Alt K", text: "Fork the conversation", code: "KeyK", act: () => fork(current) },
    { keys: "Alt ↑", text: "Conversation above", code: "ArrowUp", act: () => step(-1) },
    { keys: "Alt ↓", text: "Conversation below", code: "ArrowDown", act: () => step(1) },
    { keys: "Alt I", text: "To the field", code: "KeyI", act: () => input.focus() },
    { keys: "Alt L", text: "Show or hide conversations", code: "KeyL", act: () => panels.toggle("list") },
    { keys: "Alt M", text: "Show or hide memory", code: "KeyM", act: () => panels.toggle("memory") },
    { keys: "Alt ,", text: "Settings", code: "Comma", act: () => settings.open(current) },
    { keys: "Alt /", text: "This help", code: "Slash", act: () => keys.help() },
  ],
  () => {
    if (!chat.stop(current)) panels.escape();
  },
);

panels.start();
show();
void loadModels();
if (!panels.narrow) input.focus();
