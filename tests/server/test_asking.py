"""Bodies of application-level requests: JSON, forms, images as they are."""

from __future__ import annotations

import email.message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.contract.model import Entry
from castiron.server import asking, status

ENTRIES = (
    Entry("image", "image"),
    Entry("note", "text"),
    Entry("count", "number", optional=True),
)
IMAGE = ENTRIES[:1]


def parse(kind: str, body: bytes, entries: tuple[Entry, ...] = ENTRIES) -> asking.Asked:
    return asking.parse({b"content-type": kind.encode()}, body, entries, 1000)


def form(*parts: tuple[str, bytes], mark: str = "mark") -> bytes:
    lines = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n'
        f"Content-Type: image/png\r\n\r\n".encode()
        + content
        + b"\r\n"
        for name, content in parts
    ]
    return b"".join(lines) + f"--{mark}--\r\n".encode()


def test_json_is_what_it_says_also_without_a_content_type() -> None:
    assert asking.parse({}, b'{"note": "x"}', ENTRIES, 1000).values == {"note": "x"}
    assert parse("application/json; charset=utf-8", b"{}").values == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a": NaN}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(errors.InputError, match=r"^body: expected"):
        parse("application/json", body)


def test_an_image_alone_is_the_body_itself() -> None:
    for kind in ("image/png", "IMAGE/x-whatever", "application/octet-stream"):
        assert parse(kind, b"\x89PNG", IMAGE).raw == {"image": b"\x89PNG"}


@pytest.mark.parametrize(
    "kind, entries, wanted",
    [
        ("image/png", ENTRIES, "can carry one image and nothing else"),
        ("image/png", (), "can carry one image"),
        ("text/plain", IMAGE, "expected application/json, multipart/form-data or image"),
        ("application/x-www-form-urlencoded", IMAGE, "expected application/json"),
    ],
)
def test_another_kind_of_body_is_415(kind: str, entries: tuple[Entry, ...], wanted: str) -> None:
    with pytest.raises(status.Refusal, match=wanted) as raised:
        parse(kind, b"x", entries)
    assert raised.value.code == 415


def test_long_json_is_413() -> None:
    with pytest.raises(status.Refusal, match="at most 1000 bytes of JSON") as raised:
        parse("application/json", b" " * 1001)
    assert raised.value.code == 413


def test_a_form_holds_files_and_fields() -> None:
    body = form(("image", b"\r\n--mar\r\n\0"), ("note", "é".encode()), ("count", b"2.5"))
    for kind in ("multipart/form-data; boundary=mark", 'Multipart/Form-Data; boundary="mark"'):
        asked = parse(kind, body)
        assert asked.raw == {"image": b"\r\n--mar\r\n\0"}
        assert asked.values == {"note": "é", "count": 2.5}
    assert parse("multipart/form-data; boundary=mark", b"before\r\n" + body).raw == asked.raw


@pytest.mark.parametrize(
    "body, wanted",
    [
        (b"", "body: expected a form with its last boundary"),
        (form(("image", b"x"))[:-4], "body: expected a form with its last boundary"),
        (b"--mark\r\n\r\nx\r\n--mark--", "body: expected each part of the form to tell its name"),
        (b"--mark\r\nx\r\n--mark--", "body: expected each part"),
        (form(("image", b"x"), ("image", b"y")), "image: is given twice"),
        (form(("file", b"x")), "file: unknown; expected image, note, count"),
        (form(("count", b"x")), "count: expected number in a form"),
        (form(("note", b"\xff")), "note: expected text in a form"),
        (form(*[(f"p{index}", b"") for index in range(70)]), "body: expected a form with at most"),
    ],
)
def test_a_wrong_form_is_refused_where_it_is_wrong(body: bytes, wanted: str) -> None:
    with pytest.raises(errors.InputError) as raised:
        parse("multipart/form-data; boundary=mark", body)
    assert str(raised.value).startswith(wanted)


def test_a_form_needs_a_boundary() -> None:
    with pytest.raises(errors.InputError, match=r"headers\.content-type: expected a boundary"):
        parse("multipart/form-data", b"")


@given(st.binary(max_size=200), st.text("abcXYZ019'()+_,-./:=?", min_size=1, max_size=40))
def test_any_content_comes_through_a_form_that_does_not_hold_its_boundary(
    content: bytes, mark: str
) -> None:
    if f"\r\n--{mark}".encode() in b"\r\n" + content:
        return
    kind = email.message.Message()
    kind.add_header("content-type", "multipart/form-data", boundary=mark)
    asked = parse(str(kind["content-type"]), form(("image", content), mark=mark))
    assert asked.raw == {"image": content}


@given(st.binary(max_size=300))
def test_no_body_does_more_than_be_refused(body: bytes) -> None:
    for kind in ("application/json", "multipart/form-data; boundary=a", "multipart/form-data"):
        with pytest.raises((errors.InputError, status.Refusal)):
            parse(kind, body + b"\0")
