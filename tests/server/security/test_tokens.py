"""Tokens are believed only when everything about them is right."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.server import status
from castiron.server.security import rights, settings, tokens
from tests.server.security import issuer


def opened(path: Path, now: Callable[[], float] = time.time, **changed: Any) -> tokens.Tokens:
    if not path.exists():
        path.write_text(issuer.key_set())
    chosen: dict[str, Any] = {"issuer": issuer.ISSUER, "audience": issuer.AUDIENCE, **changed}
    return tokens.Tokens(settings.Settings(jwks=str(path), **chosen), now)


def check(access: tokens.Tokens, token: str | bytes, name: bytes = b"Bearer ") -> rights.Grant:
    raw = token.encode("latin-1") if isinstance(token, str) else token
    return asyncio.run(access.check([(b"host", b"x"), (b"authorization", name + raw)]))


def refused(access: tokens.Tokens, token: str | bytes) -> str:
    with pytest.raises(status.Refusal) as found:
        check(access, token)
    assert found.value.code == 401
    [(header, challenge)] = found.value.headers
    assert header == b"www-authenticate"
    assert challenge.startswith(b'Bearer realm="castiron", error="invalid_token"')
    assert b"\n" not in challenge and b"\r" not in challenge
    return str(found.value)


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> tokens.Tokens:
    return opened(tmp_path_factory.mktemp("keys") / "jwks.json")


@pytest.mark.parametrize("algorithm", issuer.ALGORITHMS)
def test_a_good_token_of_each_algorithm_is_believed(access: tokens.Tokens, algorithm: str) -> None:
    grant = check(access, issuer.token(algorithm))
    assert (grant.subject, grant.issuer) == ("tester", issuer.ISSUER)
    assert grant.allows("any", "infer")
    assert check(access, issuer.token(algorithm), b"bearer ").subject == "tester"


def _swapped(token: str, index: int, text: str) -> str:
    parts = token.split(".")
    parts[index] = text
    return ".".join(parts)


def _flipped(token: str, index: int) -> str:
    part = token.split(".")[index]
    return _swapped(token, index, ("B" if part[0] == "A" else "A") + part[1:])


def _last_char_respelled(token: str) -> str:
    """Another spelling of the same signature bytes: 64 bytes leave spare bits in the last char."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(token[-1])
    return token[:-1] + alphabet[last ^ 1]


def _pem(algorithm: str) -> bytes:
    made: bytes = (
        issuer.key(algorithm)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return made


def _hs(secret: bytes, kid: str = "RS256-0") -> str:
    return issuer.signed(json.dumps(issuer.claims()), {"alg": "HS256", "kid": kid}, secret)


def _headed(**changed: Any) -> str:
    head = {"alg": "ES256", "kid": "ES256-0"} | changed
    kept = {name: value for name, value in head.items() if value is not None}
    return issuer.signed(json.dumps(issuer.claims()), kept, issuer.key("ES256"))


def _payload(text: str | bytes) -> str:
    return issuer.signed(text, {"alg": "ES256", "kid": "ES256-0"}, issuer.key("ES256"))


def _text_with(extra: str) -> str:
    return json.dumps(issuer.claims())[:-1] + "," + extra + "}"


NOW = int(time.time())
JWS_NONE = issuer.part(b'{"alg":"none"}') + "." + issuer.part(b"{}") + "."

BAD: dict[str, Callable[[], str | bytes]] = {
    # Not a token.
    "empty": lambda: "",
    "a word": lambda: "token",
    "two parts": lambda: issuer.token().rsplit(".", 1)[0],
    "four parts": lambda: issuer.token() + ".AAAA",
    "five parts, as encrypted ones have": lambda: issuer.token() + ".AAAA.AAAA",
    "spaces inside": lambda: issuer.token().replace(".", ". "),
    "a second space": lambda: " " + issuer.token(),
    "padding": lambda: issuer.token() + "=",
    "ordinary base64": lambda: _swapped(issuer.token(), 2, "+/+/"),
    "a length that base64 cannot have": lambda: _swapped(issuer.token(), 1, "AAAAA"),
    "spare bits": lambda: _last_char_respelled(issuer.token()),
    "bytes above 127": lambda: issuer.token().encode() + b"\xff",
    "too long": lambda: issuer.token(extra="x" * 9000),
    "far too long": lambda: "A" * 60_000,
    # The head.
    "a head that is no JSON": lambda: _swapped(issuer.token(), 0, issuer.part(b"{alg:1}")),
    "a head that is a list": lambda: _swapped(issuer.token(), 0, issuer.part(b'["ES256"]')),
    "a head that is not UTF-8": lambda: _swapped(issuer.token(), 0, issuer.part(b'{"a":"\xff"}')),
    "a head nested deeply": lambda: _swapped(issuer.token(), 0, issuer.part(b"[" * 5000)),
    "no alg": lambda: _headed(alg=None),
    "alg twice": lambda: issuer.signed(
        json.dumps(issuer.claims()), '{"alg":"none","kid":"ES256-0","alg":"ES256"}',
        issuer.key("ES256")),
    "alg none": lambda: _headed(alg="none"),
    "alg None": lambda: _headed(alg="None"),
    "alg none without a signature": lambda: JWS_NONE,
    "alg none with one letter": lambda: JWS_NONE + "AA",
    "alg es256": lambda: _headed(alg="es256"),
    "alg a list": lambda: _headed(alg=["ES256"]),
    "alg ES384": lambda: _headed(alg="ES384"),
    "alg PS256": lambda: issuer.signed(json.dumps(issuer.claims()),
                                       {"alg": "PS256", "kid": "RS256-0"}, issuer.key("RS256")),
    "HS256 with the public key as PEM": lambda: _hs(_pem("RS256")),
    "HS256 with the public key as it stands in the set": lambda: _hs(
        json.dumps(issuer.public("RS256", "RS256-0")).encode()),
    "HS256 with nothing": lambda: _hs(b""),
    "RS256 named for an EC key": lambda: issuer.signed(
        json.dumps(issuer.claims()), {"alg": "RS256", "kid": "ES256-0"}, issuer.key("RS256")),
    "ES256 named for an RSA key": lambda: _headed(kid="RS256-0"),
    "EdDSA named for an EC key": lambda: _headed(alg="EdDSA"),
    "kid unknown": lambda: _headed(kid="other"),
    "kid a number": lambda: _headed(kid=0),
    "kid empty": lambda: _headed(kid=""),
    "kid a path": lambda: _headed(kid="../../dev/null"),
    "kid huge": lambda: _headed(kid="k" * 1000),
    "crit": lambda: _headed(crit=["exp"], exp=1),
    "an unencoded payload": lambda: _headed(b64=False),
    "typ of something else": lambda: _headed(typ="secevent+jwt"),
    "typ null": lambda: issuer.signed(json.dumps(issuer.claims()),
                                      '{"alg":"ES256","kid":"ES256-0","typ":null}',
                                      issuer.key("ES256")),
    # The signature.
    "another key": lambda: issuer.signed(
        json.dumps(issuer.claims()), {"alg": "ES256", "kid": "ES256-0"},
        issuer.key("ES256", 1)),
    "another RSA key": lambda: issuer.signed(
        json.dumps(issuer.claims()), {"alg": "RS256", "kid": "RS256-0"},
        issuer.key("RS256", 1)),
    "a key of its own in the head": lambda: issuer.signed(
        json.dumps(issuer.claims()),
        {"alg": "ES256", "kid": "ES256-0", "jwk": issuer.public("ES256", None, 1)},
        issuer.key("ES256", 1)),
    "a place for keys of its own in the head": lambda: issuer.signed(
        json.dumps(issuer.claims()),
        {"alg": "ES256", "kid": "new", "jku": "http://127.0.0.1:1/jwks"},
        issuer.key("ES256", 1)),
    "a changed payload": lambda: _flipped(issuer.token(), 1),
    "a changed signature": lambda: _flipped(issuer.token("RS256"), 2),
    "the signature of another token": lambda: _swapped(
        issuer.token(), 2, issuer.token(sub="x").split(".")[2]),
    "a short signature": lambda: issuer.token()[:-4],
    "a signature of zeros": lambda: _swapped(issuer.token(), 2, issuer.part(bytes(64))),
    # The claims.
    "a payload that is no JSON": lambda: _payload("hello"),
    "a payload that is a list": lambda: _payload("[]"),
    "an empty payload object": lambda: _payload("{}"),
    "a claim twice": lambda: _payload(_text_with(f'"exp":{NOW + 9000}')),
    "the rights twice": lambda: _payload(_text_with('"castiron":{"models":[],"actions":[]}')),
    "a name twice inside the rights": lambda: _payload(json.dumps(issuer.claims(castiron=None))[
        :-1] + ',"castiron":{"models":["a"],"models":["*"],"actions":["infer"]}}'),
    "NaN": lambda: _payload(_text_with('"x":NaN')),
    "expired": lambda: issuer.token(exp=NOW - 60),
    "without exp": lambda: issuer.token(exp=None),
    "exp a text": lambda: issuer.token(exp=str(NOW + 600)),
    "exp true": lambda: issuer.token(exp=True),
    "exp infinite": lambda: _payload(json.dumps(issuer.claims(exp=None))[:-1] + ',"exp":1e999}'),
    "exp null": lambda: _payload(json.dumps(issuer.claims(exp=None))[:-1] + ',"exp":null}'),
    "exp of 5000 digits": lambda: _payload(
        json.dumps(issuer.claims(exp=None))[:-1] + ',"exp":' + "9" * 5000 + "}"),
    "not valid yet": lambda: issuer.token(nbf=NOW + 10**6),
    "nbf a text": lambda: issuer.token(nbf="now"),
    "issued in the future": lambda: issuer.token(iat=NOW + 10**6),
    "another audience": lambda: issuer.token(aud="other"),
    "several other audiences": lambda: issuer.token(aud=["a", "b"]),
    "an audience that begins alike": lambda: issuer.token(aud=issuer.AUDIENCE + "-2"),
    "no audience": lambda: issuer.token(aud=None),
    "an audience that is an object": lambda: issuer.token(aud={issuer.AUDIENCE: 1}),
    "audiences that are not all texts": lambda: issuer.token(aud=[issuer.AUDIENCE, 1]),
    "another issuer": lambda: issuer.token(iss="https://other.example"),
    "the issuer with a slash": lambda: issuer.token(iss=issuer.ISSUER + "/"),
    "issuers as a list": lambda: issuer.token(iss=[issuer.ISSUER]),
    "no issuer": lambda: issuer.token(iss=None),
    "sub a number": lambda: issuer.token(sub=5),
    "sub half a surrogate pair": lambda: issuer.token(sub="a\ud800"),
    "sub huge": lambda: issuer.token(sub="s" * 600),
    "rights a text": lambda: issuer.token(castiron="*"),
    "rights without actions": lambda: issuer.token(castiron={"models": ["*"]}),
    "rights with more": lambda: issuer.token(castiron=issuer.rule() | {"deny": []}),
    "an action unknown": lambda: issuer.token(castiron=issuer.rule(actions=("fly",))),
    "models a text": lambda: issuer.token(castiron={"models": "*", "actions": ["infer"]}),
    "rules without end": lambda: issuer.token(castiron=[issuer.rule(("a",), ("infer",))] * 65),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_token_is_refused(access: tokens.Tokens, what: str) -> None:
    assert refused(access, BAD[what]())


def test_the_bad_tokens_are_bad_for_the_reason_that_is_told(access: tokens.Tokens) -> None:
    for what, told in {
        "expired": "exp: the token has expired", "another key": "the signature does not fit",
        "alg none": "alg: expected one of", "kid unknown": "kid: no key of the issuer",
        "RS256 named for an EC key": "alg: the key of this kid is for another algorithm",
        "a claim twice": "expected each name once", "too long": "of at most 8192 bytes",
        "spare bits": "without spare bits", "crit": "critical", "NaN": "finite",
        "HS256 with the public key as PEM": "alg: expected one of",
    }.items():  # fmt: skip
        assert told in refused(access, BAD[what]())


def test_without_a_token_the_challenge_names_no_error(access: tokens.Tokens) -> None:
    for headers in ([], [(b"authorization", b"")], [(b"cookie", b"Bearer x")]):
        with pytest.raises(status.Refusal) as found:
            asyncio.run(access.check(headers))
        assert found.value.code == 401
    for value in (b"Basic YTpi", b"Bearer", b"Token x", b"Bearer\tx"):
        with pytest.raises(status.Refusal, match="Bearer"):
            asyncio.run(access.check([(b"authorization", value)]))


def test_two_tokens_are_none(access: tokens.Tokens) -> None:
    good = (b"authorization", b"Bearer " + issuer.token().encode())
    for headers in ([good, good], [(b"authorization", b""), good]):
        with pytest.raises(status.Refusal, match="one Authorization header"):
            asyncio.run(access.check(headers))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    assert refused(_shared(), data)


@given(st.integers(0, 10**6), st.characters(codec="latin-1"))
def test_a_good_token_with_one_other_letter_is_refused(place: int, letter: str) -> None:
    token = _GOOD
    place %= len(token)
    changed = token[:place] + letter + token[place + 1 :]
    if changed != token:
        assert refused(_shared(), changed)


_GOOD = issuer.token("EdDSA", exp=NOW + 10**6)
_made: list[tokens.Tokens] = []


def _shared() -> tokens.Tokens:
    if not _made:
        import tempfile

        _made.append(opened(Path(tempfile.mkdtemp()) / "jwks.json"))
        assert check(_made[0], _GOOD).subject == "tester"
    return _made[0]


def test_times_are_judged_with_the_leeway_also_once_a_token_is_known(tmp_path: Path) -> None:
    clock = [float(NOW)]
    access = opened(tmp_path / "jwks", lambda: clock[0], leeway_s=10.0)
    token = issuer.token(exp=NOW + 100, nbf=NOW + 5, iat=NOW + 5)
    for now, is_good in ((-6, False), (-5, True), (50, True), (109.9, True), (110, False)):
        clock[0] = NOW + now
        if is_good:
            assert check(access, token).subject == "tester"
        else:
            assert "exp" in refused(access, token) or "nbf" in refused(access, token)
    clock[0] = NOW + 50.0
    assert check(access, token).subject == "tester"


def test_a_token_is_checked_once_while_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = opened(tmp_path / "jwks", max_cached_tokens=2)
    seen = []
    real = access._verify

    async def counted(token: bytes) -> rights.Grant:
        seen.append(token)
        return await real(token)

    monkeypatch.setattr(tokens.Tokens, "_verify", lambda _, token: counted(token))
    first, second, third = (issuer.token(sub=name) for name in "abc")
    for token in (first, second, first, second, first):
        check(access, token)
    assert len(seen) == 2
    check(access, third)  # takes the place of the oldest
    check(access, second)
    assert len(seen) == 3
    check(access, first)
    assert len(seen) == 4


def test_without_a_kid_the_only_key_of_the_algorithm_is_taken(tmp_path: Path) -> None:
    headed = issuer.signed(json.dumps(issuer.claims()), {"alg": "ES256"}, issuer.key("ES256"))
    assert check(opened(tmp_path / "one"), headed).subject == "tester"
    several = tmp_path / "several"
    several.write_text(
        issuer.key_set(issuer.public("ES256", "a"), issuer.public("ES256", "b", number=1))
    )
    assert "kid: expected one" in refused(opened(several), headed)


def test_only_the_algorithms_that_are_wanted_are_taken(tmp_path: Path) -> None:
    access = opened(tmp_path / "jwks", algorithms="EdDSA, RS256")
    assert check(access, issuer.token("EdDSA")).subject == "tester"
    assert "not taken here" in refused(access, issuer.token("ES256"))
    for wrong in ("HS256", "none", "", "RS256,none"):
        with pytest.raises(errors.CastironError, match="--algorithms"):
            opened(tmp_path / "jwks", algorithms=wrong)


def test_tokens_of_other_services_are_guarded_against_by_the_settings(tmp_path: Path) -> None:
    for missing in ("issuer", "audience"):
        changed: dict[str, Any] = {missing: ""}
        with pytest.raises(errors.CastironError, match="expected --issuer and --audience"):
            opened(tmp_path / "jwks", **changed)


def test_the_tests_own_keys_are_of_the_kinds_they_should_be() -> None:
    assert isinstance(issuer.key("RS256"), rsa.RSAPrivateKey)
    assert isinstance(issuer.key("ES256"), ec.EllipticCurvePrivateKey)
