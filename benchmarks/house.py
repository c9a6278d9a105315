"""Measure how much code the library is, how densely it is written, and what a reader opens to follow PPO.

``python -m benchmarks.house`` prints all of it; CONTRIBUTING.md has the result. ``--peer PATH`` prints the same counts
of another package next to ours, and ``--densest 40`` lists the functions that take the most effort to read.

- *Tokens* are names, operators and numbers. Strings, docstrings and comments are not counted, so that an explanation
  costs nothing. Neither does the formatter change the count.
- *Statements* are logical lines without docstrings.
- A *large* function has more than 250 tokens. It should have at least one comment that says why.
- The *reading set* of PPO is every file of which a function runs in a steady ``algo.train()`` in one process on
  CartPole; the code of these functions; and our frames strictly between ``learn()`` and ``backward()``.

Lines of files are reported, and nothing limits them: a limit would be met by packing.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("catalog", "rlmodule", "algorithms")
WORDS = ROOT / "catalog" / "migration.txt"
"""The table of other libraries' words, which is source although it is no Python."""

LARGE_FUNCTION = 250
LONG_FILE = 500

_COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)


# --- weight and density -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionWeight:
    """The weight of one function, with its signature and the functions inside it, without its docstring.

    Attributes:
        place: ``path:line name``.
        lines: Lines that hold code.
        tokens: Number of tokens.
        statements: Number of statements.
        comments: Number of comments.
    """

    place: str
    lines: int
    tokens: int
    statements: int
    comments: int

    @property
    def effort(self) -> float:
        """Tokens per line, times the square root of the lines: long and dense counts most."""
        return self.tokens / self.lines**0.5

    @property
    def is_large(self) -> bool:
        """Whether the function should have a comment."""
        return self.tokens > LARGE_FUNCTION


@dataclass
class Weight:
    """The weight of some source files.

    Attributes:
        counts: Totals of ``files``, ``lines``, ``lines of code``, ``tokens``, ``statements``, ``comments`` (on lines of
            their own), ``comprehensions``, ``conditionals`` (expressions) and ``tuple assignments``.
        functions: Each function.
        long_files: Path and lines of each file that is longer than :data:`LONG_FILE`.
    """

    counts: Counter[str] = field(default_factory=Counter)
    functions: list[FunctionWeight] = field(default_factory=list)
    long_files: dict[str, int] = field(default_factory=dict)

    @property
    def large_functions(self) -> list[FunctionWeight]:
        """The functions that should have a comment."""
        return [function for function in self.functions if function.is_large]

    @property
    def unexplained(self) -> list[FunctionWeight]:
        """The large functions without any comment."""
        return [function for function in self.large_functions if not function.comments]

    def rows(self) -> dict[str, str]:
        """Return the figures as text, by their descriptions."""
        statements = self.counts["statements"]

        def per_statement(name: str) -> str:
            return f"{self.counts[name] / statements:.2f}"

        def per_thousand(name: str) -> str:
            return f"{1000 * self.counts[name] / statements:.0f}"

        return {
            "files": f"{self.counts['files']:,}",
            "lines": f"{self.counts['lines']:,}",
            "lines of code, without docstrings and comments": f"{self.counts['lines of code']:,}",
            "tokens": f"{self.counts['tokens']:,}",
            "statements": f"{statements:,}",
            "tokens per statement": f"{self.counts['tokens'] / statements:.1f}",
            "comments on lines of their own, per statement": per_statement("comments"),
            "comprehensions per 1,000 statements": per_thousand("comprehensions"),
            "conditional expressions per 1,000 statements": per_thousand("conditionals"),
            "assignments of tuples per 1,000 statements": per_thousand("tuple assignments"),
            f"functions over {LARGE_FUNCTION} tokens": f"{len(self.large_functions):,}",
            "of these, without any comment": f"{len(self.unexplained):,}",
            f"files over {LONG_FILE} lines": f"{len(self.long_files):,}",
        }


def weigh(files: Iterable[Path], root: Path) -> Weight:
    """Return the weight of Python files. Places are relative to ``root``."""
    weight = Weight()
    for path in files:
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        parsed = ast.parse(source)
        tokens = [*code_tokens(source, parsed)]
        lines = len(source.splitlines())
        weight.counts["files"] += 1
        weight.counts["lines"] += lines
        weight.counts["lines of code"] += _lines_of_code(tokens)
        weight.counts["tokens"] += sum(token.type in _COUNTED for token in tokens)
        weight.counts["statements"] += sum(token.type == tokenize.NEWLINE for token in tokens)
        weight.counts["comments"] += sum(
            token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
        )
        if lines > LONG_FILE:
            weight.long_files[name] = lines
        for node in ast.walk(parsed):
            weight.counts["comprehensions"] += isinstance(node, _COMPREHENSIONS)
            weight.counts["conditionals"] += isinstance(node, ast.IfExp)
            weight.counts["tuple assignments"] += _assigns_a_tuple(node)
            if isinstance(node, _FUNCTIONS):
                weight.functions.append(_weigh_function(node, tokens, f"{name}:{node.lineno} {node.name}"))
    return weight


def code_tokens(source: str, parsed: ast.Module) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of ``source`` without docstrings and without what f-strings contain.

    From Python 3.12 on, the tokenizer also splits f-strings. Leaving their content out gives the same counts as before.
    """
    docstring_lines = set[int]()
    for node in ast.walk(parsed):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            docstring_lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    open_f_strings = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        open_f_strings += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if not open_f_strings and token.start[0] not in docstring_lines:
            yield token


def _lines_of_code(tokens: Iterable[tokenize.TokenInfo]) -> int:
    """Return the number of lines that hold more than a comment."""
    lines = set[int]()
    for token in tokens:
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def _assigns_a_tuple(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(target, ast.Tuple) for target in node.targets)


def _weigh_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, tokens: Iterable[tokenize.TokenInfo], place: str
) -> FunctionWeight:
    last_line = node.end_lineno or node.lineno
    inside = [token for token in tokens if node.lineno <= token.start[0] <= last_line]
    counted = [token for token in inside if token.type in _COUNTED]
    return FunctionWeight(
        place,
        lines=len({token.start[0] for token in counted}),
        tokens=len(counted),
        statements=sum(token.type == tokenize.NEWLINE for token in inside),
        comments=sum(token.type == tokenize.COMMENT for token in inside),
    )


def library_files() -> list[Path]:
    """Return every Python file of the library."""
    folders = [ROOT / package for package in PACKAGES]
    return [ROOT / "catalog_rl.py", *(path for folder in folders for path in python_files(folder))]


def python_files(folder: Path) -> list[Path]:
    """Return every Python file in or below ``folder``, sorted by path. A file stands for itself."""
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]


# --- the reading set --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadingSet:
    """What runs in one iteration of PPO.

    Attributes:
        functions: The weight of each function that ran, by file. A function inside another one counts with that one.
        frames: Our functions between ``learn()`` and ``backward()``, outermost first.
    """

    functions: dict[str, list[FunctionWeight]]
    frames: tuple[str, ...]

    @property
    def lines(self) -> int:
        """Lines of the functions that hold code."""
        return sum(function.lines for functions in self.functions.values() for function in functions)

    @property
    def statements(self) -> int:
        """Statements of the functions."""
        return sum(function.statements for functions in self.functions.values() for function in functions)

    def rows(self) -> dict[str, str]:
        """Return the figures as text, by their descriptions."""
        return {
            "files of which a function runs in one iteration of PPO": f"{len(self.functions):,}",
            "lines of code of these functions": f"{self.lines:,}",
            "statements of these functions": f"{self.statements:,}",
            "functions between `learn()` and `loss.backward()`": f"{len(self.frames):,}",
        }


def project_file(code: CodeType) -> str | None:
    """Return the path of ``code``'s file below the root, or None unless it is one of the library's files."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    path = path.relative_to(ROOT)
    return path.as_posix() if path.parts[0] in PACKAGES else None


def reading_set() -> ReadingSet:
    """Run three iterations of PPO on CartPole, and record the third. Then record the stack of a gradient step."""
    import torch

    from algorithms.ppo import PPOConfig

    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8).debugging(seed=1)
    codes: set[CodeType] = set()
    frames: list[str] = []
    backward = torch.Tensor.backward

    def record_call(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    def record_stack(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if not frames:
            frames.extend(stack_below_learn(sys._getframe(1)))
        return backward(self, *args, **kwargs)

    with config.build() as algo:
        steps = algo.train()["env_runners"]["num_env_steps_sampled_lifetime"]
        algo.train()
        sys.setprofile(record_call)
        try:
            algo.train()
        finally:
            sys.setprofile(None)
        torch.Tensor.backward = record_stack
        try:
            algo.learn(num_env_steps=4 * steps, progress=False)
        finally:
            torch.Tensor.backward = backward
    return ReadingSet(_functions_of(codes), tuple(frames))


def _functions_of(codes: Iterable[CodeType]) -> dict[str, list[FunctionWeight]]:
    """Return the weight of the functions that contain ``codes``, by file."""
    lines_run: dict[str, set[int]] = {}
    for code in codes:
        if (file := project_file(code)) is not None:
            lines_run.setdefault(file, set()).add(code.co_firstlineno)
    functions: dict[str, list[FunctionWeight]] = {}
    for file, first_lines in sorted(lines_run.items()):
        source = (ROOT / file).read_text(encoding="utf-8")
        parsed = ast.parse(source)
        tokens = [*code_tokens(source, parsed)]
        functions[file] = [
            _weigh_function(node, tokens, f"{file}:{node.lineno} {node.name}")
            for node in _outermost_functions(parsed)
            if first_lines & {*range(_first_line(node), (node.end_lineno or node.lineno) + 1)}
        ]
    return functions


def _outermost_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods in ``node`` that are not inside another function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield child
        else:
            yield from _outermost_functions(child)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line at which the code of a function begins: that of its first decorator, if it has one."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def stack_below_learn(frame: FrameType | None) -> Iterator[str]:
    """Yield the names of our functions in the stack from below ``learn()`` to ``frame``. Leave out comprehensions,
    which have no frames from Python 3.12 on."""
    names: list[str] = []
    while frame is not None and frame.f_code.co_name != "learn":
        name = frame.f_code.co_name
        if project_file(frame.f_code) is not None and not name.startswith("<"):
            names.append(name)
        frame = frame.f_back
    yield from reversed(names)


# --- print ------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Print the figures, or the densest functions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--densest", type=int, metavar="N", help="list the N densest functions instead")
    parser.add_argument("--peer", type=Path, metavar="PATH", help="the folder of a package to show next to ours")
    flags = parser.parse_args()
    ours = weigh(library_files(), ROOT)
    if flags.densest is not None:
        for function in sorted(ours.functions, key=lambda function: -function.effort)[: flags.densest]:
            counts = f"{function.lines:>4} lines {function.tokens:>5} tokens {function.comments:>3} comments"
            print(f"{counts}  {function.place}")
        return
    peers = [] if flags.peer is None else [weigh(python_files(flags.peer), flags.peer.parent).rows()]
    if flags.peer is not None:
        print(f"{'':<58}{'ours':>10}{flags.peer.name:>20}")
    for name, figure in ours.rows().items():
        print(f"{name:<58}{figure:>10}" + "".join(f"{rows[name]:>20}" for rows in peers))
    words = WORDS.read_text(encoding="utf-8")
    print(f"{'table of other libraries: lines':<58}{len(words.splitlines()):>10,}")
    print(f"{'table of other libraries: words':<58}{len(words.split()):>10,}")
    iteration = reading_set()
    for name, figure in iteration.rows().items():
        print(f"{name:<58}{figure:>10}")
    print(f"  {' → '.join(iteration.frames)}")
    for file, functions in iteration.functions.items():
        print(f"  {file:<56}{sum(function.lines for function in functions):>10} lines")
    for file, lines in ours.long_files.items():
        print(f"over {LONG_FILE} lines: {file} ({lines})")
    for function in ours.unexplained:
        print(f"over {LARGE_FUNCTION} tokens without a comment: {function.place} ({function.tokens})")


if __name__ == "__main__":
    main()
