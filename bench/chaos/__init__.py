"""Faults, one after the other, in a server of several workers under a load that does not wait.

`faults.py` has what is done to it, `limits.py` how CPUs, memory and disks are made scarce,
`server.py` the server, `watching.py` whether its readiness tells the truth. The load is that of
`bench.serving`. `python -m bench.chaos` does everything and prints one table.
"""
