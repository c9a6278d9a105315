"""The weight of the library is counted as CONTRIBUTING says, and an iteration of PPO stays short enough to be read."""

import ast
from pathlib import Path

import pytest

from benchmarks.house import LARGE_FUNCTION, LONG_FILE, Weight, code_tokens, library_files, reading_set, weigh

ROOT = Path(__file__).resolve().parents[2]

SOURCE = '''"""A docstring that
has two lines."""

# Whole-line comment.
import math  # not on a line of its own


def area(radius):
    """Return the area."""
    return math.pi * radius**2


first, second = [area(i) for i in range(2)]
text = f"{first if first else second} and {second}"
larger = first if first > second else second
'''


@pytest.fixture
def small(tmp_path: Path) -> Weight:
    path = tmp_path / "small.py"
    path.write_text(SOURCE)
    return weigh([path], tmp_path)


def test_tokens_and_statements_leave_out_docstrings_comments_and_strings(small: Weight) -> None:
    # import math | def area(radius): | return math.pi * radius**2 | first, second = … | text = | larger = …
    assert small.counts["tokens"] == 2 + 6 + 8 + 17 + 2 + 9
    assert small.counts["statements"] == 6
    assert small.counts["lines of code"] == 6
    assert small.counts["lines"] == len(SOURCE.splitlines())


def test_expressions_that_slow_a_reader_are_counted(small: Weight) -> None:
    assert small.counts["comprehensions"] == 1
    assert small.counts["conditionals"] == 2
    assert small.counts["tuple assignments"] == 1
    assert small.counts["comments"] == 1


def test_content_of_f_strings_is_not_counted_on_any_python() -> None:
    source = "f\"{a + b:{width}} {nested(f'{c}')}\" + d\n"
    counted = [token.string for token in code_tokens(source, ast.parse(source)) if token.string in "a + b c d nested"]
    assert [text for text in counted if text] == ["+", "d"]


def test_a_large_function_without_a_comment_is_found(tmp_path: Path) -> None:
    body = "    total = 1 + 1\n" * (LARGE_FUNCTION // 5)
    (tmp_path / "large.py").write_text(f"def plain():\n{body}\n\ndef explained():\n    # Why.\n{body}")
    weight = weigh([tmp_path / "large.py"], tmp_path)
    assert [function.place for function in weight.unexplained] == ["large.py:1 plain"]
    assert len(weight.large_functions) == 2


def test_a_long_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * (LONG_FILE + 1))
    (tmp_path / "short.py").write_text("x = 1\n" * LONG_FILE)
    assert weigh(sorted(tmp_path.iterdir()), tmp_path).long_files == {"long.py": LONG_FILE + 1}


def test_an_iteration_of_ppo_can_be_read() -> None:
    read = reading_set()
    assert len(read.functions) <= 27, sorted(read.functions)
    assert read.lines <= 1300
    assert len(read.frames) <= 7, read.frames


def test_the_table_in_contributing_has_all_figures() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    figures = weigh(library_files()[:1], ROOT).rows()
    assert not [name for name in figures if f"| {name} |" not in text]
