"""Declared steps between an application's values and tensors, and the processes that run them."""
