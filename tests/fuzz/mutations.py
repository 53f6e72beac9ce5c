"""What is done to right requests: the families of damage, each from dice to a Case.

A Case is what is sent and how: in pieces, with pauses, and how the client ends. The same dice give
the same Case, so that a finding can be sent again.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz import calls, served

WAIT, HALF, ABORT = "wait", "half", "abort"


@dataclass(frozen=True, slots=True)
class Case:
    """``ending``: wait for the server to close, close our sending side, or reset. ``code`` is the
    status that the first answer must have, if that is certain."""

    family: str
    pieces: list[bytes]
    ending: str = WAIT
    pause_s: float = 0.0
    code: int | None = None


_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**31 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1.5, 1e308,
    float("nan"), float("inf"), "", "x", "FP32", "\x00", "\ud800", "\u202e", "A" * 5000, [], [[]],
    {}, [None], [[[[1]]]], {"a": {"a": {}}}, [1] * 1000, "NaN", "Infinity", b"".hex(),
)  # fmt: skip
_ODD_NAMES = ("inputs", "outputs", "name", "shape", "data", "datatype", "parameters", "id",
              "binary_data_size", "binary_data", "binary_data_output", "timeout", "priority",
              "shared_memory_region", "sequence_id", "classification")  # fmt: skip


def _raw(dice: random.Random) -> calls.Request:
    return calls.infer_raw(dice)[0]


def _batch(dice: random.Random) -> calls.Request:
    return calls.batch(dice)[0]


def _predict(dice: random.Random) -> calls.Request:
    return calls.predict(dice)[0]


def _control(dice: random.Random) -> calls.Request:
    return calls.control(dice)[0]


_INFERS = (calls.infer, _raw)
_OTHERS = (_batch, _predict, _control)


def right(dice: random.Random) -> Case:
    """Nothing is wrong: amid all damage these are answered."""
    request = dice.choice([calls.question, *_INFERS, *_OTHERS])(dice)
    if request.body and dice.random() < 0.3:
        request = calls.compressed(request, dice)
    if request.body and dice.random() < 0.2:
        return Case("right", [calls.chunked(request, dice)], code=200)
    return Case("right", [request.encoded()], code=200)


def json_values(dice: random.Random) -> Case:
    """Fields changed, left out, doubled or added anywhere in the JSON."""
    model, found = calls.content(dice)
    changed: Any = found
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        changed = _changed(changed, dice)
    try:
        return Case("json values", [calls.of_content(model, changed).encoded()])
    except RecursionError:
        return Case("json values", [calls.of_content(model, found).encoded()])


def json_text(dice: random.Random) -> Case:
    """JSON that no writer makes: deep, doubled keys, odd numbers, other encodings, cut off."""
    deep = dice.choice([10, 1000, 50_000])
    text = calls.infer(dice).body
    body = dice.choice([
        b"[" * deep, b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep,
        b'{"inputs":' + b"[" * deep + b"NaN" + b"]" * deep + b"}",
        text[: dice.randrange(len(text) + 1)], text + text, text[:-1] + b"," + text[1:],
        text.replace(b"0.5", b"1e999999999"), text.replace(b"1", b"1" * dice.choice([20, 5000])),
        text.decode().encode("utf-16"), b"\xef\xbb\xbf" + text, text.replace(b'"x"', b'"\xff\xfe"'),
        text.replace(b"[", b"[NaN,").replace(b"0.5", b"-Infinity"), b"\x00" * 100, b"", b" " * 999,
        text.replace(b'"', b"'"), b'"' + b"\\ud800" * 100 + b'"', b"-", b"nul", b"1" * 20_000,
    ])  # fmt: skip
    return Case(
        "json text", [calls.Request("POST", "/v2/models/add_one/infer", body=body).encoded()]
    )


def raw_parts(dice: random.Random) -> Case:
    """Raw tensors whose lengths lie, or whose bytes are wrong."""
    _, found, tail = calls.infer_raw(dice)
    model = {"x": "add_one", "w": "words"}.get(found["inputs"][0]["name"], "every")
    told = None
    match dice.randrange(6):
        case 0:
            told = dice.choice([0, 1, len(tail), 10**6, 10**17, 2**63])
        case 1:
            tail = tail[: dice.randrange(len(tail) + 1)]
        case 2:
            tail += dice.randbytes(dice.randint(1, 40))
        case 3:
            tail = dice.randbytes(len(tail))
        case 4:
            tensor = dice.choice(found["inputs"])
            size = dice.choice([-1, 0, 1, 3, 10**9, 2**64, 1.0, "4", None, True])
            tensor["parameters"] = {"binary_data_size": size}
        case _:
            found["inputs"][0]["data"] = [1, 2]
    request = calls.of_raw(model, found, tail, told)
    if dice.random() < 0.15:
        wrong = dice.choice(["-5", "x", "", "1e3", "٣", "+7", " 7 7", "0x10"])
        request.headers = [("Inference-Header-Content-Length", wrong)]
    if dice.random() < 0.1:
        request.headers.append(("Inference-Header-Content-Length", "3"))
    return Case("raw parts", [request.encoded()])


def batches(dice: random.Random) -> Case:
    """Many requests in one body, with fields changed or raw parts that lie."""
    request, found, tail = calls.batch(dice)
    changed: Any = found
    if dice.random() < 0.7:
        changed = _changed(found, dice)
    else:
        tail = dice.choice([tail[: len(tail) // 2], tail + b"xyz", dice.randbytes(len(tail))])
    head = json.dumps(changed).encode()
    told = dice.choice([len(head)] * 5 + [0, 1, len(head) + len(tail) + 1])
    headers = [("Inference-Header-Content-Length", str(told)), *request.headers[1:]]
    text = calls.Request("POST", request.target, headers, head + tail).encoded()
    return Case("batches", [text])


def applications(dice: random.Random) -> Case:
    """Values of applications changed, as JSON and as forms; bytes of forms changed."""
    request, values = calls.predict(dice)
    if dice.random() < 0.7:
        changed = _changed(values, dice)
        is_form = bool(request.headers) and isinstance(changed, dict)
        request = calls.of_values(changed, is_form=is_form)
    else:
        request.body = bytes_changed(request.body, dice)
    if dice.random() < 0.1:
        kinds = ["image/png", "text/html", "", "multipart/form-data", "application/json; x=\xff"]
        request.headers = [("Content-Type", dice.choice(kinds))]
    return Case("applications", [request.encoded()])


def controls(dice: random.Random) -> Case:
    """Loading, unloading and listing, with odd bodies and names."""
    request, content = calls.control(dice)
    if dice.random() < 0.8:
        request = calls.of_json(request.target, _changed(content or {"a": {}}, dice))
    if dice.random() < 0.2:
        name = dice.choice(["none", "..", "%2e%2e%2f", "%00", "\xe9", "spare/x", "", "a" * 300])
        request.target = request.target.replace("spare", name)
    return Case("controls", [request.encoded()])


def compression(dice: random.Random) -> Case:
    """Compressed bodies that are cut, damaged, doubled, bombs, or not what they say."""
    request = calls.compressed(calls.infer(dice), dice)
    body = request.body
    match dice.randrange(7):
        case 0:
            body = body[: dice.randrange(len(body))]
        case 1:
            body = bytes_changed(body, dice)
        case 2:
            body += body
        case 3:
            body += dice.randbytes(8)
        case 4:
            body = zlib.compress(b"[" * dice.choice([served.MAX_BODY_BYTES + 1, 20_000_000]), 9)
            request.headers = [("Content-Encoding", "deflate")]
        case 5:
            names = ["br", "gzip, gzip", "GZIP", "identity", "", "x" * 300, "deflate\t"]
            request.headers = [("Content-Encoding", dice.choice(names))]
        case _:
            request.headers.append(("Content-Encoding", "gzip"))
    request.body = body
    return Case("compression", [request.encoded()])


def body_bytes(dice: random.Random) -> Case:
    """A body with bytes changed, moved, cut out and put in."""
    request = dice.choice(_INFERS)(dice)
    request.body = bytes_changed(request.body, dice)
    return Case("body bytes", [request.encoded()])


def framing(dice: random.Random) -> Case:
    """Any byte of the whole request changed."""
    request = dice.choice([calls.question, *_INFERS])(dice)
    text = request.encoded()
    head, mark, body = text.partition(b"\r\n\r\n")
    return Case("framing", [bytes_changed(head + mark, dice) + body], dice.choice([WAIT, HALF]))


def headers(dice: random.Random) -> Case:
    """Headers doubled, contradicting, huge, many, malformed, or declaring what never comes."""
    request = calls.infer(dice)
    size = len(request.body)
    kind = dice.randrange(10)
    if kind < 4:
        lengths = [f"{size}, {size}", f"+{size}", f"0x{size:x}", "-1", "1e2", "", str(10**11),
                   str(2**63), str(2**64), "9" * 40, str(size + 1), str(max(size - 1, 0)), "\x00"]  # fmt: skip
        request.length = False
        request.headers.append(("Content-Length", dice.choice(lengths)))
        if kind == 0:
            request.headers.append(("Content-Length", str(size)))
        return Case("headers", [request.encoded()], dice.choice([WAIT, HALF]))
    request.headers += dice.choice([
        [("Transfer-Encoding", "chunked")], [("Transfer-Encoding", "gzip, chunked")],
        [("Transfer-Encoding", "identity")], [("Expect", "100-continue")], [("Expect", "x")],
        [("X", "a" * 20_000)], [("X" * 20_000, "a")], [("A", "b")] * 2000, [("", "a")],
        [(" a", "b")], [("a b", "c")], [("A", "b\x00c")], [("A", "\x7f\xff")], [("Host", "b")],
        [("A", "b\r\n c")], [("A", "b\nC: d")], [("Upgrade", "h2c"), ("Connection", "Upgrade")],
        [("Upgrade", "websocket"), ("Connection", "upgrade, close")], [("Connection", "x" * 99)],
        [("Trailer", "Content-Length")], [("TE", "trailers")], [("Content-Type", "\xff")],
    ])  # fmt: skip
    return Case("headers", [request.encoded(close=dice.random() < 0.9)])


def chunks(dice: random.Random) -> Case:
    """Chunked bodies, right and damaged."""
    request = dice.choice(_INFERS)(dice)
    text = calls.chunked(request, dice)
    match dice.randrange(6):
        case 0:
            return Case("chunks", [text], code=200)
        case 1:
            head, mark, body = text.partition(b"\r\n\r\n")
            text = head + mark + bytes_changed(body, dice)
        case 2:
            text = text.replace(b"\r\n\r\n", b"\r\n\r\nffffffffffffffff\r\n", 1)
        case 3:
            text = text[:-2] + dice.choice([b"A: b\r\n\r\n", b"A" * 20_000 + b": b\r\n\r\n"])
        case 4:
            extension = b";a=" + b"b" * dice.choice([1, 30_000]) + b"\r\n"
            head, mark, body = text.partition(b"\r\n\r\n")
            text = head + mark + body.replace(b"\r\n", extension, 1)
        case _:
            text = text[: dice.randrange(len(text))]
    return Case("chunks", [text], dice.choice([WAIT, HALF]))


def pipelined(dice: random.Random) -> Case:
    """Several requests in one write, the last one may be damaged."""
    texts = [calls.infer(dice).encoded(close=False) if dice.random() < 0.5
             else calls.question(dice).encoded(close=False) for _ in range(dice.randint(1, 5))]  # fmt: skip
    last = calls.infer(dice).encoded()
    if dice.random() < 0.5:
        last = bytes_changed(last, dice)
    return Case("pipelined", [b"".join([*texts, last])], code=200)


def slow(dice: random.Random) -> Case:
    """A request that trickles in, whole."""
    text = dice.choice([calls.infer, calls.question])(dice).encoded()
    size = max(1, len(text) // dice.randint(2, 8))
    pieces = [text[first : first + size] for first in range(0, len(text), size)]
    return Case("slow", pieces, pause_s=dice.choice([0.0, 0.01, 0.2]))


def cut_off(dice: random.Random) -> Case:
    """A request that ends early, and a client that waits, stops sending, or goes."""
    text = dice.choice([calls.infer, calls.question])(dice).encoded()
    text = text[: dice.randrange(len(text))]
    return Case("cut off", [text], dice.choice([WAIT, HALF, HALF, ABORT, ABORT]))


def gone(dice: random.Random) -> Case:
    """A whole request whose client does not wait."""
    return Case("gone", [calls.infer(dice).encoded()], dice.choice([HALF, ABORT]))


def places(dice: random.Random) -> Case:
    """Calls that do not exist."""
    route = dice.choice([*calls.ROUTES, "/v2/models/add_one/infer", "/v2/repository/index", "/"])
    pieces = ["..", "%2e%2e", "%00", "%ff", "%", "%zz", "//", "?a=b", "#", ";", "versions", "99",
              "\u00e9", "a" * 3000, "infer", "*", "-1", "0", "1" * 5000, "%F0%9F%98%80", " "]  # fmt: skip
    for _ in range(dice.randint(0, 3)):
        place = dice.randrange(len(route) + 1)
        route = route[:place] + dice.choice(["", "/"]) + dice.choice(pieces) + route[place:]
    methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "HEAD", "PRI",
               "get", "FOO", "G\x00T"]  # fmt: skip
    request = calls.Request(dice.choice(methods), route)
    if dice.random() < 0.3:
        request.body = calls.infer(dice).body
    return Case("places", [request.encoded()])


def noise(dice: random.Random) -> Case:
    """What is no HTTP at all."""
    text = dice.choice([
        dice.randbytes(dice.randint(1, 2000)), b"\x16\x03\x01\x02\x00\x01" + dice.randbytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"\r\n" * 100, b"A" * 100_000, b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET /\r\n", b"\x00" * 5000,
        b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n",
    ])  # fmt: skip
    return Case("noise", [text], dice.choice([WAIT, HALF]))


_FAMILIES: dict[Callable[[random.Random], Case], int] = {
    right: 12, batches: 7, applications: 7, controls: 3, json_values: 18, json_text: 8, raw_parts: 12, compression: 8, body_bytes: 10,
    framing: 10, headers: 6, chunks: 5, pipelined: 3, slow: 2, cut_off: 3, gone: 2, places: 6,
    noise: 2,
}  # fmt: skip


def case(seed: int, index: int) -> Case:
    """The Case of this number in the run of this seed."""
    dice = random.Random(f"{seed} {index}")
    return dice.choices(list(_FAMILIES), list(_FAMILIES.values()))[0](dice)


def _changed(value: Any, dice: random.Random) -> Any:
    """One place of a JSON value changed: replaced, left out, added, or moved."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        copy = dict(value)
        key = dice.choice(list(copy))
        match dice.randrange(6):
            case 0:
                del copy[key]
            case 1:
                copy[dice.choice(_ODD_NAMES)] = dice.choice(_ODD)
            case 2:
                copy[key + dice.choice(["", " ", "\x00"])] = copy.pop(key)
            case _:
                copy[key] = _changed(copy[key], dice)
        return copy
    if isinstance(value, list) and value and dice.random() < 0.7:
        items = list(value)
        place = dice.randrange(len(items))
        match dice.randrange(5):
            case 0:
                del items[place]
            case 1:
                items.insert(place, items[place])
            case 2:
                items.insert(place, dice.choice(_ODD))
            case _:
                items[place] = _changed(items[place], dice)
        return items
    return dice.choice(_ODD)


def bytes_changed(data: bytes, dice: random.Random) -> bytes:
    """Some bytes replaced, flipped, cut out, put in, or copied from elsewhere."""
    found = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 3, 10])):
        place = dice.randrange(len(found) + 1)
        match dice.randrange(6):
            case 0:
                found[place : place + 1] = dice.randbytes(1)
            case 1 if place < len(found):
                found[place] ^= 1 << dice.randrange(8)
            case 2:
                del found[place : place + dice.randint(1, 8)]
            case 3:
                found[place:place] = dice.randbytes(dice.randint(1, 8))
            case 4:
                found[place:place] = dice.choice(
                    [b"\r\n", b"\n", b"\r", b"\x00", b":", b" ", b"\t"]
                )
            case _:
                other = dice.randrange(len(found) + 1)
                found[place : place + 6] = found[other : other + 6]
    return bytes(found)
