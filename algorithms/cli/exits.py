"""Exit codes of the shell command."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
