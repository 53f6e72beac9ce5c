"""What the question who asks costs: a token seen before, a token seen first, and no tokens at all.

    python -m bench.tokens

In one process, without a server: `check` and `require` as each request calls them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from castiron.server.security import access, rights, settings, tokens

Headers = list[tuple[bytes, bytes]]

_KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
_OTHER: Headers = [
    (b"host", b"127.0.0.1:8000"), (b"user-agent", b"bench"), (b"accept", b"*/*"),
    (b"content-type", b"application/octet-stream"), (b"content-length", b"100"),
]  # fmt: skip


def main() -> None:
    """Print microseconds, the best of some rounds."""
    kinds = {name: jwt.get_algorithm_by_name(name) for name in _KEYS}
    entries = [kinds[name].to_jwk(key.public_key(), as_dict=True) for name, key in _KEYS.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jwks.json"
        path.write_text(
            json.dumps({"keys": [entry | {"key_ops": ["verify"]} for entry in entries]})
        )
        given = settings.Settings(jwks=str(path), issuer="bench", audience="bench")
        asyncio.run(_measure(given))


async def _measure(given: settings.Settings) -> None:
    known = tokens.Tokens(given)
    forgetful = tokens.Tokens(dataclasses.replace(given, max_cached_tokens=0))
    rule = {"models": ["resnet-*"], "actions": ["infer"]}
    claims = {"iss": "bench", "aud": "bench", "exp": int(time.time()) + 600, "castiron": rule}
    print("microseconds     seen before   seen first")
    for name, key in _KEYS.items():
        made = jwt.encode(claims, key, name)
        headers = [*_OTHER, (b"authorization", b"Bearer " + made.encode())]
        again = await _best(known.check, headers, 20_000)
        first = await _best(forgetful.check, headers, 200)
        print(f"{name:16} {again:11.2f} {first:12.0f}")
    everyone = access.Fixed(rights.holder("", rights.ACTIONS), is_open=True)
    print(f"{'no tokens':16} {await _best(everyone.check, _OTHER, 20_000):11.2f}")


async def _best(
    check: Callable[[Headers], Awaitable[rights.Grant]], headers: Headers, count: int
) -> float:
    best = float("inf")
    for _ in range(7):
        begun_s = time.perf_counter()
        for _ in range(count):
            (await check(headers)).require("resnet-50", "infer")
        best = min(best, (time.perf_counter() - begun_s) / count)
    return best * 1e6


if __name__ == "__main__":
    main()
