// Asking and answering: what is sent, what becomes of the chunks, waiting for a busy server, stopping.

import { type Chunk, ServerError, stream } from "./api";
import { type Conversation, type Message, type Settings, type Stats, type Store, newMessage } from "./store";

/** An answer that is being written. */
export interface Run {
  conversation: Conversation;
  answer: Message;
  abort: AbortController;
  /** When it was asked for, performance.now(). */
  began: number;
  /** When a busy server will be asked again, performance.now(). */
  again: number | null;
  /** Whether anything of the answer has arrived. */
  writing: boolean;
}

/** Times that a busy server is asked again before that is an error. */
const PATIENCE = 30;
/** Milliseconds between two writes of a growing answer to the storage. */
const KEEP_EVERY = 1000;

/** The messages of a request. Answers that hold nothing are left out, and the questions around them joined: many
 * templates want the roles to alternate. */
export function history(conversation: Conversation): object[] {
  const messages: { role: string; content: string; reasoning_content?: string; tool_calls?: object[] }[] = [];
  if (conversation.system.trim() !== "") messages.push({ role: "system", content: conversation.system });
  for (const { role, content, reasoning, calls } of conversation.messages) {
    const last = messages.at(-1);
    if (role === "assistant" && content === "" && calls.length === 0) continue;
    if (role === "user" && last?.role === "user") {
      last.content += `\n\n${content}`;
      continue;
    }
    messages.push({
      role,
      content,
      ...(reasoning !== "" && { reasoning_content: reasoning }),
      ...(calls.length > 0 && {
        tool_calls: calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })),
      }),
    });
  }
  return messages;
}

/** The body of a request. What is not set is not sent: the server's own defaults hold. */
export function body(conversation: Conversation, settings: Settings): object {
  const { temperature, top_p, top_k, min_p, max_tokens, seed } = settings;
  const numbers = Object.entries({ temperature, top_p, top_k, min_p, max_tokens, seed }).filter(([, value]) => value !== null);
  return {
    ...(settings.model !== "" && { model: settings.model }),
    messages: history(conversation),
    stream: true,
    stream_options: { include_usage: true },
    ...Object.fromEntries(numbers),
    ...(settings.reasoning !== "" && { chat_template_kwargs: { enable_thinking: settings.reasoning === "on" } }),
  };
}

function statsOf({ usage, timings }: Chunk): Stats {
  const cached = timings?.cache_n ?? usage?.prompt_tokens_details?.cached_tokens ?? null;
  const prompt = usage?.prompt_tokens ?? null;
  return {
    rate: timings?.predicted_per_second ?? null,
    written: timings?.predicted_n ?? usage?.completion_tokens ?? null,
    read: timings?.prompt_n ?? (prompt === null ? null : prompt - (cached ?? 0)),
    cached,
    miss: timings?.cache_miss_reason || null,
  };
}

/** Adds what a chunk brings to the answer. */
export function apply(answer: Message, chunk: Chunk): void {
  for (const { delta, finish_reason: reason } of chunk.choices ?? []) {
    answer.content += delta?.content ?? "";
    answer.reasoning += delta?.reasoning_content ?? "";
    for (const piece of delta?.tool_calls ?? []) {
      const index = Math.min(piece.index ?? 0, answer.calls.length);
      const call = (answer.calls[index] ??= { id: "", name: "", arguments: "" });
      call.id ||= piece.id ?? "";
      call.name += piece.function?.name ?? "";
      call.arguments += piece.function?.arguments ?? "";
    }
    if (reason === "length") answer.note = "cut off at the most tokens allowed";
  }
  if (chunk.usage || chunk.timings) {
    const stats = statsOf(chunk);
    for (const key of Object.keys(stats) as (keyof Stats)[]) (stats[key] as unknown) ??= answer.stats?.[key] ?? null;
    answer.stats = stats;
  }
}

export class Chat {
  private readonly runs = new Map<string, Run>();
  /** Called when an answer has grown, or its run has another phase. */
  onChange: (run: Run) => void = () => undefined;
  /** Called when a run is over. */
  onEnd: (run: Run) => void = () => undefined;

  constructor(private readonly store: Store) {
    addEventListener("pagehide", () => {
      for (const run of this.runs.values()) {
        run.answer.note = "cut off when the page was left";
        run.abort.abort();
        this.keep(run);
      }
    });
  }

  run(conversation: Conversation): Run | null {
    return this.runs.get(conversation.id) ?? null;
  }

  /** Asks for an answer to what the conversation holds. */
  start(conversation: Conversation): void {
    const answer = newMessage("assistant", "");
    // Made before the answer is appended, which is no part of the question.
    const request = body(conversation, this.store.settings);
    conversation.messages.push(answer);
    conversation.updated = Date.now();
    const run: Run = {
      conversation,
      answer,
      abort: new AbortController(),
      began: performance.now(),
      again: null,
      writing: false,
    };
    this.runs.set(conversation.id, run);
    this.store.save(conversation);
    this.onChange(run);
    void this.finish(run, request);
  }

  /** Writes a growing answer to the storage, unless its conversation was deleted. */
  private keep({ conversation }: Run): void {
    if (this.store.get(conversation.id)) this.store.save(conversation);
  }

  stop(conversation: Conversation): boolean {
    const run = this.run(conversation);
    run?.abort.abort();
    return run !== null;
  }

  private async finish(run: Run, request: object): Promise<void> {
    try {
      await this.ask(run, request);
    } catch (error) {
      if (run.abort.signal.aborted) run.answer.note ??= "stopped";
      else run.answer.error = error instanceof Error ? error.message : String(error);
    }
    // Who edits a question that is being answered asks the next one before this one has ended.
    if (this.run(run.conversation) !== run) return;
    this.runs.delete(run.conversation.id);
    this.keep(run);
    this.onEnd(run);
  }

  /** Asks until the server is not too busy to answer. */
  private async ask(run: Run, request: object): Promise<void> {
    for (let left = PATIENCE; ; left -= 1) {
      try {
        return await this.read(run, request);
      } catch (error) {
        const pause = error instanceof ServerError && !run.writing && left > 0 ? error.retryAfter : null;
        if (pause === null) throw error;
        run.again = performance.now() + pause * 1000;
        this.onChange(run);
        await sleep(pause * 1000, run.abort.signal);
        run.again = null;
        this.onChange(run);
      }
    }
  }

  private async read(run: Run, request: object): Promise<void> {
    let kept = performance.now();
    for await (const chunk of stream(request, this.store.settings.key, run.abort.signal)) {
      apply(run.answer, chunk);
      run.writing ||= run.answer.content !== "" || run.answer.reasoning !== "" || run.answer.calls.length > 0;
      this.onChange(run);
      if (performance.now() - kept > KEEP_EVERY) {
        kept = performance.now();
        this.keep(run);
      }
    }
  }
}

function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
