"""Flags as other libraries call them, and what to type instead."""

from __future__ import annotations

import re
from collections.abc import Collection

from catalog.errors import closest
from catalog.migration import remedy_for


def hint_for(flag: str, known: Collection[str]) -> str:
    """What to type instead of ``flag``, if that is known: `` Use --minibatch-size.``, `` Did you mean '--lr'?``.

    Args:
        flag: As it was typed, with its dashes.
        known: The flags there are.
    """
    name = flag.strip("-").replace("-", "_")
    hint = remedy_for("flag", name) or _typed(remedy_for("setting", name))
    named = re.findall(r"--[a-z][a-z-]*", hint)
    if {*named} & {*known} if named else hint and "--num-env-steps" in known:
        return f" {hint}"
    # without the dashes, which would make all flags alike
    return closest(flag.strip("-"), [other.strip("-") for other in known]).replace("'", "'--", 1)


def _typed(hint: str) -> str:
    """A hint on Python as one on flags: ``.training(lr=...)`` becomes ``--lr``."""

    def flags(call: re.Match[str]) -> str:
        names = re.findall(r"(\w+)=", call[1])
        return " and ".join(f"--{name.strip('_').replace('_', '-')}" for name in names)

    text = re.sub(r"\.\w+\(((?:\w+=[^()]*)+)\)", flags, hint)
    return re.sub(r"\b(\w+)=\.\.\.", lambda setting: f"--{setting[1].replace('_', '-')}", text)
