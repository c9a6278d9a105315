"""Format numbers and tables as text."""

import math
from collections.abc import Sequence
from pathlib import Path

from catalog_rl import printable


def return_text(value: float) -> str:
    """Format a return to three significant digits: ``0.532``, ``27.4``, ``-1,520``; a dash for NaN."""
    if math.isnan(value):
        return "–"
    if not math.isfinite(value) or 0 < abs(value) < 1e-4:
        return f"{value:.3g}"
    digits, _, power = f"{value:.2e}".partition("e")
    decimals = max(0, 2 - int(power)) if value else 0
    return f"{float(f'{digits}e{power}') + 0.0:,.{decimals}f}"  # + 0.0 turns -0 into 0


def duration_text(seconds: float) -> str:
    """Format a time as minutes and seconds, ``0:07``, or with hours, ``1:02:07``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def table_text(rows: Sequence[Sequence[str]], sides: str, indent: str = "  ") -> str:
    """Format rows as lines with aligned columns.

    Args:
        rows: The cells of each line, which may come from a file; at least one row.
        sides: "<" or ">" for each column: align its cells left or right.
        indent: Start of each line.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    line = indent + "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(line.format(*row).rstrip() for row in cells)


def path_text(path: Path) -> str:
    """Return ``path`` as text, relative to the working directory if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
