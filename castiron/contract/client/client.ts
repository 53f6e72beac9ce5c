// Asks a server of the Open Inference Protocol, version 2, over HTTP with `fetch`.
// The typed class of one model is written beside this file; `json.ts` and `tensor.ts` hold the
// forms of values.

import { type Json, isList, isRecord, parse, stringify } from "./json.js";
import {
  type AnyTensor,
  type Tensor,
  fromBytes,
  fromJson,
  isDatatype,
  toBytes,
  toJson,
} from "./tensor.js";

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

export interface ClientOptions {
  /** How long a call may take, unless it says otherwise. Default: 30 seconds. */
  readonly timeoutMs?: number;
  /** Sent with every call. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Instead of the global `fetch`. */
  readonly fetch?: typeof fetch;
}

export interface CallOptions {
  readonly timeoutMs?: number;
  /** Ends the call, also on the server. */
  readonly signal?: AbortSignal;
  /** A version's number; absent: the highest one that is ready. */
  readonly version?: string;
}

export interface InferOptions extends CallOptions {
  /** Given back in the reply. */
  readonly id?: string;
  /** How tensors travel, both ways. JSON holds no NaN payloads and no bytes that are not UTF-8. */
  readonly form?: "binary" | "json";
  /** Further parameters of the protocol. */
  readonly parameters?: Readonly<Record<string, Json>>;
}

export interface Reply {
  readonly model: string;
  readonly version: string;
  readonly id: string;
  /** The SHA-256 of the executable that answered. */
  readonly digest: string;
  readonly outputs: ReadonlyMap<string, AnyTensor>;
}

export interface TensorSpec {
  readonly name: string;
  readonly datatype: string;
  /** -1 where the caller chooses. */
  readonly shape: readonly number[];
}

export interface ModelMetadata {
  readonly name: string;
  readonly versions: readonly string[];
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
}

interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

const JSON_LENGTH = "inference-header-content-length";

export class Client {
  private readonly root: string;

  constructor(
    baseUrl: string,
    private readonly options: ClientOptions = {},
  ) {
    this.root = baseUrl.replace(/\/+$/, "");
  }

  /** Whether the server wants requests. */
  async isReady(options: CallOptions = {}): Promise<boolean> {
    return (await this.ask("/v2/health/ready", { method: "GET" }, options)).status === 200;
  }

  /** Whether a model, or one version of it, would answer. */
  async isModelReady(model: string, options: CallOptions = {}): Promise<boolean> {
    const path = `${modelPath(model, options.version)}/ready`;
    return (await this.ask(path, { method: "GET" }, options)).status === 200;
  }

  /** What the server says about a model. */
  async metadata(model: string, options: CallOptions = {}): Promise<ModelMetadata> {
    const answer = await this.ask(modelPath(model, options.version), { method: "GET" }, options);
    const found = succeeded(answer);
    return {
      name: string(found["name"]),
      versions: list(found["versions"]).map(string),
      inputs: list(found["inputs"]).map(spec),
      outputs: list(found["outputs"]).map(spec),
    };
  }

  /** Run a model. `wanted` names the outputs to send; none: all of them. */
  async infer(
    model: string,
    inputs: Readonly<Record<string, Tensor>>,
    wanted: readonly string[] = [],
    options: InferOptions = {},
  ): Promise<Reply> {
    const timeoutMs = this.timeoutOf(options);
    const { head, raw } = request(inputs, wanted, options, timeoutMs);
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (options.form !== "json") {
      headers["content-type"] = "application/octet-stream";
      headers[JSON_LENGTH] = String(head.byteLength);
    }
    const path = `${modelPath(model, options.version)}/infer`;
    const init = { method: "POST", headers, body: joined([head, ...raw]) };
    return reply(await this.ask(path, init, options));
  }

  private timeoutOf(options: CallOptions): number {
    return options.timeoutMs ?? this.options.timeoutMs ?? 30_000;
  }

  private async ask(path: string, init: RequestInit, options: CallOptions): Promise<Answer> {
    const stop = new AbortController();
    const timeoutMs = this.timeoutOf(options);
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      stop.abort();
    }, timeoutMs);
    const onAbort = (): void => stop.abort();
    options.signal?.addEventListener("abort", onAbort);
    if (options.signal?.aborted) stop.abort();
    try {
      const send = this.options.fetch ?? fetch;
      const headers = { ...this.options.headers, ...(init.headers as Record<string, string>) };
      const response = await send(this.root + path, { ...init, headers, signal: stop.signal });
      const body = new Uint8Array(await response.arrayBuffer());
      return { status: response.status, headers: response.headers, body };
    } catch (cause) {
      if (isLate) throw new TimeoutError(`no answer within ${timeoutMs} ms`, { cause });
      if (options.signal?.aborted) throw new AbortedError("the call was ended", { cause });
      throw new ConnectionError(`${this.root}: ${described(cause)}`, { cause });
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", onAbort);
    }
  }
}

function modelPath(model: string, version: string | undefined): string {
  const path = `/v2/models/${encodeURIComponent(model)}`;
  return version === undefined ? path : `${path}/versions/${encodeURIComponent(version)}`;
}

function described(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  return cause.cause instanceof Error ? `${cause.message}: ${cause.cause.message}` : cause.message;
}

function request(
  inputs: Readonly<Record<string, Tensor>>,
  wanted: readonly string[],
  options: InferOptions,
  timeoutMs: number,
): { readonly head: Uint8Array; readonly raw: readonly Uint8Array[] } {
  const isBinary = options.form !== "json";
  const raw: Uint8Array[] = [];
  const listed = Object.entries(inputs).map(([name, given]) => {
    const head = { name, datatype: given.datatype, shape: given.shape };
    if (!isBinary) return stringify(head).replace(/\}$/, () => `,"data":${toJson(given)}}`);
    const bytes = toBytes(given);
    raw.push(bytes);
    return stringify({ ...head, parameters: { binary_data_size: bytes.byteLength } });
  });
  const parameters = {
    timeout: Math.max(1, Math.round(timeoutMs * 1000)), // microseconds
    binary_data_output: isBinary,
    ...options.parameters,
  };
  const members = [`"inputs":[${listed.join(",")}]`, `"parameters":${stringify(parameters)}`];
  if (wanted.length > 0) members.push(`"outputs":${stringify(wanted.map((name) => ({ name })))}`);
  if (options.id !== undefined) members.push(`"id":${stringify(options.id)}`);
  return { head: new TextEncoder().encode(`{${members.join(",")}}`), raw };
}

function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const total = parts.reduce((sum, part) => sum + part.byteLength, 0);
  const bytes = new Uint8Array(total);
  let place = 0;
  for (const part of parts) {
    bytes.set(part, place);
    place += part.byteLength;
  }
  return bytes;
}

function succeeded(answer: Answer): { readonly [key: string]: Json } {
  if (answer.status !== 200) throw refusal(answer);
  const length = answer.headers.get(JSON_LENGTH);
  const head = length === null ? answer.body : answer.body.subarray(0, Number(length));
  return record(decoded(head));
}

function decoded(bytes: Uint8Array): Json {
  try {
    return parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new ProtocolError("expected JSON", { cause });
  }
}

function refusal(answer: Answer): InferenceError {
  const text = new TextDecoder().decode(answer.body);
  let message = text.slice(0, 200);
  try {
    const found = parse(text);
    if (isRecord(found) && typeof found["error"] === "string") message = found["error"];
  } catch {
    // Whatever stands between us and the server answered in its own words.
  }
  const { status } = answer;
  if (status === 504 || status === 408) return new TimeoutError(message);
  if (status === 401 || status === 403) return new DeniedError(status, message);
  if (status === 404) return new NotFoundError(status, message);
  if (status === 429 || status === 503) {
    const seconds = Number(answer.headers.get("retry-after") ?? NaN);
    const reason = answer.headers.get("x-refusal-reason") ?? "";
    return new UnavailableError(status, message, seconds >= 0 ? seconds * 1000 : undefined, reason);
  }
  return status >= 500 ? new ServerError(status, message) : new RequestError(status, message);
}

function reply(answer: Answer): Reply {
  const head = succeeded(answer);
  const length = answer.headers.get(JSON_LENGTH);
  let raw = length === null ? new Uint8Array(0) : answer.body.subarray(Number(length));
  const outputs = new Map<string, AnyTensor>();
  for (const item of list(head["outputs"]).map(record)) {
    const parameters = item["parameters"];
    const size = isRecord(parameters) ? parameters["binary_data_size"] : undefined;
    const count = typeof size === "number" ? size : 0;
    if (count > raw.byteLength) throw new ProtocolError("binary tensors are cut off");
    outputs.set(string(item["name"]), output(item, size === undefined ? null : raw.subarray(0, count)));
    raw = raw.subarray(count);
  }
  return {
    model: string(head["model_name"]),
    version: string(head["model_version"]),
    id: typeof head["id"] === "string" ? head["id"] : "",
    digest: answer.headers.get("x-model-version") ?? "",
    outputs,
  };
}

function output(item: { readonly [key: string]: Json }, raw: Uint8Array | null): AnyTensor {
  const { name, datatype, shape } = spec(item);
  if (!isDatatype(datatype)) throw new ProtocolError(`unknown datatype ${datatype}`);
  try {
    if (raw !== null) return fromBytes(datatype, shape, raw);
    return fromJson(datatype, shape, list(item["data"]));
  } catch (cause) {
    if (cause instanceof RangeError) throw new ProtocolError(`output ${name}: ${cause.message}`);
    throw cause;
  }
}

/** An output that a model's contract promises. */
export function promised<D extends AnyTensor["datatype"]>(
  answer: Reply,
  name: string,
  datatype: D,
): Tensor<D> {
  const found = answer.outputs.get(name);
  if (found?.datatype !== datatype) {
    throw new ProtocolError(
      `output ${name}: expected ${datatype}, found ${found?.datatype ?? "nothing"}`,
    );
  }
  return found as unknown as Tensor<D>;
}

function spec(item: Json): TensorSpec {
  const found = record(item);
  return {
    name: string(found["name"]),
    datatype: string(found["datatype"]),
    shape: list(found["shape"]).map(Number),
  };
}

function list(value: Json | undefined): readonly Json[] {
  if (!isList(value)) throw new ProtocolError("expected a list");
  return value;
}

function record(value: Json | undefined): { readonly [key: string]: Json } {
  if (!isRecord(value)) throw new ProtocolError("expected an object");
  return value;
}

function string(value: Json | undefined): string {
  if (typeof value !== "string") throw new ProtocolError("expected text");
  return value;
}
