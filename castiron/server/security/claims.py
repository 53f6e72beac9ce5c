"""What a token's claims must say before they are believed: who, for whom, from when to when.

Pure: the time is handed in. The signature was checked before (``bearer.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from castiron.server.security import bearer, rights

_MAX_TEXT_CHARS = 512
_FOREVER_S = 1e12


@dataclass(frozen=True, slots=True)
class Expected:
    """What this server expects of every token."""

    issuer: str
    audience: str
    leeway_s: float
    rights_claim: str


def grant_of(
    claims: dict[str, Any], expected: Expected, key_print: str, now_s: float
) -> rights.Grant:
    """What the claims grant at ``now_s``; TokenFault when one is missing, wrong or out of time."""
    if claims.get("iss") != expected.issuer:
        raise bearer.TokenFault("iss: expected the issuer that this server believes", "issuer")
    _check_audience(claims.get("aud"), expected.audience)
    expires_s = _time(claims, "exp")
    if expires_s is None:
        raise bearer.TokenFault("exp: expected a time")
    if now_s - expected.leeway_s >= expires_s:
        raise bearer.TokenFault("exp: the token has expired", "expired")
    for name, what in (("nbf", "is not valid yet"), ("iat", "was issued in the future")):
        begins_s = _time(claims, name)
        if begins_s is not None and now_s + expected.leeway_s < begins_s:
            raise bearer.TokenFault(f"{name}: the token {what}", "early")
    subject = claims.get("sub", "")
    if not isinstance(subject, str) or len(subject) > _MAX_TEXT_CHARS or _has_surrogate(subject):
        raise bearer.TokenFault("sub: expected a short text")
    try:
        rules = rights.rules_of(claims.get(expected.rights_claim))
    except rights.RightsFault as fault:
        raise bearer.TokenFault(f"{expected.rights_claim}: {fault}") from None
    until_s = min(expires_s, _FOREVER_S) + expected.leeway_s
    return rights.Grant(subject, rules, until_s, key_print, expected.issuer)


def _has_surrogate(text: str) -> bool:
    """JSON can spell half a surrogate pair, which no header or log can hold."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def _check_audience(found: Any, audience: str) -> None:
    named = [found] if isinstance(found, str) else found
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise bearer.TokenFault("aud: expected a text or a list of texts")
    if audience not in named:
        raise bearer.TokenFault("aud: the token is for another audience", "audience")


def _time(claims: dict[str, Any], name: str) -> float | int | None:
    found = claims.get(name)
    if name in claims and type(found) not in {int, float}:
        raise bearer.TokenFault(f"{name}: expected a number of seconds")
    if isinstance(found, float) and not abs(found) < float("inf"):  # 1e999 is read as infinite
        raise bearer.TokenFault(f"{name}: expected a finite number")
    return found
