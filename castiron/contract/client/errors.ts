// What a call may fail with. Every failure is an InferenceError; its class says what to do.

import { isRecord, parse } from "./json.js";

/** Any failure of a call. */
export class InferenceError extends Error {
  override readonly name: string = "InferenceError";
}

/** The server could not be reached, or the connection broke. */
export class ConnectionError extends InferenceError {
  override readonly name = "ConnectionError";
}

/** No answer in the time allowed, as this client or the server saw it. */
export class TimeoutError extends InferenceError {
  override readonly name = "TimeoutError";
}

/** The caller's signal ended the call. */
export class AbortedError extends InferenceError {
  override readonly name = "AbortedError";
}

/** The answer is not what the protocol, or the model's contract, says. */
export class ProtocolError extends InferenceError {
  override readonly name = "ProtocolError";
}

/** The server refused: `status` is the code of HTTP. */
export class ServerError extends InferenceError {
  override readonly name: string = "ServerError";

  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }

  /** The place of the fault, such as `inputs[0].shape`; empty when the server names none. */
  get path(): string {
    return /^([\w.[\]-]+): /.exec(this.message)?.[1] ?? "";
  }
}

/** The request itself is wrong; another try would be refused as well. */
export class RequestError extends ServerError {
  override readonly name: string = "RequestError";
}

/** No such model or version. */
export class NotFoundError extends RequestError {
  override readonly name = "NotFoundError";
}

/** The server wants a token, or the one that was sent does not allow this call. */
export class DeniedError extends RequestError {
  override readonly name = "DeniedError";
}

/** The server is busy or not ready; try again after `retryAfterMs`. */
export class UnavailableError extends ServerError {
  override readonly name = "UnavailableError";

  constructor(
    status: number,
    message: string,
    /** When to try again; undefined when that would not help. */
    readonly retryAfterMs: number | undefined,
    /** Why, as one word for programs; empty when the server gives none. */
    readonly reason: string,
  ) {
    super(status, message);
  }
}

/** What the server says about a refusal besides its code and text. */
export interface Advice {
  readonly retryAfterMs: number | undefined;
  readonly reason: string;
}

/** The failure that a code of HTTP, with the text of the error body, stands for. */
export function failure(status: number, message: string, advice: Advice): InferenceError {
  if (status === 504 || status === 408) return new TimeoutError(message);
  if (status === 401 || status === 403) return new DeniedError(status, message);
  if (status === 404) return new NotFoundError(status, message);
  if (status === 429 || status === 503) {
    return new UnavailableError(status, message, advice.retryAfterMs, advice.reason);
  }
  return status >= 500 ? new ServerError(status, message) : new RequestError(status, message);
}

/** The failure that an answer of HTTP stands for. */
export function refusal(status: number, headers: Headers, body: Uint8Array): InferenceError {
  const text = new TextDecoder().decode(body);
  let message = text.slice(0, 200);
  try {
    const found = parse(text);
    if (isRecord(found) && typeof found["error"] === "string") message = found["error"];
  } catch {
    // Whatever stands between us and the server answered in its own words.
  }
  const seconds = Number(headers.get("retry-after") ?? NaN);
  const retryAfterMs = seconds >= 0 ? seconds * 1000 : undefined;
  return failure(status, message, { retryAfterMs, reason: headers.get("x-refusal-reason") ?? "" });
}
