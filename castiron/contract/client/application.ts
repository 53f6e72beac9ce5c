// Values of applications instead of tensors: text, images, tables; labels, boxes.

import { ProtocolError } from "./errors.js";
import { type Json, isList, isRecord, stringify } from "./json.js";
import type { Fields } from "./messages.js";

/** An image file as it is, such as the bytes of a JPEG. */
export type Image = Uint8Array | Blob;

/** What a value of a request may be. */
export type Value = Json | Image;
export type Values = Readonly<Record<string, Value | undefined>>;

/** One of a ranking, the best first. */
export interface Label {
  readonly index: number;
  readonly score: number;
  readonly label?: string;
}

/** A place in a picture: left, top, right, bottom, in its own pixels. */
export interface Box extends Label {
  readonly box: readonly [number, number, number, number];
}

/** An array as it is, in row-major order. */
export type Shaped = {
  readonly shape: readonly number[];
  readonly data: readonly Json[];
};

/** What each kind of value is in a reply. */
export interface Kinds {
  text: string;
  number: number;
  flag: boolean;
  table: readonly (readonly number[])[];
  labels: readonly Label[];
  boxes: readonly Box[];
  tensor: Shaped;
  image: string;
}

/** A body for the call predict: a form when an image is in it, else JSON. */
export function bodyOfValues(values: Values): { body: BodyInit; headers: Record<string, string> } {
  const given = Object.entries(values).filter((pair): pair is [string, Value] => {
    return pair[1] !== undefined;
  });
  if (!given.some(([, value]) => isImage(value))) {
    const body = stringify(Object.fromEntries(given) as Fields);
    return { body, headers: { "content-type": "application/json" } };
  }
  const form = new FormData();
  for (const [name, value] of given) {
    if (isImage(value)) form.set(name, blobOf(value), name);
    else form.set(name, typeof value === "string" ? value : stringify(value));
  }
  return { body: form, headers: {} }; // fetch says which boundary it chose
}

/** An image as text, for models that take it only so. */
export async function base64(image: Image): Promise<string> {
  const bytes = new Uint8Array(await blobOf(image).arrayBuffer());
  let text = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(text);
}

function isImage(value: Value): value is Image {
  return value instanceof Uint8Array || value instanceof Blob;
}

function blobOf(image: Image): Blob {
  return image instanceof Blob ? image : new Blob([new Uint8Array(image)]);
}

const CHECKS: { readonly [K in keyof Kinds]: (value: Json) => boolean } = {
  text: (value) => typeof value === "string",
  image: (value) => typeof value === "string",
  number: (value) => typeof value === "number" || typeof value === "bigint",
  flag: (value) => typeof value === "boolean",
  table: (value) => isList(value) && value.every(isList),
  labels: (value) => isList(value) && value.every(isLabel),
  boxes: (value) => isList(value) && value.every((item) => isLabel(item) && isBox(item)),
  tensor: (value) => isRecord(value) && isList(value["shape"]) && isList(value["data"]),
};

function isLabel(value: Json): boolean {
  return isRecord(value) && typeof value["index"] === "number";
}

function isBox(value: Json): boolean {
  return isRecord(value) && isList(value["box"]) && value["box"].length === 4;
}

/** A value that a model's contract promises. ProtocolError when it is another. */
export function promisedValue<K extends keyof Kinds>(found: Fields, name: string, kind: K): Kinds[K] {
  const value = found[name];
  if (value === undefined || !CHECKS[kind](value)) {
    throw new ProtocolError(`${name}: expected ${kind}, found ${shown(value)}`);
  }
  return value as unknown as Kinds[K];
}

function shown(value: Json | undefined): string {
  return value === undefined ? "nothing" : stringify(value).slice(0, 60);
}
