"""Draw iteration.png: the main functions of one iteration of PPO in calling order, recorded while it runs.

Run it as ``python docs/pictures/iteration.py``. A function of the loop is drawn where it is called first, if several
others run in it. ``tests/test_pictures.py`` compares the picture with what runs.
"""

from __future__ import annotations

import ast
import functools
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from drawing import GREY, LEARNER, MODULE, RUNNER, SLATE
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("catalog", "rlmodule", "algorithms")
LOOP = ("algorithms/", "rlmodule/groups/", "rlmodule/learning/", "rlmodule/sampling/")
"""Where functions of the loop are; nets, environments and data are left out."""
LEAST = 6
"""Functions of the project that run in a call of one that is drawn, itself included."""

STAGES = {
    "Algorithm.sample": RUNNER,
    "update_from_episodes": LEARNER,
    "Algorithm.evaluate": MODULE,
    "RunReport.write": SLATE,
}
"""Ends of the names of the functions with which a stage begins → its colour."""

Row = tuple[int, str, str, int]
"""Depth, qualified name, file below the root, lines."""


@dataclass
class Called:
    """A function where it was called, with what it called, in order of the first calls."""

    code: CodeType
    calls: dict[CodeType, Called] = field(default_factory=dict)

    def functions(self) -> set[CodeType]:
        """It and all that ran in it."""
        return {self.code}.union(*(one.functions() for one in self.calls.values()))


def recorded() -> Called:
    """The calls of a steady iteration of PPO on CartPole that also evaluates and writes a log."""
    from algorithms.ppo import PPOConfig

    root = Called(recorded.__code__)
    stack = [root]

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code, here = frame.f_code, stack[-1]
            ours = Path(code.co_filename).is_relative_to(ROOT) and not code.co_name.startswith("<")
            ours = ours and Path(code.co_filename).relative_to(ROOT).parts[0] in PACKAGES
            stack.append(here.calls.setdefault(code, Called(code)) if ours else here)
        elif event == "return":
            stack.pop()

    with tempfile.TemporaryDirectory() as folder:
        config = PPOConfig(env="CartPole-v1", num_epochs=1, seed=1, run_dir=f"{folder}/run", loggers=["jsonl"])
        config.evaluation(evaluation_interval=1, evaluation_duration=2).checkpointing(keep_best_checkpoint=False)
        with config.build() as algorithm:
            algorithm.train()
            algorithm.train()
            sys.setprofile(record)
            try:
                algorithm.train()
            finally:
                sys.setprofile(None)
    return next(iter(root.calls.values()))


@functools.cache
def definitions(file: Path) -> dict[int, tuple[str, int]]:
    """First line of each function in ``file`` → its qualified name and number of lines."""
    found: dict[int, tuple[str, int]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                if isinstance(child, ast.FunctionDef):
                    found[first] = name, (child.end_lineno or first) - first + 1
                visit(child, f"{name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(file.read_text(encoding="utf-8")), "")
    return found


def outline() -> list[Row]:
    """What is drawn, from top to bottom."""
    rows: list[Row] = []
    drawn = set[CodeType]()

    def add(called: Called, depth: int) -> None:
        file = Path(called.code.co_filename)
        path = file.relative_to(ROOT).as_posix()
        if called.code in drawn or len(called.functions()) < LEAST or not path.startswith(LOOP):
            return
        drawn.add(called.code)
        name, lines = definitions(file)[called.code.co_firstlineno]
        rows.append((depth, name, path, lines))
        for one in called.calls.values():
            add(one, depth + 1)

    add(recorded(), 0)
    return rows


def text_of(rows: list[Row]) -> str:
    """``rows`` as text, a line each."""
    return "\n".join(f"{'  ' * depth}{name}, {lines} lines of {path}" for depth, name, path, lines in rows)


def draw(path: Path) -> None:
    """Write the picture to ``path``, with its text inside."""
    rows, height = outline(), 0.31
    figure = Figure(figsize=(9, height * len(rows) + 0.1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(-len(rows) * height - 0.05, 0.05))
    axes.axis("off")
    colours: dict[int, str] = {}  # by depth, of the functions that are on the way
    starts: dict[int, float] = {}
    for i, (depth, name, file, lines) in enumerate(rows):
        y, x = -(i + 0.5) * height, 0.1 + 0.22 * depth
        stage = next((colour for end, colour in STAGES.items() if name.endswith(end)), None)
        colours[depth], starts[depth] = stage or colours.get(depth - 1, SLATE), y
        if depth:  # a line from the function that calls it
            left, above = x - 0.22 + 0.09, starts[depth - 1] - height / 2 + 0.02
            axes.plot([left, left, x], [above, y, y], color=GREY, lw=1)
        box = FancyBboxPatch(
            (x, y - 0.125), 3.1, 0.25, "round,pad=0,rounding_size=0.06", fc=colours[depth], ec="none", zorder=2
        )
        axes.add_patch(box)
        axes.text(x + 0.08, y, name, color="white", size=9, weight="bold", va="center_baseline", zorder=3)
        axes.text(8.2, y, file, color=GREY, size=9, ha="right", va="center_baseline")
        axes.text(8.9, y, f"{lines} lines", color=GREY, size=9, ha="right", va="center_baseline")
    figure.savefig(path, dpi=130, transparent=True, metadata={"Software": None, "Description": text_of(rows)})


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # here tree.py would be taken for the package of this name
    draw(Path(__file__).with_suffix(".png"))
