"""The steps between an application's values and a model's tensors, as data; nothing runs here.

Each step takes one kind of thing and makes another: ``TAKES`` and ``MAKES`` say which, so that a
chain of steps can be checked before anything runs. The step itself is written once more where
it runs; its fields are its whole behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# What goes from step to step.
ENCODED = "an encoded image"
PICTURE = "a picture"
TEXT = "text"
ARRAY = "an array"
RANKED = "a ranking"
BOXES = "boxes"


@dataclass(frozen=True, slots=True)
class DecodeImage:
    """The bytes of an image file to rows of pixels, turned as its EXIF data say."""

    TAKES: ClassVar[str] = ENCODED
    MAKES: ClassVar[str] = PICTURE

    mode: str = "RGB"
    """``RGB``, ``BGR`` or ``L`` (grey)."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A picture to a size."""

    TAKES: ClassVar[str] = PICTURE
    MAKES: ClassVar[str] = PICTURE

    height: int
    """Rows of pixels."""

    width: int | None = None
    """Columns; absent: as the picture's proportions want."""

    how: str = "stretch"
    """``stretch``; ``fit``: as large as possible inside, the rest filled; ``crop``: as small as
    possible around, the middle kept."""

    filter: str = "bilinear"
    """``nearest``, ``bilinear``, ``bicubic`` or ``lanczos``."""

    fill: int = 0
    """The value of pixels that ``fit`` adds."""

    multiple: int = 1
    """The width is rounded up to a multiple of this."""

    max_width: int | None = None
    """Where the width follows from the proportions: its greatest value."""


@dataclass(frozen=True, slots=True)
class Crop:
    """The middle of a picture."""

    TAKES: ClassVar[str] = PICTURE
    MAKES: ClassVar[str] = PICTURE

    height: int
    """Rows kept."""

    width: int
    """Columns kept."""


@dataclass(frozen=True, slots=True)
class Normalise:
    """Pixels to numbers: ``(pixel * scale - mean) / std`` for each channel, in the given layout."""

    TAKES: ClassVar[str] = PICTURE
    MAKES: ClassVar[str] = ARRAY

    scale: float = 1 / 255
    """What pixels are multiplied by first."""

    mean: tuple[float, ...] = (0.0,)
    """One for each channel, or one for all."""

    std: tuple[float, ...] = (1.0,)
    """One for each channel, or one for all."""

    layout: str = "NCHW"
    """``NCHW`` or ``NHWC``; N is 1."""


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Text to the numbers of its tokens."""

    TAKES: ClassVar[str] = TEXT
    MAKES: ClassVar[str] = ARRAY

    file: str
    """A tokenizer.json or vocab.txt beside the contract."""

    max_tokens: int
    """Longer texts are cut."""

    pads: bool = True
    """Whether shorter ones are filled up."""

    lowercase: bool = False
    """Whether capitals become small letters first."""

    mask: str = ""
    """The model's input that says which tokens are real, if it has one."""

    segments: str = ""
    """The model's input for segment numbers, if it has one."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """Scores to probabilities."""

    TAKES: ClassVar[str] = ARRAY
    MAKES: ClassVar[str] = ARRAY

    axis: int = -1
    """The axis that sums to one."""


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Scores to probabilities that do not depend on each other."""

    TAKES: ClassVar[str] = ARRAY
    MAKES: ClassVar[str] = ARRAY


@dataclass(frozen=True, slots=True)
class TopK:
    """The greatest values of the last axis, the greatest first, with their places."""

    TAKES: ClassVar[str] = ARRAY
    MAKES: ClassVar[str] = RANKED

    k: int = 5
    """How many."""

    threshold: float | None = None
    """Smaller ones are left out."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Places to names."""

    TAKES: ClassVar[str] = RANKED
    MAKES: ClassVar[str] = RANKED

    file: str = ""
    """A text file beside the contract with a name in each line."""

    names: tuple[str, ...] = ()
    """Or the names themselves."""

    metadata: str = ""
    """Or the key of the model's metadata that holds them: one in each line, or written as
    ``{0: 'cat', 1: 'dog'}``."""


@dataclass(frozen=True, slots=True)
class Nms:
    """Rows of a box and its scores to the best boxes that do not overlap."""

    TAKES: ClassVar[str] = ARRAY
    MAKES: ClassVar[str] = BOXES

    min_score: float = 0.25
    """Weaker boxes are left out first."""

    max_overlap: float = 0.45
    """Intersection over union from which the weaker of two boxes is left out."""

    max_boxes: int = 100
    """How many are kept."""

    form: str = "xyxy"
    """``xyxy``: corners; ``cxcywh``: middle and size."""

    has_objectness: bool = False
    """Whether the fifth number says that there is anything at all."""

    axis: int = -1
    """The axis of a box's numbers."""

    is_per_class: bool = True
    """Whether boxes of different classes may overlap."""


@dataclass(frozen=True, slots=True)
class BoxLabels:
    """Class numbers of boxes to names."""

    TAKES: ClassVar[str] = BOXES
    MAKES: ClassVar[str] = BOXES

    file: str = ""
    """A text file beside the contract with a name in each line."""

    names: tuple[str, ...] = ()
    """Or the names themselves."""

    metadata: str = ""
    """Or the key of the model's metadata that holds them, as ``Labels`` has it."""


@dataclass(frozen=True, slots=True)
class CtcText:
    """Scores of characters at each place to text: the best of each, repeats and blanks dropped."""

    TAKES: ClassVar[str] = ARRAY
    MAKES: ClassVar[str] = TEXT

    file: str = ""
    """A text file beside the contract with a character in each line."""

    characters: str = ""
    """Or the characters themselves."""

    metadata: str = ""
    """Or the key of the model's metadata that holds them, one in each line."""

    blank: int = 0
    """The class that stands for nothing; characters follow it."""

    has_space: bool = False
    """Whether one more class at the end stands for a space."""


@dataclass(frozen=True, slots=True)
class CtcScore:
    """Scores of characters at each place to one number: the mean of those that make the text."""

    TAKES: ClassVar[str] = ARRAY
    MAKES: ClassVar[str] = ARRAY

    blank: int = 0
    """The class that stands for nothing."""


@dataclass(frozen=True, slots=True)
class JoinText:
    """The names of a ranking to one text; with ``k = 1`` before it, the name of the best."""

    TAKES: ClassVar[str] = RANKED
    MAKES: ClassVar[str] = TEXT

    separator: str = " "
    """What stands between names."""


Step = (
    DecodeImage | Resize | Crop | Normalise | Tokenize | Softmax | Sigmoid | TopK | Labels | Nms
    | BoxLabels | CtcText | CtcScore | JoinText
)  # fmt: skip

# The word that `op` has in a contract.
BY_OP: dict[str, type[Step]] = {
    "decode_image": DecodeImage,
    "resize": Resize,
    "crop": Crop,
    "normalise": Normalise,
    "tokenize": Tokenize,
    "softmax": Softmax,
    "sigmoid": Sigmoid,
    "top_k": TopK,
    "labels": Labels,
    "nms": Nms,
    "box_labels": BoxLabels,
    "ctc_text": CtcText,
    "ctc_score": CtcScore,
    "join_text": JoinText,
}
OP_OF = {kind: op for op, kind in BY_OP.items()}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The user's own code, run in processes beside the server."""

    file: str = "pipeline.py"
    """A Python file beside the contract with ``before(values) -> tensors``,
    ``after(tensors) -> values``, or both; the one that is absent is done by declared steps."""

    processes: int = 1
    """How many run it."""

    timeout_ms: float = 5_000.0
    """After this a process that does not answer is replaced."""

    memory_bytes: int | None = None
    """The most memory of one process."""
