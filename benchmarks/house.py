"""Count what a reader has to open to follow one iteration of PPO, and how much code the library is.

``python -m benchmarks.house`` prints both; CONTRIBUTING.md has the result. ``python -m benchmarks.house --densest 40``
lists the functions that take the most effort to read, and how many comments each has.

- *Reading set*: every project file of which a function runs in a steady ``algo.train()`` of PPO in one process on
  CartPole, after two iterations; the lines of these functions and of these files; and the project's frames strictly
  between the call of ``learn()`` and ``loss.backward()``.
- *Weight*: code lines (without blank lines, comments and docstrings) and name, operator and number tokens of the three
  packages and ``catalog_rl.py``, generated files included.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("catalog", "rlmodule", "algorithms")


@dataclass(frozen=True)
class ReadingSet:
    """What runs in one iteration.

    Attributes:
        functions: Lines of each function that ran, by file and name.
        lines: Lines of each file.
        frames: The project's functions between ``learn()`` and ``backward()``, outermost first.
    """

    functions: dict[tuple[str, str, int], int]
    lines: dict[str, int]
    frames: tuple[str, ...]


def project_file(code: CodeType) -> str | None:
    """Path of ``code``'s file below the root; None unless it is one of the library's own."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    path = path.relative_to(ROOT)
    return path.as_posix() if path.parts[0] in PACKAGES else None


def function_lines(code: CodeType) -> int:
    """Number of lines from the first line of ``code`` (its first decorator) to its last."""
    return max(line for *_, line in code.co_lines() if line is not None) - code.co_firstlineno + 1


def reading_set() -> ReadingSet:
    """Run three iterations of PPO on CartPole and record the third."""
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
    found = {
        (file, code.co_name, code.co_firstlineno): function_lines(code)
        for code in codes
        if (file := project_file(code))
    }
    files = {file for file, *_ in found}
    lines = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files}
    return ReadingSet(found, lines, tuple(frames))


def stack_below_learn(frame: FrameType | None) -> Iterator[str]:
    """Names of the project's frames above ``frame`` in the stack, up to ``learn()``, which is left out."""
    names = []
    while frame is not None and frame.f_code.co_name != "learn":
        if project_file(frame.f_code) is not None:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    yield from reversed(names)


def weight(path: Path) -> tuple[int, int]:
    """Code lines, and name, operator and number tokens, of one file; docstrings count for neither."""
    source = path.read_text(encoding="utf-8")
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            text = node.body[0]
            docstrings.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines, tokens = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
            tokens += token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
    return len(lines - docstrings), tokens


@dataclass(frozen=True)
class Density:
    """How dense a function is.

    Attributes:
        place: ``path:line name``.
        lines: Code lines, without the docstring.
        tokens: Name, operator and number tokens.
        comments: Lines that have a comment.
    """

    place: str
    lines: int
    tokens: int
    comments: int

    @property
    def effort(self) -> float:
        """Tokens per line, times the square root of the lines: long and dense counts most."""
        return self.tokens / self.lines**0.5


def densest(number: int) -> list[Density]:
    """Return the ``number`` functions of the library with the most effort, the greatest first."""
    found = []
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        source = path.read_text(encoding="utf-8")
        tokens = [*tokenize.generate_tokens(io.StringIO(source).readline)]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                first, last = body[0].lineno, node.end_lineno or node.lineno
                inside = [token for token in tokens if first <= token.start[0] <= last]
                counted = [token for token in inside if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)]
                comments = sum(token.type == tokenize.COMMENT for token in inside)
                place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                lines = len({token.start[0] for token in counted})
                found.append(Density(place, lines, len(counted), comments))
    return sorted(found, key=lambda function: -function.effort)[:number]


def main() -> None:
    """Print both counts, or the densest functions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--densest", type=int, metavar="N", help="list the N densest functions instead")
    number = parser.parse_args().densest
    if number is not None:
        for each in densest(number):
            print(f"{each.lines:>4} lines {each.tokens:>5} tokens {each.comments:>3} comments  {each.place}")
        return
    read = reading_set()
    per_file = Counter[str]()
    for (file, *_), lines in read.functions.items():
        per_file[file] += lines
    for file, lines in sorted(per_file.items()):
        print(f"  {file:<48}{lines:>6} of {read.lines[file]:>4} lines")
    print(f"reading set: {len(read.lines)} files of {sum(read.lines.values()):,} lines; ", end="")
    print(f"{len(read.functions)} functions of {sum(read.functions.values()):,} lines")
    print(f"learn() to backward(): {len(read.frames)} frames: {' → '.join(read.frames)}")
    total = Counter[str]()
    for package in PACKAGES:
        weights = [weight(path) for path in (ROOT / package).rglob("*.py*") if path.suffix in (".py", ".pyi")]
        total.update(lines=sum(lines for lines, _ in weights), tokens=sum(tokens for _, tokens in weights))
        print(f"  {package:<48}{sum(lines for lines, _ in weights):>6,} code lines")
    lines, tokens = weight(ROOT / "catalog_rl.py")
    print(f"weight: {total['lines'] + lines:,} code lines, {total['tokens'] + tokens:,} tokens")


if __name__ == "__main__":
    main()
