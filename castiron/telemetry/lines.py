"""Log lines: JSON with the request's trace id, or text where a person reads.

Goes with the standard ``logging``: callers log as ever, and put what a line is about into
``extra={"model": ..., "version": ...}``. What repeats too often is counted instead of written.
Bodies and headers of requests are never in a message; that is the callers' promise.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import IO

from castiron.telemetry import tracer

FORMS = ("auto", "json", "text")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MOST_CHARS = 8_000
_MOST_KEYS = 1_000


class JsonLines(logging.Formatter):
    """One JSON object on one line: ts, level, event, logger, trace_id, extras, error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. What JSON cannot say is written as text."""
        at_s = time.gmtime(record.created)
        line: dict[str, object] = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', at_s)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": _shortened(record.getMessage()),
            "logger": record.name,
        }
        if trace_id := tracer.trace_id.get():
            line["trace_id"] = trace_id.decode()
        line.update((key, each) for key, each in vars(record).items() if key not in _OWN)
        if record.exc_info:
            line["error"] = _shortened(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


class Repeats(logging.Filter):
    """Lets ``most`` lines of one kind through each ``window_s``, then says how many it kept back.

    A kind is a logger with a message before its values are put in. What was kept back is told by
    the next line of that kind, as ``suppressed``.
    """

    def __init__(self, most: int = 20, window_s: float = 10.0) -> None:
        super().__init__()
        self._most = most
        self._window_s = window_s
        self._kinds: dict[tuple[str, str], list[float]] = {}  # end of window, passed, kept back

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write it."""
        key = (record.name, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_KEYS:
                self._kinds.clear()
            kind = self._kinds[key] = [record.created + self._window_s, 0, 0]
        if record.created >= kind[0]:
            if kind[2]:
                record.suppressed = int(kind[2])
            kind[:] = [record.created + self._window_s, 0, 0]
        kind[1] += 1
        if kind[1] > self._most:
            kind[2] += 1
            return False
        return True


class _Text(logging.Formatter):
    """For people: the message, and how many like it were kept back."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        count = getattr(record, "suppressed", 0)
        return f"{text} (and {count} like it before)" if count else text


def write_to(stream: IO[str] | None = None, level: str = "INFO", form: str = "auto") -> None:
    """Log to this stream, by default the error stream, and nowhere else.

    ``auto`` writes text when the stream is a terminal and JSON otherwise.
    """
    assert form in FORMS, form
    stream = sys.stderr if stream is None else stream
    is_text = form == "text" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Text(_TEXT) if is_text else JsonLines())
    handler.addFilter(Repeats())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


def _shortened(text: str) -> str:
    if len(text) <= _MOST_CHARS:
        return text
    return f"{text[: _MOST_CHARS // 2]} ... {text[-_MOST_CHARS // 2 :]}"
