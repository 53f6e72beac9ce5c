"""Load on a server: an open-loop generator, wrk beside it, and the tables that both fill.

`connection` is one kept connection, `traffic` sends over many by a plan or in a closed loop,
`record` holds what came of it, `watch` reads the server's CPU time and memory. `wrk` runs wrk.
`tables` compares castiron with its peers, `steady` watches one server for minutes; what a person
may aim at any server is `python -m bench.serving open` and `locustfile.py`.
"""
