"""Keys that change while tokens are checked: files replaced, URLs asked again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from castiron import errors
from castiron.server import status
from castiron.server.security import settings, source, tokens
from tests.server.security import issuer


def opened(place: str) -> tokens.Tokens:
    return tokens.Tokens(
        settings.Settings(jwks=place, issuer=issuer.ISSUER, audience=issuer.AUDIENCE)
    )


def headers(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + token.encode())]


def published(*numbers: int) -> str:
    return issuer.key_set(*(issuer.public("ES256", f"ES256-{n}", n) for n in numbers))


def replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


async def code(access: tokens.Tokens, token: str) -> int:
    try:
        await access.check(headers(token))
    except status.Refusal as refusal:
        return refusal.code
    return 200


def test_a_new_key_works_at_once_and_an_old_one_until_it_leaves(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    replace(path, published(0))
    access = opened(str(path))
    old, new = issuer.token(number=0), issuer.token(number=1)

    async def run() -> None:
        assert [await code(access, old), await code(access, new)] == [200, 401]
        replace(path, published(0, 1))
        assert [await code(access, new), await code(access, old)] == [200, 200]
        replace(path, published(1))
        access.tick()
        assert [await code(access, new), await code(access, old)] == [200, 401]

    asyncio.run(run())


def test_a_kid_with_another_key_behind_it_takes_its_old_tokens_along(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    replace(path, issuer.key_set(issuer.public("ES256", "ES256-0", 0)))
    access = opened(str(path))
    token = issuer.token(number=0)
    assert asyncio.run(code(access, token)) == 200
    replace(path, issuer.key_set(issuer.public("ES256", "ES256-0", 1)))
    access.tick()
    assert asyncio.run(code(access, token)) == 401


def test_a_broken_or_missing_file_changes_nothing_until_it_is_good_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jwks"
    replace(path, published(0))
    access = opened(str(path))
    token = issuer.token(number=0)
    for text in ("", published(1)[:-5], issuer.key_set(issuer.private("ES256"))):
        path.write_text(text)
        access.tick()
        assert asyncio.run(code(access, token)) == 200
    assert caplog.text.count("is not used, the keys before it stay") == 3
    path.unlink()
    for _ in range(3):
        access.tick()
        assert asyncio.run(code(access, token)) == 200
    assert caplog.text.count("stay") == 4
    replace(path, published(1))
    access.tick()
    assert asyncio.run(code(access, token)) == 401
    replace(path, '{"keys": []}')
    access.tick()
    assert asyncio.run(code(access, issuer.token(number=1))) == 401


def test_what_cannot_be_a_source_is_told_at_the_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("no")
    only_secrets = tmp_path / "secrets"
    only_secrets.write_text(issuer.key_set({"kty": "oct", "k": "AAAA"}))
    for place, told in (
        (str(tmp_path / "nowhere"), "No such file"), (str(bad), "expected a JSON Web Key Set"),
        (str(only_secrets), "expected a key that can be used"),
        ("https://127.0.0.1/jwks", "expected a file, or http:// to 127.0.0.1"),
        ("http://issuer.example/jwks", "expected a file, or http:// to 127.0.0.1"),
        ("http://127.0.0.1@issuer.example/", "expected a file, or http://"),
        ("http://user@127.0.0.1/", "expected a file, or http://"),
        ("http://127.0.0.1:x/", "expected a URL"), ("http://127.0.0.1/a b", "without spaces"),
        ("http://2130706433/", "expected a file, or http://"),
    ):  # fmt: skip
        with pytest.raises(errors.CastironError) as found:
            opened(place)
        assert told in str(found.value)


class Keys:
    """A server of keys on loopback; ``answer`` is written to whoever asks."""

    def __init__(self) -> None:
        self.answer = b""
        self.num_asked = 0
        self.url = ""

    def publish(self, text: str, code: int = 200) -> None:
        self.answer = f"HTTP/1.1 {code} X\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.num_asked += 1
        writer.write(self.answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Keys]:
    served = Keys()
    server = await asyncio.start_server(served.take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    served.url = f"http://127.0.0.1:{port}/jwks?all=1"
    async with server:
        yield served


def in_loop(run: Callable[[Keys, tokens.Tokens], Any]) -> None:
    async def main() -> None:
        async with serving() as served:
            served.publish(published(0))
            access = opened(served.url)
            try:
                await run(served, access)
            finally:
                access.close()

    asyncio.run(main())


def test_keys_of_a_url_are_asked_for_when_they_are_needed() -> None:
    async def run(served: Keys, access: tokens.Tokens) -> None:
        assert await code(access, issuer.token(number=0)) == 200
        served.publish(published(1))
        assert await code(access, issuer.token(number=1)) == 200
        assert await code(access, issuer.token(number=0)) == 401
        assert served.num_asked == 3

    in_loop(run)


def test_unknown_keys_ask_at_most_once_a_second_however_many_come() -> None:
    async def run(served: Keys, access: tokens.Tokens) -> None:
        assert await code(access, issuer.token(number=0)) == 200
        asked = [code(access, issuer.token(number=1)) for _ in range(100)]
        codes = await asyncio.gather(*asked)
        assert set(codes) == {401, 503}
        assert codes.count(401) == 64
        assert served.num_asked <= 3

    in_loop(run)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 X\r\ncontent-length: 11\r\n\r\n" + b'{"keys":[]}',
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n" + b" " * 2_000_000,
    ],
)  # fmt: skip
def test_until_a_first_set_is_there_nobody_is_told_that_a_token_is_bad(answer: bytes) -> None:
    async def run(served: Keys, access: tokens.Tokens) -> None:
        served.answer = answer
        assert await code(access, issuer.token(number=0)) == 503
        served.publish(published(0))
        assert await code(access, issuer.token(number=0)) == 200

    in_loop(run)


def test_a_url_that_fails_is_left_alone_for_longer_each_time() -> None:
    clock = [1000.0]

    async def run(served: Keys, access: tokens.Tokens) -> None:
        asked = access._source
        assert isinstance(asked, source.UrlSource)
        asked._now = lambda: clock[0]
        served.answer = b""
        asked_at = []
        for _ in range(400):
            before = served.num_asked
            access.tick()
            if asked._task is not None:
                await asyncio.wait({asked._task})
            if served.num_asked > before:
                asked_at.append(clock[0])
            clock[0] += 1
        pauses = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
        assert pauses[0] <= 3
        assert 45 <= max(pauses) <= 75
        assert 5 <= len(pauses) <= 20

    in_loop(run)


def test_a_file_replaced_again_and_again_under_load_never_makes_a_wrong_answer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jwks"
    replace(path, published(0))
    access = opened(str(path))
    good = {number: issuer.token(number=number) for number in range(6)}
    bad = issuer.signed("{}", {"alg": "ES256", "kid": "ES256-0"}, issuer.key("ES256", 9))

    async def run() -> None:
        for number in range(5):
            replace(path, published(number, number + 1))
            for _ in range(20):
                assert await code(access, good[number]) == 200
                assert await code(access, good[number + 1]) == 200
                assert await code(access, bad) == 401
            replace(path, published(number + 1))
            access.tick()
            assert await code(access, good[number]) == 401

    asyncio.run(run())
