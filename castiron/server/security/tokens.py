"""Access by tokens (JWT) that one of the issuer's keys has signed.

Tokens found good are remembered by digest until they expire, so that the next request with one
costs about two microseconds. Keys that leave the issuer's set take the tokens they signed along.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from castiron import errors
from castiron.server import status
from castiron.server.security import access, bearer, claims, keys, rights, source
from castiron.server.security import settings as security_settings


class Tokens:
    """Whoever has a token that one of the issuer's keys has signed."""

    __slots__ = (
        "_algorithms", "_expected", "_max_bytes", "_max_cached", "_now", "_source", "_verified",
        "is_open",
    )  # fmt: skip

    def __init__(
        self, settings: security_settings.Settings, now: Callable[[], float] = time.time
    ) -> None:
        self._algorithms = _algorithms(settings.algorithms)
        if not settings.issuer or not settings.audience:
            raise errors.CastironError(
                "--jwks: expected --issuer and --audience too; without them the tokens of other "
                "services, signed by the same keys, would be taken"
            )
        self._expected = claims.Expected(
            settings.issuer, settings.audience, settings.leeway_s, settings.rights_claim
        )
        self._max_bytes = settings.max_token_bytes
        self._max_cached = settings.max_cached_tokens
        self._now = now
        self._verified: dict[bytes, rights.Grant] = {}
        self._source = source.open_source(settings.jwks, settings.keys_refresh_s, self._forget)
        self.is_open = False

    async def check(self, headers: access.Headers) -> rights.Grant:
        """See ``access.Access``."""
        token = bearer.token_of(headers)
        digest = hashlib.sha256(token).digest()
        grant = self._verified.get(digest)
        if grant is not None:
            if self._now() < grant.until_s:
                return grant
            del self._verified[digest]
        try:
            grant = await self._verify(token)
        except bearer.TokenFault as fault:
            raise bearer.unauthenticated(str(fault), fault.why) from None
        if len(self._verified) >= self._max_cached and self._verified:
            del self._verified[next(iter(self._verified))]
        if self._max_cached and grant.key_print in self._source.keys.prints:
            self._verified[digest] = grant
        return grant

    def require_control(self, grant: rights.Grant, model: str) -> None:
        """Never: those who may have a port of their own, where it is written down."""
        grant.require_sight(model)
        raise rights.forbidden("models are loaded and unloaded on the admin port")

    def tick(self) -> None:
        """Look for other keys when it is time."""
        self._source.tick()

    def close(self) -> None:
        """Stop looking."""
        self._source.close()

    async def _verify(self, token: bytes) -> rights.Grant:
        head = bearer.head_of(token, self._max_bytes)
        if head.algorithm not in self._algorithms:
            raise bearer.TokenFault("alg: this algorithm is not taken here", "algorithm")
        key = await self._key(head)
        return claims.grant_of(
            bearer.payload_of(token, key), self._expected, key.print, self._now()
        )

    async def _key(self, head: bearer.Head) -> keys.Key:
        key = self._found(head)
        if key is None:
            await self._source.look()
            key = self._found(head)
        if key is None:
            if not self._source.is_known:
                raise status.Refusal(503, "the issuer's keys are not here yet", status.NOT_READY)
            raise bearer.TokenFault("kid: no key of the issuer has this kid and algorithm", "key")
        return key

    def _found(self, head: bearer.Head) -> keys.Key | None:
        try:
            return self._source.keys.find(head.kid, head.algorithm)
        except keys.KeyFault as fault:
            raise bearer.TokenFault(str(fault), "key") from None

    def _forget(self, found: keys.KeySet) -> None:
        """Only tokens whose key is still believed stay known."""
        prints = found.prints
        self._verified = {
            digest: grant for digest, grant in self._verified.items() if grant.key_print in prints
        }


def _algorithms(text: str) -> frozenset[str]:
    found = frozenset(name.strip() for name in text.split(","))
    if not found <= set(keys.ALGORITHMS):
        raise errors.CastironError(
            f"--algorithms: expected some of {', '.join(keys.ALGORITHMS)}, found {text}"
        )
    return found
