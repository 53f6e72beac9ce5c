// Bytes that come and go by pieces: tensors too large to be held twice, answers read as they come.

import { ProtocolError } from "./errors.js";
import { type Datatype, sizeOf, widthOf } from "./tensor.js";

/** Pieces of bytes, however large each is. */
export type Chunks = ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** An input whose raw bytes are read while they are sent, instead of being held. */
export interface StreamedTensor<D extends Datatype = Datatype> {
  readonly datatype: D;
  readonly shape: readonly number[];
  readonly byteLength: number;
  readonly chunks: Chunks;
}

/** An input by pieces: little-endian, row-major. BYTES must tell how many bytes will come. */
export function streamed<D extends Datatype>(
  datatype: D,
  shape: readonly number[],
  chunks: Chunks,
  byteLength?: number,
): StreamedTensor<D> {
  const width = widthOf(datatype);
  if (width === undefined && byteLength === undefined) {
    throw new RangeError("BYTES: expected byteLength, since it does not follow from the shape");
  }
  const size = width === undefined ? byteLength : width * sizeOf(shape);
  if (size === undefined || (byteLength !== undefined && byteLength !== size)) {
    throw new RangeError(`byteLength: expected ${size}, found ${byteLength}`);
  }
  return { datatype, shape: [...shape], byteLength: size, chunks };
}

export function isStreamed(given: object): given is StreamedTensor {
  return "chunks" in given;
}

/** Any pieces as an iterator; not every browser iterates over its own streams. */
export async function* iterated(chunks: Chunks): AsyncGenerator<Uint8Array, void> {
  if (!("getReader" in chunks)) {
    yield* chunks;
    return;
  }
  const reader = chunks.getReader();
  let isDone = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      isDone = done;
      if (done) return;
      yield value;
    }
  } finally {
    if (!isDone) await reader.cancel().catch(() => undefined);
  }
}

/** The pieces of an input; RangeError when they are not as many bytes as it said. */
export async function* exactly(given: StreamedTensor): AsyncGenerator<Uint8Array, void> {
  let left = given.byteLength;
  for await (const chunk of iterated(given.chunks)) {
    left -= chunk.byteLength;
    if (left < 0) break;
    yield chunk;
  }
  if (left !== 0) {
    const found = left < 0 ? "more" : String(given.byteLength - left);
    throw new RangeError(`a streamed tensor: expected ${given.byteLength} bytes, found ${found}`);
  }
}

/** A body for `fetch` out of pieces. */
export function bodyOf(pieces: AsyncGenerator<Uint8Array, void>): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>({
    async pull(controller): Promise<void> {
      const { done, value } = await pieces.next();
      if (done === true) controller.close();
      else controller.enqueue(value);
    },
    async cancel(): Promise<void> {
      await pieces.return();
    },
  });
}

/** Reads lines and counted bytes out of pieces. ProtocolError when they end too early. */
export class ByteReader {
  private held: Uint8Array = new Uint8Array(0);
  private readonly pieces: AsyncGenerator<Uint8Array, void>;

  constructor(chunks: Chunks) {
    this.pieces = iterated(chunks);
  }

  /** One line without its end. */
  async line(): Promise<string> {
    for (;;) {
      const end = this.held.indexOf(10);
      if (end >= 0) {
        const text = new TextDecoder().decode(this.held.subarray(0, end));
        this.held = this.held.subarray(end + 1);
        return text.replace(/\r$/, "");
      }
      const more = await this.next();
      this.held = concatenated([this.held, more]);
    }
  }

  /** So many bytes at once. */
  exactly(size: number): Promise<Uint8Array> {
    return new Span(this, size).all();
  }

  /** What has come already, or comes next: at least one byte, at most so many. */
  async some(most: number): Promise<Uint8Array> {
    while (this.held.byteLength === 0) this.held = await this.next();
    const part = this.held.subarray(0, most);
    this.held = this.held.subarray(part.byteLength);
    return part;
  }

  private async next(): Promise<Uint8Array> {
    const { done, value } = await this.pieces.next();
    if (done === true) throw new ProtocolError("the answer ends too early");
    return value;
  }
}

/** The next so many bytes of a reader, read by pieces or at once. */
export class Span {
  private left: number;

  constructor(
    private readonly reader: ByteReader,
    size: number,
  ) {
    this.left = size;
  }

  async *chunks(): AsyncGenerator<Uint8Array, void> {
    while (this.left > 0) {
      const part = await this.reader.some(this.left);
      this.left -= part.byteLength;
      yield part;
    }
  }

  async all(): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for await (const part of this.chunks()) parts.push(part);
    return parts.length === 1 && parts[0] !== undefined ? parts[0] : concatenated(parts);
  }

  /** Read past what nobody wanted. */
  async drop(): Promise<void> {
    while (this.left > 0) this.left -= (await this.reader.some(this.left)).byteLength;
  }
}

export function concatenated(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const total = parts.reduce((sum, part) => sum + part.byteLength, 0);
  const bytes = new Uint8Array(total);
  let place = 0;
  for (const part of parts) {
    bytes.set(part, place);
    place += part.byteLength;
  }
  return bytes;
}
