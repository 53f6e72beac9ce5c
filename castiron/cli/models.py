"""``castiron models``: which versions a server has, and which of them answers, by its admin port.

The admin port is asked over HTTP; a token is read from a file, never from the command line.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

HELP = "list, load, unload, promote or roll back the models of a running server"
_ACTIONS = ("list", "load", "unload", "promote", "rollback")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("action", choices=_ACTIONS)
    parser.add_argument("model", nargs="?", help="the model; not for list")
    parser.add_argument(
        "--version", help="for promote: a number or a label (default: the newest again)"
    )
    parser.add_argument("--admin", required=True, help="the admin port, like http://127.0.0.1:9000")
    parser.add_argument("--token-file", help="a file that holds the token to ask with")
    parser.add_argument("--ca", help="a PEM file of authorities that the server's must be one of")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Ask, and print one line for each version."""
    from castiron import errors

    if (options.action == "list") == bool(options.model):
        raise errors.InputError("expected a model's name with every action but list", "model")
    code, answer = _asked(options)
    if code != 200:
        raise errors.CastironError(f"{options.admin} answered {code}: {answer.get('error')}")
    for entry in answer["models"]:
        mark = "*" if entry["answers"] else " "
        name = f"{entry['name']}/{entry['version']}"
        print(f"{mark} {name:32} {entry['condition']:9} {entry['digest'][:19]} {entry['reason']}")
    return 0


def _asked(options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    import contextlib
    import http.client
    import ssl
    from pathlib import Path
    from urllib.parse import quote, urlsplit

    where = urlsplit(options.admin)
    headers = {"content-type": "application/json"}
    if options.token_file:
        headers["authorization"] = f"Bearer {Path(options.token_file).read_text().strip()}"
    if where.scheme == "https":
        context = ssl.create_default_context(cafile=options.ca)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            where.netloc, timeout=options.timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(where.netloc, timeout=options.timeout_s)
    with contextlib.closing(connection):
        if options.action == "list":
            connection.request("GET", "/v1/status", headers=headers)
        else:
            path = f"/v1/models/{quote(options.model, safe='')}/{options.action}"
            given = {"version": options.version} if options.version else {}
            connection.request("POST", path, json.dumps(given), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
