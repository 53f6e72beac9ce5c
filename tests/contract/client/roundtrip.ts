// The generated TypeScript client against a live server: every datatype, bit for bit, both forms.
// Compiled and started by test_typescript_client.py; the last line says how much was checked.

import {
  AbortedError,
  Client,
  ConnectionError,
  DeniedError,
  NotFoundError,
  ProtocolError,
  RequestError,
  TimeoutError,
  UnavailableError,
  promised,
} from "./client.js";
import { number, parse, stringify } from "./json.js";
import { type Inputs, Numbers } from "./numbers.js";
import { INPUTS, Strings } from "./strings.js";
import {
  type AnyTensor,
  type Datatype,
  type Tensor,
  fromBytes,
  isDatatype,
  tensor,
  text,
  toBytes,
  toJson,
  values,
} from "./tensor.js";

declare const process: { readonly argv: readonly string[] };

const NUMERIC = [
  "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
  "FP16", "BF16", "FP32", "FP64",
] as const; // prettier-ignore

// Little-endian bits: NaNs with payloads, a signalling NaN, infinities, -0, subnormals, extremes.
const BITS: Readonly<Record<(typeof NUMERIC)[number], readonly bigint[]>> = {
  BOOL: [0n, 1n],
  INT8: [0x80n, 0x7fn, 0xffn, 0n],
  INT16: [0x8000n, 0x7fffn, 0xffffn],
  INT32: [0x80000000n, 0x7fffffffn, 0xffffffffn],
  INT64: [1n << 63n, (1n << 63n) - 1n, (1n << 53n) + 1n, (1n << 64n) - 1n],
  UINT8: [0n, 0xffn],
  UINT16: [0n, 0xffffn],
  UINT32: [0n, 0xffffffffn],
  UINT64: [0n, (1n << 64n) - 1n, (1n << 53n) + 1n],
  FP16: [0x7e01n, 0xfe00n, 0x7d55n, 0x7c00n, 0xfc00n, 0x8000n, 0x0001n, 0x7bffn, 0x3555n],
  BF16: [0x7fc1n, 0xffc0n, 0x7f81n, 0x7f80n, 0xff80n, 0x8000n, 0x0001n, 0x7f7fn, 0x3eabn],
  FP32: [0x7fc00001n, 0x7f800001n, 0x7f800000n, 0xff800000n, 0x80000000n, 1n, 0x7f7fffffn],
  FP64: [
    0x7ff8000000000001n, 0x7ff0000000000001n, 0x7ff0000000000000n, 0xfff0000000000000n, 1n << 63n,
    1n, 0x7fefffffffffffffn, 0x4340000000000001n, 0x3fd5555555555555n,
  ],
}; // prettier-ignore

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

function throws(call: () => unknown, what: string): void {
  try {
    call();
  } catch {
    checked += 1;
    return;
  }
  throw new Error(`expected a fault: ${what}`);
}

function bytesOf(datatype: Datatype): number {
  return (tensor(datatype, [0], []).data as Uint8Array).BYTES_PER_ELEMENT;
}

function fromBits(datatype: (typeof NUMERIC)[number], rows: number): AnyTensor {
  const bits = BITS[datatype];
  const size = bytesOf(datatype);
  const raw = new Uint8Array(bits.length * size);
  bits.forEach((pattern, index) => {
    for (let byte = 0; byte < size; byte += 1) {
      raw[index * size + byte] = Number((pattern >> BigInt(8 * byte)) & 0xffn);
    }
  });
  return fromBytes(datatype, rows === 1 ? [1, bits.length] : [bits.length, 1], raw);
}

function isSame(one: AnyTensor, other: AnyTensor): boolean {
  const left = toBytes(one);
  const right = toBytes(other);
  return (
    one.datatype === other.datatype &&
    one.shape.join() === other.shape.join() &&
    left.length === right.length &&
    left.every((byte, index) => byte === right[index])
  );
}

/** All numbers at once; `make` gives the tensor of each datatype. */
function inputsOf(make: (datatype: (typeof NUMERIC)[number]) => AnyTensor): Inputs {
  const pairs = NUMERIC.map((name) => [`x_${name.toLowerCase()}`, make(name)] as const);
  return Object.fromEntries(pairs) as unknown as Inputs;
}

async function testNumbers(server: Client, form: "binary" | "json"): Promise<void> {
  const inputs = inputsOf((name) => fromBits(name, 0));
  const reply = await server.infer("numbers", { ...inputs }, [], { form });
  for (const name of NUMERIC) {
    const found = reply.outputs.get(`y_${name.toLowerCase()}`);
    if (found === undefined) throw new Error(`no ${name}`);
    if (form === "binary") {
      check(isSame(found, fromBits(name, 0)), `${name} comes back bit for bit`);
      continue;
    }
    const wanted = values(fromBits(name, 0) as Tensor);
    values(found as Tensor).forEach((value, index) => {
      check(Object.is(value, wanted[index]), `${name}[${index}] in JSON`);
    });
  }
}

async function testEmpty(server: Client): Promise<void> {
  for (const form of ["binary", "json"] as const) {
    for (const shape of [[0, 0], [0, 5], [3, 0]]) {
      const inputs = inputsOf((name) => tensor(name, shape, []) as unknown as AnyTensor);
      const reply = await server.infer("numbers", { ...inputs }, [], { form });
      for (const found of reply.outputs.values()) {
        check(found.shape.join() === shape.join() && found.data.length === 0, `empty ${form}`);
      }
    }
  }
}

async function testStrings(address: string): Promise<void> {
  const strings = new Strings(address);
  check(await strings.isReady(), "ready");
  check(INPUTS[0]?.datatype === "BYTES", "specs");
  const plain = ["", "a\0b", "größe 🦊", "\ufeffmark", "x".repeat(70_000)];
  const given = tensor("BYTES", [5, 1], plain);
  for (const form of ["binary", "json"] as const) {
    const { y_bytes: found } = await strings.infer({ x_bytes: given }, { form });
    check(found.data.map(text).join("|") === plain.join("|"), `strings as ${form}`);
  }
  const wild = tensor("BYTES", [1, 2], [new Uint8Array([0xff, 0, 0xfe]), new Uint8Array(0)]);
  const { y_bytes: same } = await strings.infer({ x_bytes: wild });
  check(isSame(same, wild), "bytes that are no text");
  await rejects(strings.infer({ x_bytes: wild }, { form: "json" }), RangeError);
  const parameters = { binary_data_output: false };
  const refused = await rejects(strings.infer({ x_bytes: wild }, { parameters }), RequestError);
  check(refused.path === "outputs.y_bytes" && refused.status === 400, refused.message);
}

async function testTyped(address: string): Promise<void> {
  const numbers = new Numbers(address, { timeoutMs: 20_000 });
  const inputs = inputsOf((name) => fromBits(name, 1));
  // Rows of one element each would not share their columns; one row of each datatype neither.
  await rejects(numbers.infer(inputs), RequestError);
  const single = inputsOf((name) => fromBits(name, 0));
  const outputs = await numbers.infer(single, { id: "seven", version: "1" });
  const wide: BigInt64Array = outputs.y_int64.data;
  check(wide[0] === -(2n ** 63n), "the least INT64 is a bigint");
  const exact: Float64Array = outputs.y_fp64.data;
  check(exact[7] === 9007199254740994, "FP64");
}

async function testCalls(address: string): Promise<void> {
  const server = new Client(address);
  check(await server.isReady(), "the server is ready");
  check(!(await server.isModelReady("none")), "no such model");
  check((await server.metadata("strings")).inputs[0]?.shape.join() === "-1,-1", "metadata");
  const missing = await rejects(server.infer("none", {}), NotFoundError);
  check(missing.message.includes("none"), missing.message);
  const wrong = await rejects(server.infer("strings", {}), RequestError);
  check(wrong.path === "inputs", wrong.message);
  const given = { x_bytes: tensor("BYTES", [1, 1], ["a"]) };
  const reply = await server.infer("strings", given, ["y_bytes"], { id: "é", version: "1" });
  check(reply.id === "é" && reply.version === "1" && reply.model === "strings", "names");
  check(reply.digest.startsWith("sha256:"), "digest");
  throws(() => promised(reply, "y_bytes", "FP32"), "another datatype than promised");
  const late = { parameters: { timeout: 1 } };
  await rejects(server.infer("strings", given, [], late), TimeoutError);
}

async function testEnds(address: string, silent: string): Promise<void> {
  const given = { x_bytes: tensor("BYTES", [1, 1], ["a"]) };
  const waiting = new Client(silent, { timeoutMs: 200 });
  const late = await rejects(waiting.infer("strings", given), TimeoutError);
  check(late.message.includes("200 ms"), late.message);
  const stop = new AbortController();
  const call = new Client(silent).infer("strings", given, [], { signal: stop.signal });
  setTimeout(() => stop.abort(), 50);
  await rejects(call, AbortedError);
  const signal = AbortSignal.abort();
  await rejects(new Client(address).infer("strings", given, [], { signal }), AbortedError);
  await rejects(new Client("http://127.0.0.1:1").isReady(), ConnectionError);
  const busy = new Response('{"error": "full"}', {
    status: 503,
    headers: { "retry-after": "2", "x-refusal-reason": "full" },
  });
  const full = new Client(address, { fetch: () => Promise.resolve(busy) }).metadata("strings");
  const refused = await rejects(full, UnavailableError);
  check(refused.retryAfterMs === 2000 && refused.reason === "full", "when to try again");
  const denied = new Response('{"error": "no token"}', { status: 401 });
  const closed = new Client(address, { fetch: () => Promise.resolve(denied) });
  await rejects(closed.metadata("strings"), DeniedError);
  const answer = (): Promise<Response> => Promise.resolve(new Response("<html>", { status: 200 }));
  await rejects(new Client(address, { fetch: answer }).metadata("strings"), ProtocolError);
}

/** 16-bit floats: every pattern reads and writes back; halfway goes to the even neighbour. */
function testHalves(datatype: "FP16" | "BF16", infinity: number, one: number): void {
  const patterns = Uint16Array.from({ length: infinity }, (_, index) => index);
  const plain = values({ datatype, shape: [infinity], data: patterns });
  check(plain[one] === 1 && plain[0] === 0, `${datatype} of 1 and 0`);
  const back = tensor(datatype, [infinity], plain).data;
  const halfway = plain.slice(1).map((value, index) => (value + (plain[index] ?? NaN)) / 2);
  const rounded = tensor(datatype, [halfway.length], halfway).data;
  const above = tensor(datatype, [halfway.length], halfway.map((v) => v * (1 + 2 ** -40))).data;
  let wrong = 0;
  halfway.forEach((_, index) => {
    if (back[index] !== index || plain[index] === plain[index + 1]) wrong += 1;
    if (rounded[index] !== index + (index % 2) || above[index] !== index + 1) wrong += 1;
  });
  check(wrong === 0, `${wrong} patterns of ${datatype} are wrong`);
  check(tensor(datatype, [1], [-0]).data[0] === 0x8000, "-0");
  const greatest = plain[infinity - 1] ?? NaN;
  throws(() => tensor(datatype, [1], [greatest * 1.01]), "beyond the greatest");
}

function testForms(): void {
  check(parse("[9007199254740993]")?.toString() === "9007199254740993", "bigint");
  check(stringify(parse('{"a": [-0.0, 1e21, null, true, "\\u00e9", 18446744073709551615]}')) ===
    '{"a":[-0.0,1e+21,null,true,"é",18446744073709551615]}', "JSON");
  check(Object.is(Number(parse("-0")), -0) && number(-0) === "-0.0", "-0");
  for (const bad of ["[1234567890123456,]", "[1234567890123456", '{"a":1234567890123456,}',
    "1234567890123456 2", "[01234567890123456]", "nul1234567890123456"]) {
    throws(() => parse(bad), bad);
  }
  throws(() => tensor("INT8", [1], [128]), "INT8 of 128");
  throws(() => tensor("UINT64", [1], [-1n]), "UINT64 of -1");
  throws(() => tensor("FP32", [1], [1e39]), "FP32 of 1e39");
  throws(() => tensor("FP32", [2], [1]), "another number of values");
  throws(() => tensor("FP32", [-1], []), "a negative dim");
  throws(() => tensor("BYTES", [1], ["\ud800"]), "half a surrogate pair");
  throws(() => fromBytes("INT16", [1], new Uint8Array(3)), "another number of bytes");
  throws(() => fromBytes("BYTES", [1], new Uint8Array([5, 0, 0, 0, 1])), "a string cut off");
  throws(() => fromBytes("BYTES", [0], new Uint8Array(1)), "bytes left");
  check(toJson(tensor("FP32", [4], [NaN, Infinity, -Infinity, -0])) ===
    '["NaN","Infinity","-Infinity",-0.0]', "special values");
  check(isDatatype("BF16") && !isDatatype("toString") && !isDatatype("FP8"), "datatypes");
}

const [, , address = "", silent = ""] = process.argv;
testForms();
testHalves("FP16", 0x7c00, 0x3c00);
testHalves("BF16", 0x7f80, 0x3f80);
const server = new Client(address);
await testNumbers(server, "binary");
await testNumbers(server, "json");
await testEmpty(server);
await testStrings(address);
await testTyped(address);
await testCalls(address);
await testEnds(address, silent);
console.log(`${checked} checks hold`);
