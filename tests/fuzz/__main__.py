"""``python -m tests.fuzz --requests 100000``: fuzz a real server, print what it answered.

``--only N`` sends the case of that number alone and prints it. Ends with status 1 on a complaint.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz import campaign, frames, mutations, rpc, served


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--protocols", nargs="+", choices=campaign.PROTOCOLS, default=campaign.PROTOCOLS
    )
    parser.add_argument("--only", type=int, help="the number of one case")
    chosen = parser.parse_args()
    whole = len({*chosen.protocols} - {"HTTP/2"}) or 1
    numbers = range(chosen.requests // whole)
    if chosen.only is not None:
        numbers = range(chosen.only, chosen.only + 1)
        print(mutations.case(chosen.seed, chosen.only))
        print(rpc.call(chosen.seed, chosen.only))
        print(frames.conversation(chosen.seed, chosen.only))
    with tempfile.TemporaryDirectory() as folder, served.serving(Path(folder)) as server:
        found = campaign.run(server, chosen.seed, numbers, chosen.protocols)
        print(found.text())
        status = server.stop()
    print(f"stopped with status {status}")
    return 1 if found.complaints or status else 0


if __name__ == "__main__":
    sys.exit(main())
