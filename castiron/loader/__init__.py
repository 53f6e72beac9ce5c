"""Files to Graph: the ONNX reader and the evaluator; nothing else knows a file format."""

from castiron.loader.onnx import load

__all__ = ["load"]
