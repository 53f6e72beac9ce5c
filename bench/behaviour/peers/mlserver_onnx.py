"""MLServer's documented way to serve what it has no runtime for: a custom one."""

from __future__ import annotations

from pathlib import Path

from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec
from onnx_rows import OnnxRows


class OnnxModel(MLModel):
    """``parameters.uri`` of its settings is the model file."""

    async def load(self) -> bool:
        """Open the file."""
        self._model = OnnxRows(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        """The first input to ``y``."""
        y = self._model.run(NumpyCodec.decode_input(payload.inputs[0]))
        return types.InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)]
        )
