"""``rlmodule inspect``: show the contents of a checkpoint, without importing the code that it names."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from algorithms.cli.checkpoints import find_checkpoint
from algorithms.cli.exits import OK
from algorithms.cli.flags import CommandFlags, parse
from algorithms.loggers.base import clock_of
from algorithms.loggers.jsonl import read_rows
from algorithms.run.checkpoints import read_checkpoint
from algorithms.run.saved_settings import default_settings, folders_below, plain_settings, read_about, setting_text
from algorithms.run.text import return_text, table_text
from catalog.settings import setting
from catalog_rl import printable
from rlmodule.checkpoint import PLAIN, holds_checkpoint, verify_checkpoint
from rlmodule.sealed_folder import MANIFEST, standing_in


class InspectFlags(CommandFlags):
    """Show what CKPT holds: its history, settings, nets and size. CKPT is a checkpoint, or a run folder, which stands
    for its last checkpoint. If CKPT is a folder with several runs, list the runs."""

    all: bool = setting(False, "Show all settings, also those that have their default.")


def inspect(args: Sequence[str]) -> int:
    """Run ``rlmodule inspect``; return its exit code."""
    flags, (path,), _ = parse(InspectFlags, "rlmodule inspect", "CKPT", args)
    if runs := _runs_in(Path(path)):
        print(table_text(runs, "<<<"))
        return OK
    folder = find_checkpoint(path)
    content = read_checkpoint(folder, replay=False)
    _print_settings(folder, content, show_all=flags.all)
    _print_modules(content)
    _print_files(folder)
    return OK


def _print_settings(folder: Path, content: Mapping[str, Any], *, show_all: bool) -> None:
    # plain values: decoding them would import the code that they name
    algorithm = str(content["algorithm"])
    config = plain_settings(algorithm, content["config"])
    print(printable(f"{algorithm} on {setting_text(config['env'])}"))
    print(table_text([("checkpoint", str(folder)), *_history(folder, content)], "<<"))
    defaults = {} if show_all else default_settings(algorithm)
    rows = [(name, setting_text(value)) for name, value in config.items() if show_all or value != defaults.get(name)]
    print("\nSettings" if show_all else "\nSettings that differ from the defaults (--all shows all)")
    print(table_text(rows or [("none", "")], "<<"))


def _print_modules(content: Mapping[str, Any]) -> None:
    for module_id, tensors in content["state"]["learners"]["module"].items():
        module = content["modules"][module_id]
        rows: list[tuple[str, str, str]] = []
        total = 0
        for name, tensor in tensors.items():
            # 0 for buffers, and for shared parameters, which are listed under another name
            count = tensor.numel() if name in module["parameters"] else 0
            rows.append((name, " × ".join(map(str, tensor.shape)), f"{count:,}"))
            total += count
        print("\n" + printable(f"Module {module_id}: {module['class']}"))
        print(table_text([*rows, ("parameters in all", "", f"{total:,}")], "<<>"))


def _print_files(folder: Path) -> None:
    manifest = verify_checkpoint(folder)
    print("\nFiles, unchanged since they were written (verified by their SHA-256)")
    files = [(name, f"{file['size'] / 1e6:,.3f} MB", file["sha256"]) for name, file in manifest["files"].items()]
    print(table_text(files, "<><"))
    print(table_text([("format", str(manifest["format"])), *manifest["versions"].items()], "<<"))


def _runs_in(path: Path) -> list[tuple[str, ...]]:
    """Return a table row for each run in the folders below ``path``: its folder, a description, and its env steps.
    Return no rows if ``path`` itself is a run or a checkpoint."""
    if any((path / name).exists() for name in ("run.json", "checkpoint", MANIFEST, PLAIN)):
        return []
    rows: list[tuple[str, ...]] = []
    for run in folders_below(path, "run.json"):
        about = read_about(run)
        name = "not begun" if about is None else f"{about['name']}, seed {about['seed']}"
        steps = [clock_of(row) for row in read_rows(run / "progress.jsonl")]
        checkpoints = [part for part in ("checkpoint", "best_checkpoint") if holds_checkpoint(run / part)]
        facts = f"{name}, {', '.join(checkpoints) or 'no checkpoint'}"
        rows.append((str(run), facts, f"{steps[-1]:,} steps" if steps else "no iteration yet"))
    return rows


def _history(folder: Path, content: Mapping[str, Any]) -> list[tuple[str, str]]:
    state = content["state"]
    metrics, returns = state["metrics"], state["metrics"]["returns"]
    recent = "none yet"
    if returns:
        recent = f"{return_text(sum(returns) / len(returns))}, mean of the last {len(returns):,} episodes"
    best = metrics["best_evaluation"]
    saved = datetime.fromtimestamp((standing_in(folder) / MANIFEST).stat().st_mtime)
    return [
        ("saved", f"{saved:%Y-%m-%d %H:%M:%S}"),
        ("seed", str(content["run_seed"])),
        ("env steps", f"{metrics['env_steps']:,}"),
        ("iterations", f"{metrics['iterations']:,}"),
        ("updates", f"{state['learners']['num_updates']:,}"),
        ("episodes", f"{metrics['episodes']:,}"),
        ("time", f"{metrics['seconds']:,.1f} s"),
        ("return", recent),
        ("best evaluation", "none" if best is None else return_text(best)),
    ]
