"""Kernel families, one file each: what an op becomes in the loop language."""
