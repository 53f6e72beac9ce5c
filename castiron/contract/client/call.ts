// One call over HTTP with `fetch`: its time, its end, and what its failures are called.

import { AbortedError, ConnectionError, InferenceError, TimeoutError } from "./errors.js";
import { type Chunks, iterated } from "./stream.js";

export interface ClientOptions {
  /** How long a call may take, unless it says otherwise. Default: 30 seconds. */
  readonly timeoutMs?: number;
  /** Sent with every call. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Instead of the global `fetch`. */
  readonly fetch?: typeof fetch;
}

export interface CallOptions {
  /** For all of the call; where an answer is read as it comes, to its last byte. */
  readonly timeoutMs?: number;
  /** Ends the call, also on the server. */
  readonly signal?: AbortSignal;
  /** A version's number; absent: the highest one that is ready. */
  readonly version?: string;
}

/** What is sent; `duplex` is wanted by `fetch` for bodies that are streams. */
export interface Sent extends RequestInit {
  readonly headers?: Record<string, string>;
  readonly duplex?: "half";
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

/** A call under way; `end` must follow. */
export class Call {
  private readonly stop = new AbortController();
  private readonly timer: ReturnType<typeof setTimeout>;
  private readonly onAbort = (): void => this.stop.abort();
  private isLate = false;

  constructor(
    private readonly root: string,
    private readonly options: ClientOptions,
    private readonly timeoutMs: number,
    private readonly signal: AbortSignal | undefined,
  ) {
    this.timer = setTimeout(() => {
      this.isLate = true;
      this.stop.abort();
    }, timeoutMs);
    signal?.addEventListener("abort", this.onAbort);
    if (signal?.aborted === true) this.stop.abort();
  }

  /** Send it; the answer's body is still to be read. */
  send(path: string, sent: Sent): Promise<Response> {
    const send = this.options.fetch ?? fetch;
    const headers = { ...this.options.headers, ...sent.headers };
    return this.guard(send(this.root + path, { ...sent, headers, signal: this.stop.signal }));
  }

  /** What comes of a promise of this call, its failures as those of `errors.ts`. */
  async guard<T>(promise: Promise<T>): Promise<T> {
    try {
      return await promise;
    } catch (cause) {
      throw this.failure(cause);
    }
  }

  /** A body while it comes, its failures as those of `errors.ts`. */
  async *read(body: Chunks): AsyncGenerator<Uint8Array, void> {
    try {
      yield* iterated(body);
    } catch (cause) {
      throw this.failure(cause);
    }
  }

  private failure(cause: unknown): unknown {
    if (cause instanceof InferenceError) return cause;
    // What is wrong with a streamed tensor is the caller's to know.
    if (cause instanceof Error && cause.cause instanceof RangeError) return cause.cause;
    if (cause instanceof RangeError) return cause;
    if (this.isLate) return new TimeoutError(`no answer within ${this.timeoutMs} ms`, { cause });
    if (this.signal?.aborted === true) return new AbortedError("the call was ended", { cause });
    return new ConnectionError(`${this.root}: ${described(cause)}`, { cause });
  }

  /** Nothing more is wanted of it. */
  end(): void {
    clearTimeout(this.timer);
    this.signal?.removeEventListener("abort", this.onAbort);
  }

  /** End it before its answer was read to its end. */
  abort(): void {
    this.end();
    this.stop.abort();
  }
}

function described(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  return cause.cause instanceof Error ? `${cause.message}: ${cause.cause.message}` : cause.message;
}
