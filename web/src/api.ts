// The HTTP interface: the forms of requests and answers, and the stream of an answer.

import { EventReader } from "./events";

export interface Chunk {
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[] | null;
    };
    finish_reason?: string | null;
  }[];
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
  timings?: {
    prompt_n?: number;
    cache_n?: number;
    cache_miss_reason?: string | null;
    prompt_ms?: number;
    predicted_n?: number;
    predicted_ms?: number;
    predicted_per_second?: number;
  } | null;
  error?: unknown;
}

/** Prefixes that are kept elsewhere. */
export interface Tier {
  held: number;
  bytes: number;
}

export interface Memory {
  pages: { total: number; free: number; page_size: number; page_bytes: number; map: [number, number][] };
  slots: {
    id: number;
    state: string;
    tokens: number;
    context: number;
    ring: { held: number; capacity: number } | null;
    conversation: string | null;
  }[];
  snapshots: { held: number; total: number; bytes: number; host: Tier | null; disk: Tier | null };
  queue: number;
  tokens_read: number;
}

/** What the server, or the way to it, had to say. One line. */
export class ServerError extends Error {
  constructor(
    message: string,
    /** HTTP status; 0 if there was none. */
    readonly status: number,
    /** Seconds after which the server wants to be asked again. */
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }
}

/** The message within {"error": {"message"}} or {"error": "…"}, in one line. */
function messageOf(error: unknown): string | null {
  const message = typeof error === "object" && error !== null ? (error as { message?: unknown }).message : error;
  return typeof message === "string" && message !== "" ? message.replace(/\s+/g, " ").slice(0, 600) : null;
}

function seconds(header: string | null): number | null {
  if (header === null) return null;
  const value = /^\s*\d+\s*$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Number.isFinite(value) ? Math.min(Math.max(Math.ceil(value), 1), 600) : null;
}

async function request(path: string, key: string, options: RequestInit): Promise<Response> {
  // The browser would refuse to ask, and say as much as if nobody answered.
  if (/[^\x20-\x7e]/.test(key)) throw new ServerError("The API key has characters that no key has, expected ASCII.", 401);
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (key !== "") headers["Authorization"] = `Bearer ${key}`;
  let response: Response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  let message: string | null = null;
  try {
    message = messageOf(((await response.json()) as Chunk | null)?.error);
  } catch {
    // No JSON: the status has to do.
  }
  const status = `HTTP ${response.status} ${response.statusText}`.trim();
  throw new ServerError(message ?? status, response.status, seconds(response.headers.get("Retry-After")));
}

async function json<T>(path: string, key: string): Promise<T> {
  const response = await request(path, key, {});
  try {
    return (await response.json()) as T;
  } catch {
    throw new ServerError(`The server's answer to ${path} is no JSON.`, response.status);
  }
}

export async function models(key: string): Promise<string[]> {
  const list = await json<{ data?: { id: string }[] }>("v1/models", key);
  return (list.data ?? []).map((model) => String(model.id));
}

export function memory(key: string): Promise<Memory> {
  return json<Memory>("memory", key);
}

/** The chunks of one answer. Ends with the answer; a stream that ends before it is an error. */
export async function* stream(body: unknown, key: string, signal: AbortSignal): AsyncGenerator<Chunk> {
  const options = { method: "POST", body: JSON.stringify(body), signal };
  const response = await request("v1/chat/completions", key, options);
  if (!response.body) throw new ServerError("The server sent an empty answer.", response.status);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const events = new EventReader();
  let finished = false;
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      const found = events.push(decoder.decode(value, { stream: !done }));
      if (done) found.push(...events.finish());
      for (const data of found) {
        if (data === "[DONE]") return;
        const chunk = parse(data);
        finished ||= (chunk.choices ?? []).some((choice) => Boolean(choice.finish_reason));
        yield chunk;
      }
      if (done && !finished) throw new ServerError("The connection was closed before the answer ended.", 0);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

async function read(reader: ReadableStreamDefaultReader<Uint8Array>, signal: AbortSignal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ServerError("The connection broke before the answer ended.", 0);
  }
}

function parse(data: string): Chunk {
  let chunk: Chunk | null;
  try {
    chunk = JSON.parse(data) as Chunk | null;
  } catch {
    throw new ServerError(`The server sent what is no JSON: ${data.slice(0, 80)}`, 0);
  }
  if (typeof chunk !== "object" || chunk === null) throw new ServerError("The server sent an event without a chunk.", 0);
  if (chunk.error) throw new ServerError(messageOf(chunk.error) ?? "The server gave up without saying why.", 0);
  return chunk;
}
