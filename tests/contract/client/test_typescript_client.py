"""The generated TypeScript client: compiles under the strictest settings, round-trips from Node.

Needs Node and what ``make clients`` installs; the client itself has no dependency.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from castiron.contract import model, steps
from castiron.contract.client import typescript
from tests.contract import live, pictures, samples

HERE = Path(__file__).parent
TSC = HERE / "node_modules" / ".bin" / "tsc"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clients")]


def compiled(folder: Path, *contracts: model.Contract) -> subprocess.CompletedProcess[str]:
    """Write the clients of all contracts into the folder and compile them."""
    assert TSC.exists(), "make clients installs the compiler"
    for contract in contracts:
        for name, text in typescript.files(contract).items():
            (folder / name).write_text(text)
    return subprocess.run(
        [TSC, "-p", folder], capture_output=True, text=True, check=False, timeout=120
    )


def test_every_datatype_round_trips_from_node(address: str, tmp_path: Path) -> None:
    for name in ("roundtrip.ts", "streams.ts"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "red.png").write_bytes(pictures.png(250, 20, 10))
    models = [*map(live.contract, live.MODELS), pictures.PICTURES, pictures.THUMBS]
    result = compiled(tmp_path, *models)
    assert result.returncode == 0, result.stdout
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for script, given, least in (
            ("roundtrip.js", nowhere, 150),
            ("streams.js", str(tmp_path / "red.png"), 50),
        ):
            command = ["node", str(tmp_path / "out" / script), address, given]
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout.endswith(" checks hold\n")
            assert int(ran.stdout.split()[-3]) > least


def test_any_names_compile(tmp_path: Path) -> None:
    odd = model.Contract(
        name='1 "odd" `name` ${x} */',
        description="*/ `",
        input=(model.Tensor('a"b\\c', "FP32", ("*/",)), model.Tensor("__proto__", "BYTES", ())),
        output=(model.Tensor("größe\n", "BF16", (1,), description="*/"),),
    )
    bare = model.Contract("client", output=(samples.SCORES,))
    own = model.Contract(
        "own", output=(samples.SCORES,), pipeline=steps.Pipeline("pipeline.py"),
    )  # fmt: skip
    values = dataclasses.replace(
        own, name="values", pipeline=None, schema=model.Schema((
            model.Entry("a", "number"), model.Entry("b", "flag", optional=True),
            model.Entry("c", "text", values=("x", "y")), model.Entry('"*/', "tensor"),
            model.Entry("d", "image", optional=True, encodings=("base64",)),
        )),
    )  # fmt: skip
    result = compiled(tmp_path, odd, samples.FULL, bare, own, values)
    assert result.returncode == 0, result.stdout


def test_a_wrong_use_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "wrong.ts").write_text(
        'import { Strings } from "./strings.js";\n'
        'import { tensor } from "./tensor.js";\n'
        'const model = new Strings("http://localhost");\n'
        'await model.infer({ x_bytes: tensor("FP32", [1, 1], [1]) });\n'
        'await model.infer({ y: tensor("BYTES", [1, 1], ["a"]) });\n'
        'tensor("INT64", [1], [1]);\n'
        'import { Pictures } from "./pictures.js";\n'
        'const other = new Pictures("http://localhost");\n'
        'await other.predict({ picture: "cat.png", readings: [[1, 2]] });\n'
        "const picture = new Uint8Array(1);\n"
        "await other.predict({ picture, readings: [[1, 2, 3]] });\n"
        'await other.predict({ picture, readings: [], note: { text: "", language: "fr" } });\n'
        "(await other.predict({ picture, readings: [] })).scores;\n"
    )
    result = compiled(tmp_path, live.contract("strings"), pictures.PICTURES)
    places = set(re.findall(r"wrong\.ts\((\d+),", result.stdout))
    assert {"4", "5", "6", "9", "11", "12", "13"} == places, result.stdout


def test_the_settings_are_the_strictest() -> None:
    settings = json.loads(typescript.files(samples.FULL)["tsconfig.json"])["compilerOptions"]
    for name in ("strict", "noUncheckedIndexedAccess", "exactOptionalPropertyTypes",
                 "noPropertyAccessFromIndexSignature", "noImplicitOverride", "noImplicitReturns",
                 "noUnusedLocals", "noUnusedParameters", "noFallthroughCasesInSwitch",
                 "verbatimModuleSyntax", "isolatedModules"):  # fmt: skip
        assert settings[name] is True
    assert settings["skipLibCheck"] is False
