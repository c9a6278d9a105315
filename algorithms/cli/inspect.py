"""``rlmodule inspect``: what a checkpoint holds, told from its files alone: nothing that they name is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import Tensor

from algorithms.cli.checkpoints import find_checkpoint, read_checkpoint
from algorithms.cli.exits import OK
from algorithms.cli.flags import parse
from algorithms.loggers.base import STEPS
from algorithms.loggers.jsonl import read_rows
from algorithms.run.progress import return_text
from algorithms.run.saved_settings import default_settings, plain_settings, setting_text

Row = tuple[str, ...]


@dataclass(kw_only=True)
class InspectFlags:
    """Show what a checkpoint holds: its history, settings, nets and size."""

    ckpt: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CKPT")]
    """A checkpoint, or a run folder: then its last checkpoint. A folder of several runs lists them."""
    all: bool = False
    """Show all settings, also those that have their default."""
    debug: bool = False
    """Show the traceback of an error."""


def inspect(args: Sequence[str]) -> int:
    """Show what a checkpoint holds: its history, settings, nets and size."""
    flags = parse(InspectFlags, "rlmodule inspect", args)
    if (runs := _runs_in(Path(flags.ckpt))) and not flags.all:
        print(_columns(runs))
        return OK
    folder = find_checkpoint(flags.ckpt, best_first=False)
    content = read_checkpoint(folder)
    algorithm, config = str(content["algorithm"]), plain_settings(str(content["algorithm"]), content["config"])
    print(f"{algorithm} on {setting_text(config['env'])}")
    print(_columns([("checkpoint", str(folder)), *_origin(folder, content), *_history(content["state"])]))
    defaults = {} if flags.all else default_settings(algorithm)
    shown = {name: value for name, value in config.items() if flags.all or value != defaults.get(name)}
    print("\nSettings" if flags.all else "\nSettings that differ from the defaults (--all shows all)")
    print(_columns([(name, setting_text(value)) for name, value in shown.items()]) if shown else "  none")
    for module_id, tensors in content["state"]["learners"]["module"].items():
        about = content["modules"][module_id]
        print(f"\nModule {module_id}: {about['class']}")
        print(_module(tensors, set(about["parameters"])))
    print("\nFiles")
    print(_files(folder, content["state"]))
    return OK


def _runs_in(path: Path) -> list[Row]:
    """What ran in the folders below ``path`` and how far it got, a row for each; nothing if it is a run itself."""
    if any((path / name).exists() for name in ("run.json", "checkpoint", "checkpoint.json")):
        return []
    rows: list[Row] = []
    for about in sorted(file for pattern in ("*", "*/*") for file in path.glob(f"{pattern}/run.json")):
        run = about.parent
        try:
            told = json.loads(about.read_text(encoding="utf-8"))
            name = f"{told['name']}, seed {told['seed']}"
        except (ValueError, KeyError):  # it is just beginning, or something else wrote it
            name = "not begun"
        log = run / "progress.jsonl"
        steps = [row[STEPS] for row in (read_rows(log) if log.exists() else ()) if STEPS in row]
        kept = [each for each in ("checkpoint", "best_checkpoint") if (run / each / "checkpoint.json").exists()]
        facts = f"{name}, {', '.join(kept) or 'no checkpoint'}"
        rows.append((str(run), facts, f"{steps[-1]:,} steps" if steps else "no iteration yet"))
    return rows


def _origin(folder: Path, content: Mapping[str, Any]) -> list[Row]:
    file = folder / "checkpoint.json"
    return [
        ("saved", f"{datetime.fromtimestamp(file.stat().st_mtime):%Y-%m-%d %H:%M:%S}"),
        ("format", str(json.loads(file.read_text(encoding="utf-8"))["format"])),
        ("seed", str(content["run_seed"])),
    ]


def _history(state: Mapping[str, Any]) -> list[Row]:
    metrics, returns = state["metrics"], state["metrics"]["returns"]
    recent = (
        f"{return_text(sum(returns) / len(returns))}, mean of the last {len(returns):,} episodes"
        if returns
        else "none yet"
    )
    best = metrics["best_evaluation"]
    return [
        ("env steps", f"{metrics['env_steps']:,}"),
        ("iterations", f"{metrics['iterations']:,}"),
        ("updates", f"{state['learners']['num_updates']:,}"),
        ("episodes", f"{metrics['episodes']:,}"),
        ("time", f"{metrics['seconds']:,.1f} s"),
        ("return", recent),
        ("best evaluation", "none" if best is None else return_text(best)),
    ]


def _module(tensors: Mapping[str, Tensor], parameters: set[str]) -> str:
    """The tensors of a module as a tree, with the parameters in each part of it.

    What is not counted is a buffer, or a parameter that already stands there under another name.
    """
    counts = {name: tensor.numel() if name in parameters else 0 for name, tensor in tensors.items()}
    named = {tuple(_parts(name)): name for name in tensors}
    rows = [*_tree(named, tensors, counts, 0), ("parameters in all", "", f"{sum(counts.values()):,}")]
    return _columns(rows)


def _parts(name: str) -> Iterator[str]:
    """``a``, ``linears.0``, ``weight`` of ``a.linears.0.weight``: numbers stay with what they count."""
    part = ""
    for word in name.split("."):
        if part and not word.isdigit():
            yield part
            part = ""
        part = f"{part}.{word}" if part else word
    yield part


def _tree(
    named: Mapping[tuple[str, ...], str], tensors: Mapping[str, Tensor], counts: Mapping[str, int], depth: int
) -> Iterator[Row]:
    """A row for each part: name, shapes of its own tensors, parameters in it; then those of what is inside."""
    for head in dict.fromkeys(path[0] for path in named):
        inside = {path[1:]: name for path, name in named.items() if path[0] == head}
        own = [(path[0] if path else "", tensors[name].shape) for path, name in inside.items() if len(path) < 2]
        count = sum(counts[name] for name in inside.values())
        shapes = ", ".join(f"{name} {_shape(shape)}".strip() for name, shape in own)
        yield f"{'  ' * depth}{head}", shapes, f"{count:,}" if count else "–"
        yield from _tree({path: name for path, name in inside.items() if len(path) > 1}, tensors, counts, depth + 1)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) if len(shape) else "scalar"


def _files(folder: Path, state: Mapping[str, Any]) -> str:
    rows = [(file.name, _size(file.stat().st_size)) for file in sorted(folder.iterdir()) if file.is_file()]
    parts = {name: sum(_tensor_bytes(part)) for name, part in state.items()}
    return _columns([*rows, *((f"  of it {name}", _size(size)) for name, size in parts.items() if size)])


def _tensor_bytes(tree: Any) -> Iterator[int]:
    if isinstance(tree, Tensor):
        yield tree.nbytes
    elif isinstance(tree, Mapping | list):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensor_bytes(part)


def _size(num_bytes: int) -> str:
    size, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def _columns(rows: Sequence[Row]) -> str:
    """Rows as text, each column as wide as it needs; the last of three, a number, to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column == 2 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(f"  {line.rstrip()}" for line in lines)
