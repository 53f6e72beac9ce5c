// JSON that loses nothing: whole numbers beyond 2^53 are read as bigint, -0 stays -0.
// JSON.parse is used where it is exact, which one look at the digits tells.

export type Json =
  | null
  | boolean
  | number
  | bigint
  | string
  | readonly Json[]
  | { readonly [key: string]: Json };

/** Read a JSON text; SyntaxError says where it is wrong. */
export function parse(text: string): Json {
  return /\d{16}/.test(text) ? new Reader(text).document() : (JSON.parse(text) as Json);
}

/** The text of a value; numbers must be finite. */
export function stringify(value: Json): string {
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") return number(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (isList(value)) return `[${value.map(stringify).join(",")}]`;
  const members = Object.entries(value).map(
    ([key, item]) => `${JSON.stringify(key)}:${stringify(item)}`,
  );
  return `{${members.join(",")}}`;
}

/** The shortest digits that read back exactly; JSON.stringify drops the sign of -0. */
export function number(value: number): string {
  if (!Number.isFinite(value)) throw new RangeError(`JSON has no number for ${value}`);
  return Object.is(value, -0) ? "-0.0" : String(value);
}

export function isList(value: Json | undefined): value is readonly Json[] {
  return Array.isArray(value);
}

export function isRecord(value: Json | undefined): value is { readonly [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\.)*"/y;
const SPACE = /[ \t\n\r]*/y;
const WORDS: readonly (readonly [string, Json])[] = [
  ["true", true],
  ["false", false],
  ["null", null],
];

class Reader {
  private place = 0;

  constructor(private readonly text: string) {}

  document(): Json {
    const value = this.value();
    this.skip();
    if (this.place !== this.text.length) throw this.fault("the end");
    return value;
  }

  private value(): Json {
    this.skip();
    const letter = this.text[this.place];
    if (letter === "{") return this.record();
    if (letter === "[") return this.list();
    if (letter === '"') return this.string();
    for (const [word, value] of WORDS) {
      if (this.text.startsWith(word, this.place)) {
        this.place += word.length;
        return value;
      }
    }
    return this.number();
  }

  private record(): Json {
    const found: [string, Json][] = [];
    this.place += 1;
    while (!this.closes("}", found.length > 0)) {
      this.skip();
      const key = this.string();
      this.skip();
      this.expect(":");
      found.push([key, this.value()]);
    }
    return Object.fromEntries(found);
  }

  private list(): Json {
    const found: Json[] = [];
    this.place += 1;
    while (!this.closes("]", found.length > 0)) found.push(this.value());
    return found;
  }

  /** Whether the list ends here; between two members there must be a comma. */
  private closes(end: string, hasMembers: boolean): boolean {
    this.skip();
    if (this.text[this.place] === end) {
      this.place += 1;
      return true;
    }
    if (hasMembers) this.expect(",");
    return false;
  }

  private string(): string {
    return JSON.parse(this.match(STRING, "a string")[0]) as string;
  }

  private number(): number | bigint {
    const found = this.match(NUMBER, "a value");
    const value = Number(found[0]);
    const isWhole = found[1] === undefined && found[2] === undefined;
    return isWhole && !Number.isSafeInteger(value) ? BigInt(found[0]) : value;
  }

  private match(pattern: RegExp, what: string): RegExpExecArray {
    pattern.lastIndex = this.place;
    const found = pattern.exec(this.text);
    if (found === null) throw this.fault(what);
    this.place = pattern.lastIndex;
    return found;
  }

  private expect(letter: string): void {
    if (this.text[this.place] !== letter) throw this.fault(letter);
    this.place += 1;
  }

  private skip(): void {
    SPACE.lastIndex = this.place;
    SPACE.exec(this.text);
    this.place = SPACE.lastIndex;
  }

  private fault(what: string): SyntaxError {
    return new SyntaxError(`JSON: expected ${what} at ${this.place}`);
  }
}
