"""Measurements: one script for each number that is published, one process for each engine.

`bench.worker` is what runs inside a measured process, `bench.process` starts it and reads its
answer, `bench.machine` says what it was measured on, `bench.table` prints and publishes. The
scripts are `latency`, `start`, `memory` and `deadlines`; `python -m bench` runs them all.
"""
