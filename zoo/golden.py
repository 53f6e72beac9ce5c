"""What real models must answer to real inputs: facts that a reader can check by eye.

Each fact is a model of the zoo, its input, and a reading of the outputs with the value it must
have. `check` takes any runner, so the same facts judge every engine and every release.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from zoo import cases, fetch, pictures

Outputs = Mapping[str, npt.NDArray[Any]]
Run = Callable[[cases.Inputs], Outputs]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known: `read(outputs of model on inputs())` is `expected`.

    Numbers are compared within `tolerance`, everything else exactly.
    """

    name: str
    model: str
    inputs: Callable[[], cases.Inputs]
    read: Callable[[Outputs], object]
    expected: object
    tolerance: float = 0.005


def check(fact: Fact, run: Run) -> None:
    """Run the model of the fact and assert what it answers."""
    found = fact.read(run(fact.inputs()))
    if isinstance(fact.expected, int | float):
        wanted = np.asarray([fact.expected], np.float64)
    elif isinstance(fact.expected, tuple) and isinstance(fact.expected[0], float):
        wanted = np.asarray(fact.expected, np.float64)
    else:
        assert found == fact.expected, f"{fact.name}: {found!r}, expected {fact.expected!r}"
        return
    values = np.atleast_1d(np.asarray(found, np.float64))
    assert values.shape == wanted.shape, f"{fact.name}: {found!r}, expected {fact.expected!r}"
    error = np.abs(values - wanted).max()
    assert error <= fact.tolerance, f"{fact.name}: {found!r}, expected {fact.expected!r}"


def only(outputs: Outputs) -> npt.NDArray[Any]:
    """The single output of a model that has one."""
    (array,) = outputs.values()
    return array


def read_line(probabilities: npt.NDArray[np.generic], charset: list[str]) -> str:
    """The best class of each column, repeats merged and blanks (class 0) dropped (CTC, greedy)."""
    best = probabilities.argmax(axis=-1).tolist()
    pairs = zip([0, *best[:-1]], best, strict=True)
    return "".join(charset[now - 1] for before, now in pairs if now and now != before)


def ocr_charset() -> list[str]:
    """The letters of the recogniser: it carries them in its metadata, a space comes after them."""
    metadata = {p.key: p.value for p in onnx.load(fetch.path("ocr_rec")).metadata_props}
    return [*metadata["character"].splitlines(), " "]


def _captcha_charset(name: str) -> list[str]:
    tree = ast.parse(fetch.path("ddddocr_charsets").read_text())
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, ast.Assign)
            return [str(letter) for letter in ast.literal_eval(node.value)][1:]
    raise KeyError(name)


def _read_captcha(charset: str) -> Callable[[Outputs], object]:
    return lambda outputs: read_line(only(outputs)[:, 0], _captcha_charset(charset))


def _best_box(outputs: Outputs) -> object:
    """Class, score, centre and size of the surest box of the detector."""
    rows = outputs["output0"][0]
    label, index = np.unravel_index(rows[4:].argmax(), rows[4:].shape)
    return (float(label), float(rows[4:].max()), *rows[:4, index].tolist())


def _num_text_regions(outputs: Outputs) -> object:
    """Connected regions above 0.3, by flood filling from each pixel that is left."""
    score = only(outputs)[0, 0].astype(np.float32)
    left = {(y, x) for y, x in np.argwhere(score > 0.3).tolist()}
    count = 0
    while left:
        count += 1
        front = [left.pop()]
        while front:
            y, x = front.pop()
            near = {(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)} & left
            left -= near
            front += near
    return count


def _speech_share(outputs: Outputs) -> object:
    return float((outputs["speech_probs"] > 0.5).mean())


def _loudest_note(outputs: Outputs) -> object:
    """MIDI number and mean strength of the strongest note; the lowest key is 21."""
    strength = outputs["StatefulPartitionedCall:1"][0].mean(axis=0)
    return (float(21 + strength.argmax()), float(strength.max()))


def _astronaut() -> cases.Inputs:
    return cases.cases("nudenet")[0]


def _orientation_class(quarters: int) -> Fact:
    square = (cases.IMAGENET_MEAN, cases.IMAGENET_DEVIATION)
    return Fact(
        name=f"a page turned {90 * quarters} degrees is seen as such",
        model="orientation",
        inputs=lambda: {"x": pictures.planes([cases.page_turned(quarters)], *square, bgr=True)},
        # np.rot90 turns against the clock, the classes 0, 90, 180, 270 with it
        read=lambda outputs: int(only(outputs)[0].argmax()) * 90,
        expected=-90 * quarters % 360,
    )


FACTS = (
    *(
        Fact(
            name=f"the recogniser reads {line!r}",
            model="ocr_rec",
            inputs=lambda line=line: cases.ocr_lines((line,)),  # type: ignore[misc]
            # the white at the ends may come out as a space
            read=lambda outputs: read_line(only(outputs)[0], ocr_charset()).strip(),
            expected=line,
        )
        for line in cases.OCR_LINES
    ),
    Fact(
        name="the page has seven regions of text",
        model="ocr_det",
        inputs=lambda: cases.cases("ocr_det")[0],
        read=_num_text_regions,
        expected=7,
    ),
    Fact(
        name="upright and upside-down lines are told apart",
        model="ocr_cls",
        inputs=lambda: cases.cases("ocr_cls")[2],
        read=lambda outputs: only(outputs).argmax(axis=1).tolist(),
        expected=[0, 0, 0, 1, 1, 1],
    ),
    *(_orientation_class(quarters) for quarters in range(4)),
    Fact(
        name="an astronaut and a cat are safe to see",
        model="nsfw",
        inputs=lambda: cases.cases("nsfw")[1],
        read=lambda outputs: tuple(only(outputs)[:, 0].tolist()),
        expected=(0.983, 0.99994),
    ),
    Fact(
        name="the face of the astronaut is found",
        model="nudenet",
        inputs=_astronaut,
        read=lambda outputs: _best_box(outputs)[:2],  # type: ignore[index]
        expected=(1.0, 0.822),
    ),
    Fact(
        name="the box of that face is where the face is",
        model="nudenet",
        inputs=_astronaut,
        read=lambda outputs: _best_box(outputs)[2:],  # type: ignore[index]
        expected=(139.8, 82.0, 63.1, 61.0),
        tolerance=1.0,
    ),
    Fact(
        name="suppression in the graph keeps exactly that box",
        model="nudenet_nms",
        inputs=_astronaut,
        read=lambda outputs: outputs["selected"].tolist(),
        expected=[[0, 1, 1689]],
    ),
    Fact(
        name="a captcha is read",
        model="ddddocr",
        inputs=lambda: cases.cases("ddddocr")[0],
        read=_read_captcha("CHARSET_BETA"),
        expected="aB7kq",
    ),
    Fact(
        name="a captcha is read in int8, capitals apart",
        model="ddddocr_int8",
        inputs=lambda: cases.cases("ddddocr_int8")[0],
        read=lambda outputs: str(_read_captcha("CHARSET_OLD")(outputs)).lower(),
        expected="ab7kq",
    ),
    *(
        Fact(
            name=f"the share of speech in {recording}",
            model="silero_sequence",
            inputs=lambda recording=recording: cases.speech_windows(recording),  # type: ignore[misc]
            read=_speech_share,
            expected=share,
            tolerance=0.02,
        )
        for recording, share in (
            ("beckett.wav", 0.45),
            ("two_cities.wav", 0.75),
            ("success.wav", 0.0),
            ("error.wav", 0.0),
        )
    ),
    Fact(
        name="440 Hz is the note A4",
        model="basic_pitch",
        inputs=lambda: cases.cases("basic_pitch")[0],
        read=_loudest_note,
        expected=(69.0, 0.81),
        tolerance=0.2,
    ),
    Fact(
        name="a picture in PNG is known by its bytes",
        model="magika",
        inputs=lambda: cases.cases("magika")[0],
        read=lambda outputs: float(only(outputs)[0].max()),
        expected=0.9998,
    ),
    Fact(
        name="a sentence takes two seconds to say",
        model="piper",
        inputs=lambda: cases.sentence_ids(cases.PIPER_SENTENCE),
        read=lambda outputs: only(outputs).size,
        expected=43_776,
    ),
)
