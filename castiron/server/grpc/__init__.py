"""The Open Inference Protocol over gRPC, on the same loop and dispatcher as HTTP."""
