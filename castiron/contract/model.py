"""The contract of a model as data: everything that is declared about it, and nothing that acts.

``form.py`` reads and writes it, ``review.py`` says what in it makes no sense, ``check.py``
compares it with a model, ``compare.py`` with an older contract. Steps between an application's
values and tensors are ``steps.py``. Times are milliseconds here, as people write them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from castiron.contract import steps as declared

FORMAT = 1

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of the model, and which values it takes."""

    name: str
    """As the model calls it."""

    datatype: str
    """The name of the Open Inference Protocol, such as FP32."""

    shape: tuple[int | str, ...] = ()
    """A number for each dim, or the symbol that stands for it."""

    description: str = ""
    """One sentence for people."""

    range: tuple[int | float, int | float] | None = None
    """The least and the greatest value, both allowed. Infinities as bounds leave a side open."""

    allowed: tuple[Scalar, ...] = ()
    """If not empty, the only values."""

    nan: str = "allow"
    """``refuse``: NaN is not a value of this tensor."""

    infinity: str = "allow"
    """``refuse``: neither infinity is a value of this tensor."""

    max_bytes: int | None = None
    """The longest string of a BYTES tensor."""

    max_dims: tuple[int, ...] = ()
    """If not empty, the greatest extent of each dim; 0 says nothing about one."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of numbers."""

    name: str
    """Its heading."""

    range: tuple[int | float, int | float] | None = None
    """The least and the greatest value."""

    unit: str = ""
    """What is counted, for people."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One value that an application sends or gets, above tensors."""

    name: str
    """Its key in the application's JSON."""

    kind: str
    """``text``, ``image``, ``table``, ``number``, ``flag``, ``labels``, ``boxes`` or ``tensor``."""

    tensor: str = ""
    """The model's input that it becomes, or the output that it is made of. An input without one
    goes to the steps alone, as a language does."""

    description: str = ""
    """One sentence for people."""

    optional: bool = False
    """Whether it may be left out of a request."""

    languages: tuple[str, ...] = ()
    """Of a text: the languages it may be in, as BCP 47 tags."""

    values: tuple[str, ...] = ()
    """Of a text: if not empty, the only ones."""

    max_chars: int | None = None
    """Of a text: its greatest length."""

    encodings: tuple[str, ...] = ()
    """Of an image: ``base64`` in JSON, ``raw`` as a body of its own."""

    formats: tuple[str, ...] = ()
    """Of an image: jpeg, png, webp, bmp, gif, tiff."""

    max_pixels: int | None = None
    """Of an image: width times height once decoded."""

    range: tuple[int | float, int | float] | None = None
    """Of a number: the least and the greatest."""

    columns: tuple[Column, ...] = ()
    """Of a table: its columns, in the order of the tensor's last dim."""

    max_rows: int | None = None
    """Of a table: the most rows."""

    steps: tuple[declared.Step, ...] = ()
    """From this value to the tensor, or from the tensor to this value."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What applications see instead of tensors."""

    input: tuple[Entry, ...] = ()
    """What a request holds."""

    output: tuple[Entry, ...] = ()
    """What a reply holds."""


@dataclass(frozen=True, slots=True)
class Sla:
    """The service level that the model is meant to have."""

    p99_ms: float | None = None
    """99 of 100 requests are answered within this time."""

    throughput_per_s: float | None = None
    """Requests a second that one server bears within ``p99_ms``."""

    availability: float | None = None
    """The share of requests that are answered, such as 0.999."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused, and how much may wait. An absent one is the server's own."""

    rate_per_s: float | None = None
    """Requests a second of one client, in the long run."""

    burst: int | None = None
    """Requests of one client at once after a pause."""

    body_bytes: int | None = None
    """The largest body of a request, also once decompressed."""

    queue_requests: int | None = None
    """Requests held at once, waiting or running."""

    queue_rows: int | None = None
    """Rows of all of them."""

    queue_bytes: int | None = None
    """Bytes of all of them."""

    batch_rows: int | None = None
    """Rows of one run; 1: requests are not merged."""

    concurrency: int | None = None
    """Runs at once."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The classes of requests, the most important one first."""

    classes: tuple[str, ...] = ("interactive", "normal", "bulk")
    """Their names."""

    default: str = "normal"
    """The class of a request that names none."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long an answer may take."""

    default_ms: float = 10_000.0
    """For clients that do not say."""

    maximum_ms: float = 30_000.0
    """Clients that ask for more get this."""


@dataclass(frozen=True, slots=True)
class Alerts:
    """From where on somebody should look. Alert rules are made from these."""

    error_share: float | None = None
    """Requests that failed, as a share."""

    p99_ms: float | None = None
    """The time of 99 of 100 requests."""

    queue_share: float | None = None
    """How full the queue is."""

    refused_share: float | None = None
    """Requests that were refused, as a share."""

    window_s: float = 300.0
    """How long it must last."""


@dataclass(frozen=True, slots=True)
class Release:
    """How a new version takes over from the one before."""

    rule: str = "switch"
    """``switch``: at once; ``canary``: by growing shares; ``shadow``: it answers nobody at first;
    ``manual``: when somebody says so."""

    shares: tuple[float, ...] = ()
    """Of a canary: the shares of requests it gets, one after the other."""

    hold_s: float = 60.0
    """How long each share, or the shadow, is watched."""

    min_requests: int = 100
    """Below this many requests nothing is concluded."""

    max_error_share: float = 0.01
    """Failures from which the old version comes back."""

    max_p99_ratio: float = 1.5
    """The new p99 over the old one from which the old version comes back."""

    min_agreement: float | None = None
    """Of a shadow: the share of answers that must agree with the old version's."""

    has_rollback: bool = True
    """Whether the old version comes back by itself."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One tensor, written down."""

    shape: tuple[int, ...]
    """Its dims."""

    data: tuple[Scalar, ...]
    """Its values in row-major order."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A request whose answer is known. A version that answers otherwise is not admitted."""

    name: str
    """For reports."""

    inputs: dict[str, Sample] = field(default_factory=dict)
    """By name; empty when ``file`` has them."""

    outputs: dict[str, Sample] = field(default_factory=dict)
    """By name; those not given are not looked at."""

    file: str = ""
    """An .npz file beside the contract with arrays ``inputs.NAME`` and ``outputs.NAME``."""

    rtol: float = 1e-3
    """The relative distance that is borne."""

    atol: float = 1e-5
    """The absolute distance that is borne."""


@dataclass(frozen=True, slots=True)
class Contract:
    """All of it; the content of one ``contract.toml``."""

    name: str
    """The model's name."""

    format: int = FORMAT
    """The version of this file's form."""

    description: str = ""
    """What the model is for."""

    input: tuple[Tensor, ...] = ()
    """The model's inputs."""

    output: tuple[Tensor, ...] = ()
    """The model's outputs."""

    schema: Schema = Schema()
    """What applications see."""

    pipeline: declared.Pipeline | None = None
    """The user's own code between applications and tensors, instead of declared steps."""

    sla: Sla = Sla()
    """The service level."""

    limits: Limits = Limits()
    """What is refused."""

    priority: Priority = Priority()
    """Classes of requests."""

    timeout: Timeout = Timeout()
    """How long answers may take."""

    alerts: Alerts = Alerts()
    """From where on somebody should look."""

    release: Release = Release()
    """How versions follow each other."""

    golden: tuple[Golden, ...] = ()
    """Requests whose answers are known."""
