"""``python -m algorithms.cli``: the ``rlmodule`` command, where it is not on the path."""

import sys

from algorithms.cli.main import main

if __name__ == "__main__":  # not in the processes of several seeds, which import it
    sys.exit(main())
