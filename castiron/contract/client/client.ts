// Asks a server of the Open Inference Protocol, version 2, over HTTP with `fetch`.
// The typed class of one model is written beside this file; `messages.ts`, `tensor.ts`, `stream.ts`
// and `application.ts` hold the forms of what travels, `call.ts` one call, `errors.ts` failures.

import { type Values, bodyOfValues } from "./application.js";
import { type Answer, Call, type CallOptions, type ClientOptions, type Sent } from "./call.js";
import { ProtocolError, refusal } from "./errors.js";
import type { Json } from "./json.js";
import {
  type Fields,
  type Inputs,
  JSON_LENGTH,
  type Outcome,
  type Reply,
  type Request,
  type TensorSpec,
  decoded,
  list,
  microseconds,
  outcome,
  output,
  parted,
  pieces,
  rawSize,
  record,
  reply,
  request,
  spec,
  string,
} from "./messages.js";
import { ByteReader, Span, bodyOf, concatenated } from "./stream.js";
import type { AnyTensor } from "./tensor.js";

export type { CallOptions, ClientOptions } from "./call.js";
export * from "./errors.js";
export {
  type Fields,
  type Input,
  type Inputs,
  type Outcome,
  type Reply,
  type TensorSpec,
  mapped,
  promised,
} from "./messages.js";

export interface InferOptions extends CallOptions {
  /** Given back in the reply. */
  readonly id?: string;
  /** How tensors travel, both ways. JSON holds no NaN payloads and no bytes that are not UTF-8. */
  readonly form?: "binary" | "json";
  /** Further parameters of the protocol. */
  readonly parameters?: Readonly<Record<string, Json>>;
}

export interface ModelMetadata {
  readonly name: string;
  readonly versions: readonly string[];
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
}

/** An output whose bytes are read as they come. */
export interface StreamedOutput extends TensorSpec {
  readonly byteLength: number;
  /** Raw bytes, to be read before the next output is asked for; what is not read is dropped. */
  readonly chunks: AsyncGenerator<Uint8Array, void>;
  /** All of it, instead of `chunks`. */
  readonly tensor: () => Promise<AnyTensor>;
}

/** One answer of a batch. */
export interface Numbered<T> {
  /** Which request it belongs to. */
  readonly index: number;
  readonly outcome: Outcome<T>;
}

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
    const found = decoded(succeeded(answer).body);
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
    inputs: Inputs,
    wanted: readonly string[] = [],
    options: InferOptions = {},
  ): Promise<Reply> {
    const { path, sent } = this.inference(model, inputs, wanted, options);
    const answer = succeeded(await this.ask(path, sent, options));
    const { head, raw } = parted(answer.headers, answer.body);
    return reply(head, raw, digestOf(answer.headers)).reply;
  }

  /** Run a model, and read one output after the other while they come. */
  async *inferStream(
    model: string,
    inputs: Inputs,
    wanted: readonly string[] = [],
    options: InferOptions = {},
  ): AsyncGenerator<StreamedOutput, void> {
    const { path, sent } = this.inference(model, inputs, wanted, { ...options, form: "binary" });
    yield* this.streamed(path, sent, options, outputsOf);
  }

  /** Run a model on each of many requests, in one call. Each has its own outcome, in order. */
  async batch(
    model: string,
    requests: readonly Inputs[],
    wanted: readonly string[] = [],
    options: InferOptions = {},
  ): Promise<readonly Outcome<Reply>[]> {
    const { path, sent } = this.many(model, requests, wanted, options);
    const answer = succeeded(await this.ask(path, sent, options));
    const { head, raw } = parted(answer.headers, answer.body);
    let rest = raw;
    return list(head["responses"]).map((item) => {
      const found = outcome(record(item), rest);
      rest = found.rest;
      return found.outcome;
    });
  }

  /** The same; each outcome is given as soon as it has come, in any order. */
  async *batchStream(
    model: string,
    requests: readonly Inputs[],
    wanted: readonly string[] = [],
    options: InferOptions = {},
  ): AsyncGenerator<Numbered<Reply>, void> {
    const { path, sent } = this.many(model, requests, wanted, options);
    const headers = { ...sent.headers, accept: "multipart/mixed" };
    yield* this.streamed(path, { ...sent, headers }, options, partsOf);
  }

  /** Ask with an application's values; images are bytes. The answer's values by name. */
  async predict(model: string, values: Values, options: CallOptions = {}): Promise<Fields> {
    const { body, headers } = bodyOfValues(values);
    const timeout = String(microseconds(this.timeoutOf(options)));
    const sent = { method: "POST", headers: { ...headers, timeout }, body };
    const path = `${modelPath(model, options.version)}/predict`;
    return decoded(succeeded(await this.ask(path, sent, options)).body);
  }

  private timeoutOf(options: CallOptions): number {
    return options.timeoutMs ?? this.options.timeoutMs ?? 30_000;
  }

  private inference(
    model: string,
    inputs: Inputs,
    wanted: readonly string[],
    options: InferOptions,
  ): { readonly path: string; readonly sent: Sent } {
    const made = request(inputs, wanted, this.formOf(options));
    return { path: `${modelPath(model, options.version)}/infer`, sent: sentOf(made, options) };
  }

  private many(
    model: string,
    requests: readonly Inputs[],
    wanted: readonly string[],
    options: InferOptions,
  ): { readonly path: string; readonly sent: Sent } {
    const made = requests.map((inputs) => request(inputs, wanted, this.formOf(options)));
    const text = `{"requests":[${made.map((each) => each.text).join(",")}]}`;
    const whole = { text, raw: made.flatMap((each) => each.raw) };
    return { path: `${modelPath(model, options.version)}/batch`, sent: sentOf(whole, options) };
  }

  private formOf(options: InferOptions): Parameters<typeof request>[2] {
    const { id, parameters } = options;
    const timeoutMs = this.timeoutOf(options);
    return { isBinary: options.form !== "json", timeoutMs, id, parameters };
  }

  private async ask(path: string, sent: Sent, options: CallOptions): Promise<Answer> {
    const call = new Call(this.root, this.options, this.timeoutOf(options), options.signal);
    try {
      const response = await call.send(path, sent);
      const body = new Uint8Array(await call.guard(response.arrayBuffer()));
      return { status: response.status, headers: response.headers, body };
    } finally {
      call.end();
    }
  }

  /** What `read` finds in an answer while it comes; the call ends when nobody wants more. */
  private async *streamed<T>(
    path: string,
    sent: Sent,
    options: CallOptions,
    read: (headers: Headers, reader: ByteReader) => AsyncGenerator<T, void>,
  ): AsyncGenerator<T, void> {
    const call = new Call(this.root, this.options, this.timeoutOf(options), options.signal);
    try {
      const response = await call.send(path, sent);
      if (response.status !== 200 || response.body === null) {
        const body = new Uint8Array(await call.guard(response.arrayBuffer()));
        throw refusal(response.status, response.headers, body);
      }
      yield* read(response.headers, new ByteReader(call.read(response.body)));
    } finally {
      call.abort();
    }
  }
}

function modelPath(model: string, version: string | undefined): string {
  const path = `/v2/models/${encodeURIComponent(model)}`;
  return version === undefined ? path : `${path}/versions/${encodeURIComponent(version)}`;
}

/** As one piece, or by pieces where a tensor is one that comes by pieces. */
function sentOf({ text, raw }: Request, options: InferOptions): Sent {
  const head = new TextEncoder().encode(text);
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (options.form !== "json") {
    headers["content-type"] = "application/octet-stream";
    headers[JSON_LENGTH] = String(head.byteLength);
  }
  const held = raw.filter((each): each is Uint8Array => each instanceof Uint8Array);
  if (held.length === raw.length) {
    return { method: "POST", headers, body: concatenated([head, ...held]) };
  }
  return { method: "POST", headers, body: bodyOf(pieces(head, raw)), duplex: "half" };
}

function succeeded(answer: Answer): Answer {
  if (answer.status === 200) return answer;
  throw refusal(answer.status, answer.headers, answer.body);
}

function digestOf(headers: Headers): string {
  return headers.get("x-model-version") ?? "";
}

async function* outputsOf(
  headers: Headers,
  reader: ByteReader,
): AsyncGenerator<StreamedOutput, void> {
  const length = Number(headers.get(JSON_LENGTH) ?? NaN);
  if (!(length > 0)) throw new ProtocolError("expected binary tensors");
  const head = decoded(await reader.exactly(length));
  for (const item of list(head["outputs"]).map(record)) {
    const byteLength = rawSize(item);
    if (byteLength === undefined) throw new ProtocolError("expected a binary tensor");
    const span = new Span(reader, byteLength);
    const tensor = async (): Promise<AnyTensor> => output(item, await span.all());
    yield { ...spec(item), byteLength, chunks: span.chunks(), tensor };
    await span.drop();
  }
}

async function* partsOf(
  headers: Headers,
  reader: ByteReader,
): AsyncGenerator<Numbered<Reply>, void> {
  const boundary = /boundary=([\w-]+)/.exec(headers.get("content-type") ?? "")?.[1];
  if (boundary === undefined) throw new ProtocolError("expected multipart/mixed");
  for (;;) {
    const line = await reader.line();
    if (line === `--${boundary}--`) return;
    if (line === "") continue;
    if (line !== `--${boundary}`) throw new ProtocolError("expected the beginning of a part");
    const fields = await fieldsOf(reader);
    const body = await reader.exactly(Number(fields.get("content-length") ?? 0));
    const { head, raw } = parted({ get: (name) => fields.get(name) ?? null }, body);
    yield { index: Number(fields.get("x-request-index")), outcome: outcome(head, raw).outcome };
  }
}

/** The lines before the content of a part, names in lower case. */
async function fieldsOf(reader: ByteReader): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>();
  for (let line = await reader.line(); line !== ""; line = await reader.line()) {
    const colon = line.indexOf(":");
    found.set(line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim());
  }
  return found;
}
