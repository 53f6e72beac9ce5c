"""The rules of the house: each is broken once on purpose, and good code breaks none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_names

HEADER = '"""What it is for.\n\nWhat it is not.\n"""\n\n'


def found(code: str, path: str = "castiron/graph/thing.py", header: str = HEADER) -> list[str]:
    return [line.split(": ", 1)[1] for line in check_names.breaches(Path(path), header + code)]


GOOD = '''
from castiron.graph.graph import Graph
from castiron.tensor import dim


def count_nodes(graph: Graph) -> int:
    """How many nodes a graph has."""
    return len(graph.nodes) + len(dim.__name__) * 0
'''


def test_good_code_has_no_breach() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize(
    "code, words",
    [
        ("def open_session() -> None:\n    '''Open.'''\n", "'session' is not our word"),
        ("class BufferManager:\n    '''Keep.'''\n", "'manager' says nothing"),
        ("def f(helper: int) -> None:\n    '''Do.'''\n", "'helper' says nothing"),
        ("def f() -> None:\n    pass\n", "f is public and has no docstring"),
        ("class Node:\n    pass\n", "Node is public and has no docstring"),
        ("x = 1  # TO" + "DO: later\n", "unfinished"),
        ("raise NotImplemented" + "Error\n", "unfinished"),
        ("from castiron.runtime.pool import rent\n", "import the module, not 'rent'"),
        (
            "from castiron.tensor import dim\nx = dim._secret\n",
            "dim._secret is private to its file",
        ),
    ],
)
def test_a_breach_is_found(code: str, words: str) -> None:
    (line,) = found(code)
    assert words in line


@pytest.mark.parametrize(
    "path, words",
    [
        ("castiron/graph/utils.py", "the file name says nothing: 'utils'"),
        ("castiron/graph/graph2.py", "ends with a number"),
        ("castiron/graph/queue.py", "hides the standard module 'queue'"),
        ("castiron/memory_plan/order.py", "a folder is one noun"),
    ],
)
def test_a_bad_file_name_is_found(path: str, words: str) -> None:
    (line,) = found(GOOD, path)
    assert words in line


def test_a_command_may_be_named_like_a_standard_module() -> None:
    assert found(GOOD, "castiron/cli/profile.py") == []


def test_a_file_opens_with_a_docstring_of_a_few_lines() -> None:
    assert found("x = 1\n", header="") == ["the file opens with no docstring"]
    long = '"""' + "line\n" * 12 + '"""\n'
    assert "more than 8 lines" in found("", header=long)[0]


def body(lines: int) -> str:
    return "def f() -> None:\n    '''Do.'''\n" + "    print()\n" * lines


def test_the_limits_of_size_are_exact() -> None:
    assert found(body(60)) == []
    assert found(body(61)) == ["f has 61 lines (limit 60)"]
    six = "def f(a: int, b: int, c: int, d: int, *, e: int, g: int) -> None:\n    '''Do.'''\n"
    assert found(six) == []
    assert found(six.replace("a: int", "a: int, z: int")) == ["f has 7 parameters (limit 6)"]
    long_file = HEADER + "x = 1\n" * (501 - HEADER.count("\n"))
    assert found("", header=long_file) == ["501 lines (limit 500)"]


def test_self_is_no_parameter() -> None:
    code = "class Node:\n    '''A node.'''\n    def f(self, a, b, c, d, e, g):\n        pass\n"
    assert found(code) == []


DEEP = """def f(a: int) -> None:
    '''Do.'''
    for _ in range(a):
        if a:
            while a:
                with open("x"):
                    a += 1
"""


def test_nesting_counts_branches_and_loops_but_no_with() -> None:
    assert found(DEEP) == []
    deeper = DEEP.replace("a += 1", "a += [1 for i in ()] and 1 or 2")
    assert found(deeper) == []
    (line,) = found(DEEP.replace("a += 1", "try: a += 1\n                    finally: pass"))
    assert "4 levels of nesting" in line


def test_elif_goes_no_deeper() -> None:
    code = "def f(a: int) -> None:\n    '''Do.'''\n    if a == 0:\n        pass\n"
    code += "".join(f"    elif a == {i}:\n        pass\n" for i in range(1, 9))
    assert found(code) == []


def test_an_exception_is_written_on_the_line_it_concerns() -> None:
    excused = body(61).replace("None:", "None:  # limit: one line for each message of the format")
    assert found(excused) == []


def test_tests_are_measured_but_need_no_docstrings() -> None:
    assert found("def test_x() -> None:\n    pass\n", "tests/graph/test_x.py", header="") == []
    assert "61 lines" in found(body(61), "tests/graph/test_x.py", header="")[0]
