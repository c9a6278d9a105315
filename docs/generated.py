"""Write the pages that are made from code: tables of settings and of what is tested.

``python docs/generated.py`` writes them; ``--check`` only tells whether they are current.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))  # the feature matrix is made of the cases of a test

import configuration_reference  # noqa: E402
import feature_matrix  # noqa: E402
import model_settings  # noqa: E402
import small_zoo  # noqa: E402

PAGES: Mapping[str, Callable[[], str]] = {
    "feature-matrix.md": feature_matrix.page,
    "model-settings.md": model_settings.page,
    "reference/configuration.md": configuration_reference.page,
    "zoo.md": small_zoo.page,
}
"""Page → what makes its text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` name the stale ones; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python docs/generated.py", description="Write the pages made from code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"Stale: {', '.join(stale)}. Run python docs/generated.py.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
