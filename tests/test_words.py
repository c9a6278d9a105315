"""Words that CONTRIBUTING.md replaces by plainer ones do not return."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_layers import parsed

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("catalog", "rlmodule", "algorithms")
TEXTS = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
CODE = ("catalog_rl.py", *(f"{folder}/**/*.py" for folder in (*PACKAGES, "benchmarks", "examples", "tests")))
NO_VERB = re.compile(r"(What|Whether|How|Who|Which|Where|That)\b")


def word_list() -> list[str]:
    """The words in the first column of the table in CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Words\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


def pattern(words: list[str]) -> re.Pattern[str]:
    """Match any of ``words``, over line breaks too; a word that ends in a letter has to end there."""
    parts = [re.escape(word).replace(r"\ ", r"\s+") + (r"\b" if word[-1].isalpha() else "") for word in words]
    return re.compile(rf"\b({'|'.join(parts)})", re.IGNORECASE)


def found(text: str, words: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for match in words.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def test_the_check_finds_a_word_in_any_case_and_over_a_line_break() -> None:
    text = "Anew, it is handed\nover, which mends\nit, if there is."
    assert [word for _, word in found(text, pattern(word_list()))] == ["Anew", "handed over", "mends", "there is."]


def test_words_that_contributing_replaces_are_not_used() -> None:
    words = pattern(word_list())
    mistakes = []
    for path in sorted({path for glob in (*TEXTS, *CODE) for path in ROOT.glob(glob)} - {Path(__file__)}):
        text = path.read_text(encoding="utf-8")
        if path.name == "CONTRIBUTING.md":
            text = re.sub(r"^\| `.*$", "", text, flags=re.MULTILINE)
        mistakes += [f"{path.relative_to(ROOT)}:{line}: {word}" for line, word in found(text, words)]
    assert not mistakes, "\n".join(["words that CONTRIBUTING.md#words replaces:", *mistakes])


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    mistakes = []
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list):
                continue  # a property is described as what it is
            if NO_VERB.match(ast.get_docstring(node) or ""):
                mistakes.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not mistakes, "\n".join(["docstrings that do not begin with a verb:", *mistakes])
