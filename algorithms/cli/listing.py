"""``rlmodule list``: list algorithms, presets and supported spaces."""

import inspect
from collections.abc import Callable, Iterator, Sequence

from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import CommandFlags, parse
from algorithms.registry import ALGORITHMS, config_class
from algorithms.run.text import table_text
from catalog.actions.converters import action_converter_rules
from catalog.base import encoder_rules
from catalog.distributions.base import action_distribution_rules
from catalog_rl import closest


class ListFlags(CommandFlags):
    """List the algorithms, the presets, and the spaces with networks, or print only one of these lists."""


def list_known(args: Sequence[str]) -> int:
    """Run ``rlmodule list``; return its exit code."""
    _, words, _ = parse(ListFlags, "rlmodule list", f"[{'|'.join(_LISTS)}]", args, count=range(2))
    for name in words:
        if name not in _LISTS:
            raise UsageError(
                f"rlmodule list: expected one of {', '.join(_LISTS)}, got {name!r}. "
                f"Leave it out for all.{closest(name, _LISTS)}"
            )
    print("\n\n".join("\n".join(_LISTS[name]()) for name in words or _LISTS))
    return OK


def _algorithms() -> Iterator[str]:
    yield "Algorithms (rlmodule train ALGO ENV)"
    width = max(map(len, ALGORITHMS)) + 2
    for name in ALGORITHMS:
        purpose = (inspect.getdoc(config_class(name)().algo_class) or "").partition("\n")[0]
        yield f"  {name.lower():<{width}}{purpose}"


def _presets() -> Iterator[str]:
    yield "Presets (rlmodule train ALGO ENV takes the preset of its env; --preset ENV_ID takes another)"
    rows = [("ALGO", "ENV", "STEPS", "MEAN RETURN", "SETTINGS")]
    for name in ALGORITHMS:
        for env_id, preset in config_class(name).presets.items():
            changed = f"{len(preset.settings)} of its own" if preset.settings else "defaults"
            rows.append((name.lower(), env_id, f"{preset.num_env_steps:,}", preset.reached, changed))
    yield table_text(rows, "<<<<<")


def _spaces() -> Iterator[str]:
    for title, table in (
        ("Observations: space → encoder", encoder_rules),
        ("Actions: space → distribution", action_distribution_rules),
        ("Actions, on their way to the env", action_converter_rules),
    ):
        yield title
        yield from dict.fromkeys(f"  {rule.name}" for rule in table)
    yield "To see what is chosen for an env: rlmodule explain ENV"


_LISTS: dict[str, Callable[[], Iterator[str]]] = {"algorithms": _algorithms, "presets": _presets, "spaces": _spaces}
