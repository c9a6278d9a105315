"""``python -m algorithms.cli`` is the ``rlmodule`` command, also if that is not on the path."""

import sys

from algorithms.cli.main import main

if __name__ == "__main__":  # the processes of several seeds import this module
    sys.exit(main())
