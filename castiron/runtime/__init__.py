"""Executable to outputs: instance, pool, team of compute threads, native lane."""
