// The forms of requests and replies: JSON, and binary tensors after it.

import { ProtocolError, failure, type InferenceError } from "./errors.js";
import { type Json, isList, isRecord, parse, stringify } from "./json.js";
import { type StreamedTensor, exactly, isStreamed } from "./stream.js";
import {
  type AnyTensor,
  type Tensor,
  fromBytes,
  fromJson,
  isDatatype,
  toBytes,
  toJson,
} from "./tensor.js";

/** A tensor that is held, or one that is read while it is sent. */
export type Input = Tensor | StreamedTensor;
export type Inputs = Readonly<Record<string, Input>>;
export type Fields = { readonly [key: string]: Json };

export interface Reply {
  readonly model: string;
  readonly version: string;
  readonly id: string;
  /** The SHA-256 of the executable that answered; empty in the answer to a batch. */
  readonly digest: string;
  readonly outputs: ReadonlyMap<string, AnyTensor>;
}

/** What became of one request of a batch. */
export type Outcome<T> =
  | { readonly isOk: true; readonly value: T }
  | { readonly isOk: false; readonly error: InferenceError };

export interface TensorSpec {
  readonly name: string;
  readonly datatype: string;
  /** -1 where the caller chooses. */
  readonly shape: readonly number[];
}

/** How a request is written. */
export interface Form {
  readonly isBinary: boolean;
  readonly timeoutMs: number;
  readonly id?: string | undefined;
  readonly parameters?: Readonly<Record<string, Json>> | undefined;
}

export const JSON_LENGTH = "inference-header-content-length";

/** A request: its JSON, and the raw tensors that follow it. */
export interface Request {
  readonly text: string;
  readonly raw: readonly (Uint8Array | StreamedTensor)[];
}

export function request(inputs: Inputs, wanted: readonly string[], form: Form): Request {
  const raw: (Uint8Array | StreamedTensor)[] = [];
  const listed = Object.entries(inputs).map(([name, given]) => {
    const head = { name, datatype: given.datatype, shape: given.shape };
    if (!form.isBinary) {
      if (isStreamed(given)) throw new RangeError(`${name}: a streamed tensor travels as binary`);
      return stringify(head).replace(/\}$/, () => `,"data":${toJson(given)}}`);
    }
    const bytes = isStreamed(given) ? given : toBytes(given);
    raw.push(bytes);
    return stringify({ ...head, parameters: { binary_data_size: bytes.byteLength } });
  });
  const parameters = {
    timeout: microseconds(form.timeoutMs),
    binary_data_output: form.isBinary,
    ...form.parameters,
  };
  const members = [`"inputs":[${listed.join(",")}]`, `"parameters":${stringify(parameters)}`];
  if (wanted.length > 0) members.push(`"outputs":${stringify(wanted.map((name) => ({ name })))}`);
  if (form.id !== undefined) members.push(`"id":${stringify(form.id)}`);
  return { text: `{${members.join(",")}}`, raw };
}

export function microseconds(timeoutMs: number): number {
  return Math.max(1, Math.round(timeoutMs * 1000));
}

/** JSON and raw tensors, some of them by pieces. */
export async function* pieces(
  head: Uint8Array,
  raw: readonly (Uint8Array | StreamedTensor)[],
): AsyncGenerator<Uint8Array, void> {
  yield head;
  for (const each of raw) {
    if (each instanceof Uint8Array) yield each;
    else yield* exactly(each);
  }
}

/** The JSON object in some bytes. */
export function decoded(bytes: Uint8Array): Fields {
  let found: Json;
  try {
    found = parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new ProtocolError("expected JSON", { cause });
  }
  return record(found);
}

/** The JSON of an answer, and the raw tensors after it. */
export function parted(
  headers: { get(name: string): string | null },
  body: Uint8Array,
): { readonly head: Fields; readonly raw: Uint8Array } {
  const length = headers.get(JSON_LENGTH);
  const end = length === null ? body.byteLength : Number(length);
  return { head: decoded(body.subarray(0, end)), raw: body.subarray(end) };
}

/** How many raw bytes an output has; undefined when it is in the JSON. */
export function rawSize(item: Fields): number | undefined {
  const parameters = item["parameters"];
  const size = isRecord(parameters) ? parameters["binary_data_size"] : undefined;
  return typeof size === "number" ? size : undefined;
}

/** One reply, and the raw bytes that belong to what follows it. */
export function reply(
  head: Fields,
  raw: Uint8Array,
  digest: string,
): { readonly reply: Reply; readonly rest: Uint8Array } {
  let rest = raw;
  const outputs = new Map<string, AnyTensor>();
  for (const item of list(head["outputs"]).map(record)) {
    const size = rawSize(item);
    const count = size ?? 0;
    if (count > rest.byteLength) throw new ProtocolError("binary tensors are cut off");
    const own = size === undefined ? null : rest.subarray(0, count);
    outputs.set(string(item["name"]), output(item, own));
    rest = rest.subarray(count);
  }
  const found = {
    model: string(head["model_name"]),
    version: string(head["model_version"]),
    id: typeof head["id"] === "string" ? head["id"] : "",
    digest,
    outputs,
  };
  return { reply: found, rest };
}

/** What became of one request of a batch, and the raw bytes that follow. */
export function outcome(
  head: Fields,
  raw: Uint8Array,
): { readonly outcome: Outcome<Reply>; readonly rest: Uint8Array } {
  if (typeof head["error"] === "string") {
    const wait = head["retry_after_ms"];
    const retryAfterMs = typeof wait === "number" ? wait : undefined;
    const error = failure(Number(head["status"]), head["error"], { retryAfterMs, reason: "" });
    return { outcome: { isOk: false, error }, rest: raw };
  }
  const found = reply(head, raw, "");
  return { outcome: { isOk: true, value: found.reply }, rest: found.rest };
}

/** The outcome with its value made into another. */
export function mapped<T, U>(given: Outcome<T>, make: (value: T) => U): Outcome<U> {
  return given.isOk ? { isOk: true, value: make(given.value) } : given;
}

export function output(item: Fields, raw: Uint8Array | null): AnyTensor {
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

export function spec(item: Json): TensorSpec {
  const found = record(item);
  return {
    name: string(found["name"]),
    datatype: string(found["datatype"]),
    shape: list(found["shape"]).map(Number),
  };
}

export function list(value: Json | undefined): readonly Json[] {
  if (!isList(value)) throw new ProtocolError("expected a list");
  return value;
}

export function record(value: Json | undefined): Fields {
  if (!isRecord(value)) throw new ProtocolError("expected an object");
  return value;
}

export function string(value: Json | undefined): string {
  if (typeof value !== "string") throw new ProtocolError("expected text");
  return value;
}
