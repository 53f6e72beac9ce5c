"""TLS and mTLS at a live server, judged by the clients that everybody has: openssl and curl."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http as triton

from castiron import errors
from castiron.server.grpc import messages
from castiron.server.security import tls
from tests.server import live as served
from tests.server.security import authority, guarded, issuer

INPUTS = json.dumps({"inputs": [guarded.X]})


class Place:
    """Authorities, and the files of one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = authority.Authority(folder, "servers")
        self.clients = authority.Authority(folder, "clients")
        self.others = authority.Authority(folder, "others")
        self.cert, self.key = self.servers.certify("server")

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls_cert": str(self.cert), "tls_key": str(self.key), "port": 0}

    def context(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.servers.file))
        if client is not None:
            made.load_cert_chain(*client)
        return made


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def curl(url: str, *words: object) -> tuple[int, str]:
    """curl's exit status and what it printed."""
    command = ["curl", "--silent", "--show-error", "--max-time", "10", *map(str, words), url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def openssl(port: int, *words: object) -> str:
    """What openssl tells of a handshake and of an answer."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-verify_return_error",
               "-ign_eof", *map(str, words)]  # fmt: skip
    asked = "GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    ended = subprocess.run(
        command, input=asked, capture_output=True, text=True, check=False, timeout=20
    )
    return ended.stdout + ended.stderr


def test_the_tools_are_here() -> None:
    assert shutil.which("curl") and shutil.which("openssl")


def test_tls_with_openssl_and_curl(place: Place) -> None:
    with guarded.serving(place.folder, place.context(), **place.settings) as server:
        ca = ("-CAfile", place.servers.file)
        for version in ("-tls1_2", "-tls1_3"):
            told = openssl(server.port, *ca, version)
            assert "Verify return code: 0 (ok)" in told
            assert "HTTP/1.1 200 OK" in told
        told = openssl(server.port, *ca, "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0")
        assert "HTTP/1.1 200" not in told
        assert "no peer certificate available" in told
        assert "HTTP/1.1 200" not in openssl(server.port, "-CAfile", place.others.file)
        assert "ALPN protocol: http/1.1" in openssl(server.port, *ca, "-alpn", "h2,http/1.1")
        url = f"https://127.0.0.1:{server.port}/v2/models/mine/infer"
        code, text = curl(url, "--cacert", place.servers.file, "--data", INPUTS)
        assert code == 0
        assert json.loads(text)["outputs"][0]["data"] == [2, 3, 4, 5]
        assert curl(url, "--cacert", place.others.file, "--data", INPUTS)[0] == 60
        code, text = curl(url.replace("https", "http"), "--data", INPUTS)
        assert code != 0 and "outputs" not in text


def test_a_large_body_over_tls_comes_whole(place: Place) -> None:
    model = place.folder / "models" / "sums" / "1" / "model.cast"
    model.parent.mkdir(parents=True)
    model.write_text("sum_and_difference")
    rows = np.random.default_rng(7).random((50_000, 2), np.float32)
    with guarded.serving(place.folder, place.context(), **place.settings) as server:
        made = triton.InferenceServerClient(
            f"127.0.0.1:{server.port}", ssl=True, ssl_context_factory=place.context
        )
        given = [triton.InferInput(name, [50_000, 2], "FP32") for name in "ab"]
        for each in given:
            each.set_data_from_numpy(rows)
        for _ in range(3):
            found = made.infer("sums", given)
            assert (found.as_numpy("sum") == rows + rows).all()
        made.close()


def test_over_tls_slow_starts_end_many_answers_come_and_early_refusals_arrive(
    place: Place,
) -> None:
    given = {**place.settings, "head_timeout_s": 2}
    with guarded.serving(place.folder, place.context(), **given) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:
            assert silent.recv(10) == b"", "no handshake came"
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plain:
            client = place.context().wrap_socket(plain, server_hostname="localhost")
            client.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n" * 3000)
            client.sendall(b"POST /v2/models/none/infer HTTP/1.1\r\nHost: a\r\n")
            client.sendall(b"Content-Length: 99999999999\r\n\r\n" + bytes(1 << 16))
            answers = b"".join(iter(lambda: client.recv(1 << 16), b""))
            client.close()
        assert answers.count(b"HTTP/1.1 200 ") == 3000
        assert b"HTTP/1.1 404 " in answers


def test_a_client_that_is_idle_does_not_hold_up_the_end(place: Place) -> None:
    """It keeps its connection for later, and so does not see that the server ends it."""
    with guarded.serving(place.folder, place.context(), **place.settings) as server:  # noqa: SIM117
        with place.context().wrap_socket(
            socket.create_connection(("127.0.0.1", server.port), timeout=20),
            server_hostname="localhost",
        ) as client:
            client.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            server.process.terminate()
            assert server.process.wait(10) == 0


def test_mtls_lets_in_only_those_with_a_certificate_of_the_authority(place: Place) -> None:
    good, bad = place.clients.certify("robot"), place.others.certify("stranger")
    given = place.settings | {"client_ca": str(place.clients.file), "host": "0.0.0.0",
                              "grpc_port": 0}  # fmt: skip
    with guarded.serving(place.folder, place.context(good), **given) as server:
        ca = ("-CAfile", place.servers.file)
        shown = ("-cert", good[0], "-key", good[1])
        for version in ("-tls1_2", "-tls1_3"):
            assert "HTTP/1.1 200 OK" in openssl(server.port, *ca, *shown, version)
            assert "HTTP/1.1 200" not in openssl(server.port, *ca, version)
            wrong = ("-cert", bad[0], "-key", bad[1])
            assert "HTTP/1.1 200" not in openssl(server.port, *ca, *wrong, version)
        url = f"https://127.0.0.1:{server.port}/v2/models/mine/infer"
        trust = ("--cacert", place.servers.file, "--data", INPUTS)
        assert curl(url, *trust, "--cert", good[0], "--key", good[1])[0] == 0
        assert curl(url, *trust)[0] != 0
        assert curl(url, *trust, "--cert", bad[0], "--key", bad[1])[0] != 0
        code, _, _ = server.ask("POST", "/v2/repository/models/mine/unload")
        assert code == 403
        assert live(server, place, good)
        assert not live(server, place, None)
        assert not live(server, place, bad)


def live(server: guarded.Guarded, place: Place, client: tuple[Path, Path] | None) -> bool:
    """Whether gRPC lets this client in."""
    chain = (client[1].read_bytes(), client[0].read_bytes()) if client else (None, None)
    trusted = grpc.ssl_channel_credentials(place.servers.file.read_bytes(), *chain)
    address = f"127.0.0.1:{server.ports['serving grpc']}"
    with grpc.secure_channel(address, trusted) as channel:
        call = channel.unary_unary(
            f"/{messages.SERVICE}/ServerLive",
            request_serializer=lambda _: b"",
            response_deserializer=messages.named("ServerLiveResponse").FromString,
        )
        try:
            return bool(call(None, timeout=10).live)
        except grpc.RpcError:
            return False


def test_certificates_and_authorities_are_renewed_without_a_restart(place: Place) -> None:
    old = place.clients.certify("robot")
    given = place.settings | {"client_ca": str(place.clients.file), "grpc_port": 0}
    with guarded.serving(place.folder, place.context(old), **given) as server:
        first = openssl(server.port, "-CAfile", place.servers.file, "-cert", old[0],
                        "-key", old[1], "-tls1_3")  # fmt: skip
        assert "subject=CN = server" in first
        assert live(server, place, old)
        place.cert.write_text("half a certifica")  # not used, and nothing breaks
        time.sleep(1.3)
        assert server.ask("GET", "/v2/health/live")[0] == 200
        renewed = place.servers.certify("renewed")
        new = place.others.certify("robot-2")
        place.clients.file.write_bytes(place.others.file.read_bytes())
        place.key.write_bytes(renewed[1].read_bytes())
        place.cert.write_bytes(renewed[0].read_bytes())
        shown = ("-CAfile", place.servers.file, "-cert", new[0], "-key", new[1])
        served.until(lambda: "subject=CN = renewed" in openssl(server.port, *shown))
        for version in ("-tls1_2", "-tls1_3"):
            told = openssl(server.port, *shown, version)
            assert "subject=CN = renewed" in told
            assert "HTTP/1.1 200 OK" in told
            told = openssl(server.port, "-CAfile", place.servers.file, "-cert", old[0],
                           "-key", old[1], version)  # fmt: skip
            assert "HTTP/1.1 200" not in told
        assert live(server, place, new)
        assert not live(server, place, old)


def test_a_token_is_needed_besides_a_certificate_when_both_are_asked_for(place: Place) -> None:
    client = place.clients.certify("robot")
    given = place.settings | {"client_ca": str(place.clients.file)}
    given |= guarded.jwt_settings(place.folder)
    with guarded.serving(place.folder, place.context(client), **given) as server:
        assert server.ask("GET", "/v2")[0] == 401
        assert server.ask("GET", "/v2", issuer.token())[0] == 200


def test_files_that_do_not_fit_are_told(place: Place, tmp_path: Path) -> None:
    other = place.servers.certify("other")
    for cert, key, ca in (
        (place.cert, other[1], ""), (place.key, place.cert, ""), (tmp_path / "none", place.key, ""),
        (place.cert, place.key, str(place.key)), (place.cert, place.key, str(tmp_path / "none")),
    ):  # fmt: skip
        with pytest.raises(errors.CastironError, match="expected a PEM certificate and its key"):
            tls.Certificates(str(cert), str(key), ca)
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", place.key, "-out", locked, "-passout", "pass:word"],
        check=True,
        capture_output=True,
    )
    with pytest.raises(errors.CastironError, match="the key has a password"):
        tls.Certificates(str(place.cert), str(locked))
