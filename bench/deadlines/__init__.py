"""Deadlines under overload: three times what a server can do, each request with its own limit.

    python -m bench.deadlines [--requests 10000] [--overload 3] [--ways rest,grpc,inside]

Every request is to be answered or refused by its deadline, and none is to run after its client
left or its deadline came. ``load.py`` says what is asked when, the ways ask it.
"""
