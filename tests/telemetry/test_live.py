"""A real Prometheus scrapes real servers: every query of every dashboard finds data."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import threading
from pathlib import Path

import pytest
from onnx import helper

from castiron import cli
from castiron.telemetry import boards, rules
from tests.server import test_executables as executables
from tests.telemetry import prometheus

pytestmark = pytest.mark.slow

_CONTRACT = """
format = 1
name = "m"
[[input]]
name = "x"
datatype = "FP32"
shape = ["n", 8]
[[output]]
name = "y"
datatype = "FP32"
shape = ["n", 3]
[sla]
p99_ms = 50.0
"""


def _ask(ports: list[int], stop: threading.Event) -> None:
    rows = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 8], "data": [1.0] * 16}]}
    while not stop.is_set():
        for port in ports:
            for model, body in (("m", rows), ("none", rows), ("m", {"inputs": []})):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                with contextlib.closing(connection):
                    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
                    connection.getresponse().read()


def test_every_query_of_every_dashboard_finds_data(tmp_path: Path) -> None:
    folders, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "dashboards"
    with contextlib.ExitStack() as stack:
        ports = []
        for folder in folders:
            path = folder / "models/m/1/model.onnx"
            executables.save(
                path, [helper.make_node("MatMul", ["x", "w"], ["y"])], ["n", 8], ["n", 3]
            )
            path.with_name("contract.toml").write_text(_CONTRACT)
            _, client = stack.enter_context(executables.served(folder))
            ports.append(int(str(client._parsed_url.port)))
        assert cli.main(["dashboard", str(folders[0] / "models"), "-o", str(out)]) == 0
        stop = threading.Event()
        asking = threading.Thread(target=_ask, args=(ports, stop))
        asking.start()
        try:
            _check(tmp_path, out, ports)
        finally:
            stop.set()
            asking.join()


def _check(tmp_path: Path, out: Path, ports: list[int]) -> None:
    with prometheus.running(tmp_path, ports, out / rules.RULES_FILE) as scraping:
        up = prometheus.until(lambda: len(scraping.query("up == 1")) == 2)
        assert up, (tmp_path / "prometheus.log").read_text()
        names = sorted(path.name for path in out.glob("*.json"))
        assert names == ["castiron-model-m.json", "castiron-servers.json"]
        asked = [
            query
            for name in names
            for query in boards.queries(json.loads((out / name).read_text()), "5s")
        ]
        assert len(asked) > 30
        for query in asked:
            assert prometheus.until(functools.partial(scraping.query, query)), query
        groups = scraping.get("rules")["groups"]
        assert [group["name"] for group in groups] == ["castiron", "castiron model m"]
        healthy = prometheus.until(
            lambda: all(
                rule["health"] == "ok" for group in scraping.get("rules")["groups"]
                for rule in group["rules"]
            )
        )  # fmt: skip
        assert healthy, groups
        # What the invariant alert asks finds nothing, on any server, while requests go on.
        for _ in range(5):
            lost = scraping.query(
                "sum by (instance) (castiron_requests_accepted_total)"
                " - sum by (instance) (castiron_requests_total)"
                " - sum by (instance) (castiron_requests_in_flight) != 0"
            )
            assert lost == []
