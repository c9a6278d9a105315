"""Tables of the pages that are written from code."""


def table_head(*cells: str) -> list[str]:
    """The two lines that a table begins with."""
    return [table_row(*cells), "| --- " * len(cells) + "|"]


def table_row(*cells: str) -> str:
    """One line of a table; pipes inside the cells are escaped."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
