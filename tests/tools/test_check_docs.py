"""The checker of documents: it finds dead links and names, and leaves everything else alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_docs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "castiron" / "graph").mkdir(parents=True)
    (tmp_path / "castiron" / "api.py").write_text("def build() -> None: ...\n")
    graph = "LIMIT: int = 1\nclass Graph:\n    def run(self) -> None: ...\n"
    (tmp_path / "castiron" / "graph" / "graph.py").write_text(graph)
    return tmp_path


def found(root: Path, text: str) -> list[str]:
    document = root / "docs" / "page.md"
    document.write_text(text)
    return list(check_docs.faults(root, document))


@pytest.mark.parametrize(
    "text",
    [
        "`api.build` and `castiron.api.build`",
        "`graph.graph.Graph.run`, `graph.graph.LIMIT`, `graph`",
        "`castiron/graph/graph.py` and `castiron/graph/`",
        "[here](page.md), [there](../castiron/api.py#L1), [far](https://example.org/x.md)",
        "`numpy.asarray`, `x.npy`, `/v2/health/ready`, `pip install x`",
    ],
)
def test_what_exists_is_no_fault(root: Path, text: str) -> None:
    assert found(root, text) == []


@pytest.mark.parametrize(
    "text, fault",
    [
        ("`api.biuld`", "docs/page.md:1: api.biuld does not exist"),
        ("\n`graph.graph.Graph.walk`", "docs/page.md:2: graph.graph.Graph.walk does not exist"),
        ("`graph.other.Graph`", "docs/page.md:1: graph.other.Graph does not exist"),
        ("`castiron/graph/other.py`", "docs/page.md:1: castiron/graph/other.py does not exist"),
        ("[gone](gone.md)", "docs/page.md:1: the link gone.md leads nowhere"),
    ],
)
def test_what_does_not_exist_is_a_fault(root: Path, text: str, fault: str) -> None:
    assert found(root, text) == [fault]
