"""``python -m castiron``: the same as the ``castiron`` command."""

import sys

from castiron.cli import main

sys.exit(main())
