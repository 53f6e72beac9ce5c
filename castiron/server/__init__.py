"""The edge: the Open Inference Protocol over HTTP."""
