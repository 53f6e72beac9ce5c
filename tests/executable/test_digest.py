"""Digests: one value, whichever implementation gives it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from castiron.executable import digest

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
MANY_A = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"


def test_the_digests_are_those_of_the_standard() -> None:
    assert digest.sha256(b"abc").hex() == ABC
    assert digest.sha256(memoryview(b"a" * 1_000_000)).hex() == MANY_A


@pytest.mark.parametrize("size, is_loaded", [(3, False), (1_000_000, True)])
def test_openssl_is_loaded_for_big_buffers_only(size: int, *, is_loaded: bool) -> None:
    text = (
        "import sys; from castiron.executable import digest; "
        f"print(digest.sha256(b'a' * {size}).hex(), 'hashlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    found, loaded = done.stdout.split()
    assert loaded == str(is_loaded)
    if size > 3:
        assert found == MANY_A
