// Conversations and settings, kept in localStorage: one entry per conversation.

export interface Call {
  id: string;
  name: string;
  arguments: string;
}

/** What an answer cost, as far as the server said. */
export interface Stats {
  rate: number | null;
  written: number | null;
  read: number | null;
  cached: number | null;
  miss: string | null;
}

export interface Message {
  id: string;
  role: "user" | "assistant";
  content: string;
  reasoning: string;
  calls: Call[];
  stats: Stats | null;
  /** Why the answer is shorter than it could be. */
  note: string | null;
  error: string | null;
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether the title was given by hand. */
  named: boolean;
  system: string;
  messages: Message[];
  /** Milliseconds since 1970; orders the list. */
  updated: number;
}

export interface Settings {
  model: string;
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  max_tokens: number | null;
  seed: number | null;
  reasoning: "" | "on" | "off";
  key: string;
  /** System prompt of new conversations. */
  system: string;
  list: boolean;
  memory: boolean;
}

const PREFIX = "kvas.conversation.";
const SETTINGS = "kvas.settings";

const DEFAULTS: Settings = {
  model: "",
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
  reasoning: "",
  key: "",
  system: "",
  list: true,
  memory: false,
};

/** A fresh id. crypto.randomUUID is missing where a page is served without TLS. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");
}

export function newMessage(role: Message["role"], content: string): Message {
  return { id: newId(), role, content, reasoning: "", calls: [], stats: null, note: null, error: null };
}

/** A stored conversation, or null if the text is none. */
function parse(text: string | null): Conversation | null {
  try {
    const value = JSON.parse(text ?? "null") as Conversation | null;
    const whole =
      value &&
      [value.id, value.title, value.system].every((field) => typeof field === "string") &&
      Array.isArray(value.messages) &&
      value.messages.every((message) => typeof message.content === "string" && Array.isArray(message.calls));
    return whole ? value : null;
  } catch {
    return null;
  }
}

/** The messages of a conversation that two tabs know. They are known by their ids and only grow, so that the longer of two
 * of one id is the newer one; objects of this tab stay where they are no older, and with them what is drawn of them. Which
 * messages there are is up to the other tab; unless an answer is being written here that it knows nothing of, after which
 * only what was asked there is added. */
export function merge(here: Message[], there: Message[], writing: Message | null): Message[] {
  const byId = (messages: Message[]) => new Map(messages.map((message) => [message.id, message]));
  const [own, others] = [byId(here), byId(there)];
  const newer = (message: Message) => {
    const [known, other] = [own.get(message.id), others.get(message.id)];
    return known && (!other || known === writing || size(known) >= size(other)) ? known : (other ?? message);
  };
  if (writing === null || others.has(writing.id)) return there.map(newer);
  const parted = there.findIndex(({ id }, at) => id !== here[at]?.id);
  const added = parted < 0 || there[parted]?.role !== "user" ? [] : there.slice(parted);
  return [...here, ...added.filter(({ id }) => !own.has(id))].map(newer);
}

/** The id of the copy of a conversation that has this answer. */
function rivalId(of: Conversation, answer: Message): string {
  return `${of.id}-${answer.id}`;
}

/** Grows with a message. */
function size(message: Message): number {
  return JSON.stringify(message).length;
}

function storedSettings(): Partial<Settings> {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    // No storage, or settings of another kind: the defaults do.
    return {};
  }
}

export class Store {
  private readonly all = new Map<string, Conversation>();
  /** What was deleted here. Another tab may write it once more before it hears so. */
  private readonly removed = new Set<string>();
  readonly settings: Settings = { ...DEFAULTS };
  /** Called when the browser refuses to keep something. */
  onRefused: () => void = () => undefined;
  /** Called when another tab has changed a conversation, which is null if it was deleted. */
  onForeign: (id: string, conversation: Conversation | null) => void = () => undefined;

  constructor() {
    try {
      for (const key of Object.keys(localStorage).filter((name) => name.startsWith(PREFIX))) {
        const conversation = parse(localStorage.getItem(key));
        if (conversation) this.all.set(conversation.id, conversation);
      }
    } catch {
      // No storage: nothing is kept.
    }
    Object.assign(this.settings, storedSettings());
    addEventListener("storage", (event) => {
      if (event.key === SETTINGS) this.takeSettings();
      if (!event.key?.startsWith(PREFIX)) return;
      const conversation = parse(event.newValue);
      const id = event.key.slice(PREFIX.length);
      this.onForeign(id, conversation);
    });
  }

  /** The last used first. */
  list(): Conversation[] {
    return [...this.all.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id: string): Conversation | undefined {
    return this.all.get(id);
  }

  create(system = this.settings.system): Conversation {
    return { id: newId(), title: "New conversation", named: false, system, messages: [], updated: Date.now() };
  }

  /** A copy up to and including a message, or of everything. */
  fork(from: Conversation, upTo?: Message): Conversation {
    const end = upTo ? from.messages.indexOf(upTo) + 1 : from.messages.length;
    const copy = structuredClone({ ...from, messages: from.messages.slice(0, end) });
    for (const message of copy.messages) message.id = newId();
    const title = from.title.replace(/ \(fork( \d+)?\)$/, "");
    const forks = this.list().filter((one) => one.title.startsWith(`${title} (fork`)).length;
    return { ...copy, id: newId(), title: `${title} (fork${forks > 0 ? ` ${forks + 1}` : ""})`, named: true, updated: Date.now() };
  }

  save(conversation: Conversation): void {
    this.all.set(conversation.id, conversation);
    this.removed.delete(conversation.id);
    this.write(PREFIX + conversation.id, conversation);
  }

  /** Takes over what another tab has written, but for what is newer here: `writing` is the answer that is written here. */
  adopt(id: string, there: Conversation | null, writing: Message | null): void {
    const here = this.all.get(id);
    if (there && this.removed.has(id)) {
      this.remove(id);
    } else if (!there) {
      this.all.delete(id);
    } else if (!here) {
      this.all.set(id, there);
    } else {
      if (writing) this.keepRival(here, there, writing);
      const messages = merge(here.messages, there.messages, writing);
      const behind = messages.some((message, at) => size(message) > size(there.messages[at] ?? message));
      Object.assign(here, there, { messages });
      // An answer that is being written is saved soon.
      if (behind && !writing) this.save(here);
      // What stands here again needs no copy.
      if (!writing) for (const message of messages) this.dropRival(here, message);
    }
  }

  /** Two tabs may answer the same message: the answer that ends last stays in the conversation, and the other one in a copy
   * of it, which each tab makes of what the other writes. */
  private keepRival(here: Conversation, there: Conversation, writing: Message): void {
    const at = here.messages.findIndex(({ id }) => id === writing.id);
    const rival = there.messages[at];
    if (rival?.role !== "assistant" || here.messages.some(({ id }) => id === rival.id)) return;
    if (there.messages[at - 1]?.id !== here.messages[at - 1]?.id) return;
    this.save({ ...structuredClone(there), id: rivalId(here, rival), title: `${here.title} (other tab)`, named: true });
  }

  private dropRival(here: Conversation, message: Message): void {
    const copy = this.all.get(rivalId(here, message));
    // Who has gone on with it keeps it.
    if (copy?.messages.at(-1)?.id === message.id) this.remove(copy.id);
  }

  remove(id: string): void {
    this.all.delete(id);
    this.removed.add(id);
    try {
      localStorage.removeItem(PREFIX + id);
    } catch {
      // Nothing was kept, nothing is left.
    }
  }

  /** Changes settings, and leaves to others what another tab has changed since. */
  change(settings: Partial<Settings>): void {
    this.takeSettings();
    Object.assign(this.settings, settings);
    this.write(SETTINGS, this.settings);
  }

  /** Takes over what another tab has written; which model is asked stays what this one shows. */
  private takeSettings(): void {
    const { model } = this.settings;
    Object.assign(this.settings, storedSettings(), { model });
  }

  private write(key: string, value: unknown): void {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch {
      this.onRefused();
    }
  }
}
