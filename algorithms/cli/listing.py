"""``rlmodule list``: which algorithms, presets and spaces there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import parse
from algorithms.registry import ALGORITHMS, config_class
from catalog.actions.converters import action_converter_rules
from catalog.base import encoder_rules
from catalog.distributions.base import action_distribution_rules
from catalog.errors import closest
from catalog.rules import RuleTable


@dataclass(kw_only=True)
class ListFlags:
    """List the algorithms, what each learns, and the spaces there are networks for."""

    what: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(metavar="[algorithms|presets|spaces]", help_behavior_hint="(default: all of them)"),
    ] = None
    """One of the lists."""
    debug: bool = False
    """Show the traceback of an error."""


def list_known(args: Sequence[str]) -> int:
    """List algorithms, presets, and the spaces there are networks for."""
    flags = parse(ListFlags, "rlmodule list", args)
    if flags.what not in (None, *_LISTS):
        expected, remedy = f"one of {', '.join(_LISTS)}", f"Leave it out for all.{closest(flags.what, _LISTS)}"
        raise UsageError("rlmodule list", expected=expected, got=repr(flags.what), remedy=remedy)
    chosen = list(_LISTS) if flags.what is None else [flags.what]
    print("\n\n".join("\n".join(_LISTS[name]()) for name in chosen))
    return OK


def _algorithms() -> Iterator[str]:
    yield "Algorithms (rlmodule train ALGO ENV)"
    for name in ALGORITHMS:
        purpose = (inspect.getdoc(config_class(name)().algo_class) or "").partition("\n")[0]
        yield f"  {name.lower():<6}{purpose}"


def _presets() -> Iterator[str]:
    yield "Presets (rlmodule train ALGO ENV takes the one of its env; --preset ENV_ID that of another)"
    rows = [("ALGO", "ENV", "STEPS", "MEAN RETURN", "SETTINGS")]
    for name in ALGORITHMS:
        for env_id, preset in config_class(name).presets.items():
            changed = f"{len(preset.settings)} of its own" if preset.settings else "defaults"
            rows.append((name.lower(), env_id, f"{preset.num_env_steps:,}", preset.reached, changed))
    yield from _columns(rows)


def _spaces() -> Iterator[str]:
    for title, table in (
        ("Observations: space → encoder", encoder_rules),
        ("Actions: space → distribution", action_distribution_rules),
        ("Actions, on their way to the env", action_converter_rules),
    ):
        yield title
        yield from (f"  {name}" for name in _names(table))
    yield "What becomes of the spaces of an env: rlmodule explain ENV"


def _names(table: RuleTable[Any]) -> Iterable[str]:
    return dict.fromkeys(rule.name for rule in table)


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


_LISTS: dict[str, Callable[[], Iterator[str]]] = {"algorithms": _algorithms, "presets": _presets, "spaces": _spaces}
