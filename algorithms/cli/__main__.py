"""``python -m algorithms.cli``: the ``rlmodule`` command, where it is not on the path."""

import sys

from algorithms.cli.main import main

sys.exit(main())
