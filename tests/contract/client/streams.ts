// The generated TypeScript client against a live server: applications' values, batches, streams.
// Compiled and started by test_typescript_client.py; the last line says how much was checked.

import type { Kinds } from "./application.js";
import { Client, NotFoundError, RequestError, TimeoutError } from "./client.js";
import { Numbers } from "./numbers.js";
import { Pictures } from "./pictures.js";
import { ByteReader, Span, iterated, streamed } from "./stream.js";
import { Strings } from "./strings.js";
import { type AnyTensor, type Tensor, sizeOf, tensor, text, widthOf } from "./tensor.js";
import { Thumbs } from "./thumbs.js";

declare const process: { readonly argv: readonly string[] };

let checked = 0;

function check(holds: boolean, what: string): void {
  checked += 1;
  if (!holds) throw new Error(`failed: ${what}`);
}

async function rejects<E extends Error>(
  call: Promise<unknown>,
  kind: abstract new (...given: never[]) => E,
): Promise<E> {
  try {
    await call;
  } catch (error) {
    check(error instanceof kind, `expected ${kind.name}, found ${String(error)}`);
    return error as E;
  }
  throw new Error(`expected ${kind.name}, nothing was thrown`);
}

async function collected<T>(given: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const each of given) found.push(each);
  return found;
}

async function testPredict(address: string, picture: Uint8Array): Promise<void> {
  const readings = [[1, 2.5], [3, 4]] as const;
  for (const model of [new Pictures(address), new Thumbs(address)]) {
    for (const image of [picture, new Blob([new Uint8Array(picture)])]) {
      const { answer, sums } = await model.predict({ picture: image, readings });
      const labels: Kinds["labels"] = answer;
      check(labels.length === 2 && labels[0]?.label === "red", "the picture is red");
      check((labels[0]?.score ?? 0) > (labels[1]?.score ?? 1), "the best comes first");
      check(sums.shape.join() === "2" && sums.data.join() === "3.5,7", "rows are summed");
    }
    const note = { text: "größe 🦊", language: "de" } as const;
    check((await model.predict({ picture, readings: [], note })).sums.data.length === 0, "a note");
    const wide = await rejects(model.predict({ picture, readings: [[101, 0]] }), RequestError);
    check(wide.path === "readings[0][0]", wide.message);
    const broken = await rejects(
      model.predict({ picture: new Uint8Array([1, 2, 3]), readings }),
      RequestError,
    );
    check(broken.path === "picture", broken.message);
    await rejects(model.predict({ picture, readings }, { timeoutMs: 0.001 }), TimeoutError);
  }
  const server = new Client(address);
  const missing = server.predict("numbers", { a: 1 });
  check((await rejects(missing, NotFoundError)).message.includes("schema"), "no schema");
  const found = await server.predict("pictures", { picture, readings: [[1, 1]], note: undefined });
  check("answer" in found, "an untyped call");
}

async function testBatch(address: string): Promise<void> {
  const strings = new Strings(address);
  const given = ["a", "größe", "", "x".repeat(100_000)];
  const requests = given.map((item) => ({ x_bytes: tensor("BYTES", [1, 1], [item]) }));
  for (const form of ["binary", "json"] as const) {
    const found = await strings.batch(requests, { form });
    const back = found.map((each) => (each.isOk ? each.value.y_bytes.data.map(text)[0] : null));
    check(back.join("|") === given.join("|"), `a batch in ${form}`);
    const came = await collected(strings.batchStream(requests, { form }));
    check(came.length === given.length, "every outcome came");
    for (const { index, outcome } of came) {
      check(outcome.isOk && text(outcome.value.y_bytes.data[0] ?? new Uint8Array()) === given[index],
        `part ${index} in ${form}`);
    }
  }
  const server = new Client(address);
  const mixed = [{}, requests[0] ?? {}, { x_bytes: tensor("FP32", [1, 1], [1]) }];
  const outcomes = await server.batch("strings", mixed);
  check(outcomes.map((each) => each.isOk).join() === "false,true,false", "each has its own");
  const first = outcomes[0];
  check(first?.isOk === false && first.error instanceof RequestError, "a typed error");
  const parts = await collected(server.batchStream("strings", mixed));
  const isOk = new Map(parts.map((each) => [each.index, each.outcome.isOk]));
  check([0, 1, 2].map((index) => isOk.get(index)).join() === "false,true,false", "in parts too");
  await rejects(server.batch("strings", []), RequestError);
  await rejects(collected(server.batchStream("strings", [])), RequestError);
  const none = await server.batch("none", [{}]);
  check(none[0]?.isOk === false && none[0].error instanceof NotFoundError, "no such model");
  for await (const { outcome } of server.batchStream("strings", requests)) {
    check(outcome.isOk, "the first part");
    break; // and nobody reads the others
  }
}

/** All numbers empty, but one of a kind, given as it is. */
function inputsOf(name: string, given: object, width: number): Record<string, AnyTensor> {
  const kinds = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
    "FP16", "BF16", "FP32", "FP64"] as const; // prettier-ignore
  const pairs = kinds.map((kind) => [
    `x_${kind.toLowerCase()}`,
    tensor(kind, [0, width], []) as unknown as AnyTensor,
  ]);
  return { ...Object.fromEntries(pairs), [name]: given } as Record<string, AnyTensor>;
}

const ROWS = 1000;
const COLUMNS = 1024;

async function* made(pieces: number): AsyncGenerator<Uint8Array, void> {
  for (let piece = 0; piece < pieces; piece += 1) {
    const values = new Float32Array((ROWS * COLUMNS) / pieces);
    values.forEach((_, index) => {
      values[index] = piece * values.length + index;
    });
    await Promise.resolve();
    yield new Uint8Array(values.buffer);
  }
}

function streamOf(pieces: AsyncGenerator<Uint8Array, void>): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller): Promise<void> {
      const { done, value } = await pieces.next();
      if (done === true) controller.close();
      else controller.enqueue(value);
    },
  });
}

async function testBodies(address: string): Promise<void> {
  const numbers = new Numbers(address);
  const shape = [ROWS, COLUMNS];
  for (const chunks of [made(1), made(8), streamOf(made(10))]) {
    const given = streamed("FP32", shape, chunks);
    check(given.byteLength === 4 * ROWS * COLUMNS, "how many bytes will come");
    const inputs = inputsOf("x_fp32", given, COLUMNS) as unknown as Parameters<Numbers["infer"]>[0];
    const { y_fp32: found } = await numbers.infer(inputs);
    check(found.shape.join() === shape.join(), "the shape of a streamed tensor");
    check(found.data.every((value, index) => value === index), "every value of it");
  }
  const server = new Client(address);
  for (const size of [4 * ROWS * COLUMNS - 4, 4 * ROWS * COLUMNS + 4]) {
    const wrong = streamed("FP32", [size / 4, 1], made(4));
    await rejects(server.infer("numbers", inputsOf("x_fp32", wrong, 1)), RangeError);
  }
  const json = server.infer("numbers", inputsOf("x_fp32", streamed("FP32", shape, made(1)), COLUMNS),
    [], { form: "json" }); // prettier-ignore
  await rejects(json, RangeError);
  const strings = streamed("BYTES", [1, 1], streamOf(one(new Uint8Array([1, 0, 0, 0, 65]))), 5);
  const reply = await server.infer("strings", { x_bytes: strings });
  const { data } = reply.outputs.get("y_bytes") as unknown as Tensor<"BYTES">;
  check(data.map(text).join() === "A", "BYTES by pieces");
}

async function* one(bytes: Uint8Array): AsyncGenerator<Uint8Array, void> {
  yield bytes;
}

/** A body that is refused while it is sent: the refusal is what the caller gets. */
async function testRefusedBody(address: string): Promise<void> {
  const size = 1 << 28;
  let sent = 0;
  async function* endless(): AsyncGenerator<Uint8Array, void> {
    for (; sent < size; sent += 1 << 20) yield new Uint8Array(1 << 20);
  }
  const large = streamed("UINT8", [1, size], endless());
  const refused = await rejects(
    new Client(address).infer("numbers", inputsOf("x_uint8", large, size)), RequestError,
  ); // prettier-ignore
  check(refused.status === 413 && sent < size, `${refused.status} after ${sent} bytes`);
}

async function testReplies(address: string): Promise<void> {
  const server = new Client(address);
  const wanted = ["y_fp32", "y_uint8", "y_int64"];
  const inputs = inputsOf("x_fp32", streamed("FP32", [ROWS, COLUMNS], made(8)), COLUMNS);
  const seen: string[] = [];
  for await (const output of server.inferStream("numbers", inputs, wanted)) {
    seen.push(output.name);
    check(output.byteLength === (widthOf(output.datatype as "FP32") ?? 0) * sizeOf(output.shape),
      "the bytes that will come");
    if (output.name !== "y_fp32") continue;
    const chunks = await collected(output.chunks);
    check(chunks.length > 4, "it comes by pieces");
    check(chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0) === output.byteLength, "all");
  }
  check(seen.join() === wanted.join(), "every output in order");
  const again = (): AsyncIterable<{ name: string; tensor: () => Promise<AnyTensor> }> =>
    server.inferStream("numbers", inputsOf("x_fp32", streamed("FP32", [ROWS, COLUMNS], made(8)), COLUMNS),
      wanted);
  for await (const output of again()) {
    if (output.name === "y_fp32") continue; // what is not read is dropped
    check((await output.tensor()).data.length === 0, `${output.name} after one that was dropped`);
  }
  for await (const output of again()) {
    const { data } = (await output.tensor()) as unknown as Tensor<"FP32">;
    check(data[ROWS * COLUMNS - 1] === ROWS * COLUMNS - 1, "the last value");
    break; // and the others are not wanted
  }
  await rejects(collected(server.inferStream("none", {})), NotFoundError);
  await rejects(collected(server.inferStream("numbers", inputsOf("x_fp32",
    tensor("FP32", [1, 1], [1]), 1), [], { timeoutMs: 0.001 })), TimeoutError);
}

async function testReaders(): Promise<void> {
  const bytes = new TextEncoder().encode("one\r\ntwo\n\nrest of it");
  for (const size of [1, 2, 7, 100]) {
    async function* cut(): AsyncGenerator<Uint8Array, void> {
      for (let start = 0; start < bytes.length; start += size) {
        yield bytes.subarray(start, start + size);
      }
    }
    const reader = new ByteReader(cut());
    const lines = [await reader.line(), await reader.line(), await reader.line()];
    check(lines.join("|") === "one|two|", `lines by pieces of ${size}`);
    check(text(await reader.exactly(4)) === "rest", "counted bytes");
    const span = new Span(reader, 6);
    for await (const chunk of span.chunks()) {
      check(chunk.byteLength >= 1, "a piece");
      break;
    }
    await span.drop();
    check((await reader.exactly(0)).byteLength === 0, "nothing");
    await reader.exactly(1).then(() => check(false, "the end"), () => check(true, "the end"));
  }
  check((await collected(iterated(streamOf(one(bytes)))))[0]?.length === bytes.length, "a stream");
}

const [, , address = "", file = ""] = process.argv;
const fs = (await import("node:fs" as string)) as { readFileSync(path: string): Uint8Array };
const picture = new Uint8Array(fs.readFileSync(file));
await testReaders();
await testPredict(address, picture);
await testBatch(address);
await testBodies(address);
await testReplies(address);
await testRefusedBody(address);
console.log(`${checked} checks hold`);
