// Tensors of every datatype of the Open Inference Protocol, and their raw and JSON forms.
// A tensor's data are the bits that travel: FP16 and BF16 are kept as 16-bit patterns, BOOL as
// bytes 0 and 1, BYTES as byte strings, so that nothing is rounded on the way.

import { type Json, number } from "./json.js";

/** What holds the elements of each datatype. */
export interface Elements {
  BOOL: Uint8Array;
  INT8: Int8Array;
  INT16: Int16Array;
  INT32: Int32Array;
  INT64: BigInt64Array;
  UINT8: Uint8Array;
  UINT16: Uint16Array;
  UINT32: Uint32Array;
  UINT64: BigUint64Array;
  FP16: Uint16Array;
  BF16: Uint16Array;
  FP32: Float32Array;
  FP64: Float64Array;
  BYTES: readonly Uint8Array[];
}

export type Datatype = keyof Elements;

/** What one element is in plain TypeScript. */
export interface Plain {
  BOOL: boolean;
  INT8: number;
  INT16: number;
  INT32: number;
  INT64: bigint;
  UINT8: number;
  UINT16: number;
  UINT32: number;
  UINT64: bigint;
  FP16: number;
  BF16: number;
  FP32: number;
  FP64: number;
  BYTES: string | Uint8Array;
}

export interface Tensor<D extends Datatype = Datatype> {
  readonly datatype: D;
  readonly shape: readonly number[];
  /** In row-major order. */
  readonly data: Elements[D];
}

/** A tensor of any one datatype; `datatype` tells which. */
export type AnyTensor = { [D in Datatype]: Tensor<D> }[Datatype];

type Numeric = Exclude<Datatype, "BYTES">;
type NumericArray = Elements[Numeric];

interface Kind {
  readonly bytes: number;
  readonly make: (buffer: ArrayBuffer) => NumericArray;
  /** The element's bits for a plain value; RangeError when it does not fit. */
  readonly write: (value: Json) => number | bigint;
  /** The plain value of an element. */
  readonly read: (element: number | bigint) => number | bigint | boolean;
}

const KINDS: { readonly [D in Numeric]: Kind } = {
  BOOL: { bytes: 1, make: (b) => new Uint8Array(b), write: bool, read: (e) => e !== 0 },
  INT8: small(1, (b) => new Int8Array(b), -128, 127),
  INT16: small(2, (b) => new Int16Array(b), -32768, 32767),
  INT32: small(4, (b) => new Int32Array(b), -2147483648, 2147483647),
  INT64: large((b) => new BigInt64Array(b), -(2n ** 63n), 2n ** 63n - 1n),
  UINT8: small(1, (b) => new Uint8Array(b), 0, 255),
  UINT16: small(2, (b) => new Uint16Array(b), 0, 65535),
  UINT32: small(4, (b) => new Uint32Array(b), 0, 4294967295),
  UINT64: large((b) => new BigUint64Array(b), 0n, 2n ** 64n - 1n),
  FP16: half(5, 10),
  BF16: half(8, 7),
  FP32: { bytes: 4, make: (b) => new Float32Array(b), write: single, read: (e) => e },
  FP64: { bytes: 8, make: (b) => new Float64Array(b), write: double, read: (e) => e },
};

const SPECIAL: ReadonlyMap<string, number> = new Map([
  ["NaN", NaN],
  ["Infinity", Infinity],
  ["-Infinity", -Infinity],
]);

const IS_LITTLE = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

export function isDatatype(name: string): name is Datatype {
  return name === "BYTES" || Object.hasOwn(KINDS, name);
}

/** How many bytes an element takes; undefined for BYTES, of which each has its own length. */
export function widthOf(datatype: Datatype): number | undefined {
  return datatype === "BYTES" ? undefined : KINDS[datatype].bytes;
}

/** How many elements a shape has. */
export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

/** A tensor of elements as they travel, or of plain values. RangeError when they do not fit. */
export function tensor<D extends Datatype>(
  datatype: D,
  shape: readonly number[],
  data: Elements[D] | readonly Plain[D][],
): Tensor<D> {
  for (const dim of shape) {
    if (!Number.isInteger(dim) || dim < 0 || dim > 2147483647) {
      throw new RangeError(`shape: expected whole dims from 0 to 2147483647, found ${dim}`);
    }
  }
  if (data.length !== sizeOf(shape)) {
    throw new RangeError(
      `data: expected ${sizeOf(shape)} values for shape [${shape.join(", ")}], found ${data.length}`,
    );
  }
  const elements = Array.isArray(data) ? fromPlain(datatype, data as readonly Plain[D][]) : data;
  return { datatype, shape: [...shape], data: elements as Elements[D] };
}

/** The elements as plain values; BYTES stay bytes, see `text`. */
export function values<D extends Datatype>(given: Tensor<D>): Plain[D][] {
  if (given.datatype === "BYTES") {
    return [...(given.data as readonly Uint8Array[])] as Plain[D][];
  }
  const { read } = KINDS[given.datatype as Numeric];
  return Array.from(given.data as Iterable<number | bigint>, read) as Plain[D][];
}

/** A byte string as text; TypeError when it is not UTF-8. */
export function text(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}

function fromPlain(datatype: Datatype, plain: readonly unknown[]): Elements[Datatype] {
  if (datatype === "BYTES") {
    return plain.map((item) => (typeof item === "string" ? utf8(item) : (item as Uint8Array)));
  }
  const kind = KINDS[datatype];
  const made = kind.make(new ArrayBuffer(plain.length * kind.bytes));
  plain.forEach((item, index) => {
    made[index] = kind.write(item as Json);
  });
  return made;
}

function utf8(item: string): Uint8Array {
  if (!item.isWellFormed()) throw new RangeError("BYTES: half a surrogate pair is no text");
  return new TextEncoder().encode(item);
}

/** The raw form: little-endian; BYTES with four bytes of length before each. */
export function toBytes(given: Tensor): Uint8Array {
  if (given.datatype === "BYTES") return packed(given.data as readonly Uint8Array[]);
  const data = given.data as NumericArray;
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return IS_LITTLE ? bytes : swapped(bytes, data.BYTES_PER_ELEMENT);
}

/** The opposite of `toBytes`; RangeError when the bytes do not fit. The bytes are copied. */
export function fromBytes(datatype: Datatype, shape: readonly number[], raw: Uint8Array): AnyTensor {
  const size = sizeOf(shape);
  if (datatype === "BYTES") return { datatype, shape, data: unpacked(raw, size) };
  const kind = KINDS[datatype];
  if (raw.byteLength !== size * kind.bytes) {
    throw new RangeError(`expected ${size * kind.bytes} raw bytes, found ${raw.byteLength}`);
  }
  const copy = new Uint8Array(raw);
  const own = IS_LITTLE ? copy : swapped(copy, kind.bytes);
  return { datatype, shape, data: kind.make(own.buffer) } as AnyTensor;
}

/** The JSON list of a tensor. RangeError for byte strings that are not UTF-8. */
export function toJson(given: Tensor): string {
  if (given.datatype === "BYTES") {
    const strings = given.data as readonly Uint8Array[];
    return `[${strings.map((item) => JSON.stringify(decoded(item))).join(",")}]`;
  }
  const parts = values(given as Tensor<Numeric>).map((value) => {
    if (typeof value !== "number") return String(value);
    if (Number.isFinite(value)) return number(value);
    return `"${value}"`;
  });
  return `[${parts.join(",")}]`;
}

function decoded(item: Uint8Array): string {
  try {
    return text(item);
  } catch {
    throw new RangeError("BYTES that are not UTF-8 do not fit into JSON; send them as binary");
  }
}

/** The opposite of `toJson`, for a flat list. */
export function fromJson(
  datatype: Datatype,
  shape: readonly number[],
  data: readonly Json[],
): AnyTensor {
  if (data.length !== sizeOf(shape)) {
    throw new RangeError(`expected ${sizeOf(shape)} values, found ${data.length}`);
  }
  const plain =
    datatype === "INT64" || datatype === "UINT64"
      ? data.map((item) => (typeof item === "number" ? BigInt(item) : item))
      : data;
  return { datatype, shape, data: fromPlain(datatype, plain) } as AnyTensor;
}

function packed(strings: readonly Uint8Array[]): Uint8Array {
  const total = strings.reduce((sum, item) => sum + 4 + item.byteLength, 0);
  const bytes = new Uint8Array(total);
  const view = new DataView(bytes.buffer);
  let place = 0;
  for (const item of strings) {
    view.setUint32(place, item.byteLength, true);
    bytes.set(item, place + 4);
    place += 4 + item.byteLength;
  }
  return bytes;
}

function unpacked(raw: Uint8Array, size: number): Uint8Array[] {
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  const found: Uint8Array[] = [];
  let place = 0;
  while (found.length < size) {
    const end = place + 4 <= raw.byteLength ? place + 4 + view.getUint32(place, true) : Infinity;
    if (end > raw.byteLength) throw new RangeError(`string ${found.length} is cut off`);
    found.push(raw.slice(place + 4, end));
    place = end;
  }
  if (place !== raw.byteLength) throw new RangeError("bytes are left after the last string");
  return found;
}

function swapped(bytes: Uint8Array, size: number): Uint8Array<ArrayBuffer> {
  const found = new Uint8Array(bytes);
  for (let start = 0; start < found.length; start += size) {
    found.subarray(start, start + size).reverse();
  }
  return found;
}

function bool(value: Json): number {
  if (typeof value !== "boolean") throw new RangeError(`BOOL: expected true or false`);
  return value ? 1 : 0;
}

function small(
  bytes: number,
  make: (buffer: ArrayBuffer) => NumericArray,
  low: number,
  high: number,
): Kind {
  const write = (value: Json): number => {
    if (typeof value === "number" && Number.isInteger(value) && value >= low && value <= high) {
      return value;
    }
    throw new RangeError(`expected a whole number from ${low} to ${high}, found ${String(value)}`);
  };
  return { bytes, make, write, read: (element) => element };
}

function large(make: (buffer: ArrayBuffer) => NumericArray, low: bigint, high: bigint): Kind {
  const write = (value: Json): bigint => {
    if (typeof value === "bigint" && value >= low && value <= high) return value;
    throw new RangeError(`expected a bigint from ${low} to ${high}, found ${String(value)}`);
  };
  return { bytes: 8, make, write, read: (element) => element };
}

/** Any number, or one of the words that JSON uses for what it has no number for. */
function double(value: Json): number {
  if (typeof value === "number") return value;
  if (typeof value === "bigint") return Number(value);
  const special = typeof value === "string" ? SPECIAL.get(value) : undefined;
  if (special === undefined) throw new RangeError(`expected a number, found ${String(value)}`);
  return special;
}

function single(value: Json): number {
  const wide = double(value);
  if (Number.isFinite(wide) && !Number.isFinite(Math.fround(wide))) {
    throw new RangeError(`${wide} is beyond FP32`);
  }
  return Math.fround(wide);
}

/** 16-bit floats of so many bits of exponent and of fraction. */
function half(exponentBits: number, fractionBits: number): Kind {
  const least = 2 - 2 ** (exponentBits - 1); // the exponent of the least normal number
  const infinity = (2 ** exponentBits - 1) * 2 ** fractionBits;
  const sign = 0x8000;
  const write = (value: Json): number => {
    const wide = double(value);
    if (Number.isNaN(wide)) return infinity + 2 ** (fractionBits - 1);
    const negative = wide < 0 || Object.is(wide, -0) ? sign : 0;
    const size = Math.abs(wide);
    if (size === Infinity) return negative + infinity;
    const exponent = Math.max(exponentOf(size), least);
    const steps = nearestEven(size / 2 ** (exponent - fractionBits));
    // Steps that reach the next power of two carry into the exponent by themselves.
    const bits = steps + (exponent - least) * 2 ** fractionBits;
    if (bits >= infinity) throw new RangeError(`${wide} is beyond 16-bit floats of this kind`);
    return negative + bits;
  };
  const read = (element: number | bigint): number => {
    const bits = Number(element);
    const exponent = Math.floor((bits % sign) / 2 ** fractionBits);
    const fraction = bits % 2 ** fractionBits;
    const negative = bits >= sign ? -1 : 1;
    if (exponent === 2 ** exponentBits - 1) return fraction === 0 ? negative * Infinity : NaN;
    const steps = exponent === 0 ? fraction : fraction + 2 ** fractionBits;
    return negative * steps * 2 ** (Math.max(exponent, 1) - 1 + least - fractionBits);
  };
  return { bytes: 2, make: (buffer) => new Uint16Array(buffer), write, read };
}

function exponentOf(size: number): number {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, size);
  return ((view.getUint16(0) >> 4) & 0x7ff) - 1023;
}

function nearestEven(size: number): number {
  const down = Math.floor(size);
  const rest = size - down;
  return rest > 0.5 || (rest === 0.5 && down % 2 === 1) ? down + 1 : down;
}
