"""``python -m algorithms.cli``: the ``rlmodule`` command, for shells that do not find it on their path."""

import sys

from algorithms.cli.main import main

if __name__ == "__main__":  # the processes of several seeds import this module
    sys.exit(main())
