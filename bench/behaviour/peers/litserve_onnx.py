"""LitServe: one API for each model; its check of requests by pydantic types is used.

python litserve_onnx.py MODELS_DIR PORT BATCH_WINDOW_S NUM_WORKERS NAME...

A NAME that ends with _batched is that of the same file with merging of calls on.

It reads the types of requests from annotations, which must therefore be types and no strings.
"""

import sys
from pathlib import Path

import litserve
import numpy as np
from onnx_rows import OnnxRows
from pydantic import BaseModel

MAX_BATCH = 8


class Row(BaseModel):
    """A request: one row of numbers."""

    x: list[float]


class OnnxApi(litserve.LitAPI):
    """One row in, one row out; merged to arrays of rows by the default ``batch``."""

    file: Path
    kind: type = np.float32

    def setup(self, device: str) -> None:
        """In the process that computes."""
        del device
        self._model = OnnxRows(self.file)

    def decode_request(self, request: Row) -> np.ndarray:
        """A row as an array."""
        return np.array(request.x, self.kind)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Rows, or one row when nothing is merged."""
        return self._model.run(x) if x.ndim == 2 else self._model.run(x[None])[0]

    def encode_response(self, output: np.ndarray) -> dict[str, list[float]]:
        """One row of numbers."""
        return {"y": output.tolist()}


def api(file: Path, path: str, max_batch: int, window_s: float) -> OnnxApi:
    """An API for one file at one path."""
    made = OnnxApi(max_batch_size=max_batch, batch_timeout=window_s, api_path=path)
    made.file = file
    made.kind = np.int64 if file.stem == "picky" else np.float32
    return made


if __name__ == "__main__":
    _folder, _port, _window_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    _apis = []
    for _name in sys.argv[5:]:
        _file = _folder / f"{_name.removesuffix('_batched')}.onnx"
        _merging = (MAX_BATCH, _window_s) if _name.endswith("_batched") else (1, 0.0)
        _apis.append(api(_file, f"/{_name}", *_merging))
    _num_workers = int(sys.argv[4])
    _server = litserve.LitServer(
        _apis, accelerator="cpu", devices=1, workers_per_device=_num_workers
    )
    _server.run(
        host="127.0.0.1", port=_port, num_api_servers=1, generate_client_file=False,
        log_level="warning",
    )  # fmt: skip
