"""What to do after a run, as commands and as Python that can be pasted."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algorithms.algorithm import Algorithm
from algorithms.cli.explain import DEFAULT_ALGO
from algorithms.cli.flags import SPEC_FLAGS, kebab
from algorithms.config import AlgorithmConfig
from algorithms.run.run_folder import RunFolder
from algorithms.settings.encoding import encode
from rlmodule.envs.atari import is_atari


def program() -> list[str]:
    """How this command can be typed again: ``rlmodule``, or its path where that is not on the path."""
    called = Path(sys.argv[0])
    if called.parts[-3:] == ("algorithms", "cli", "__main__.py"):
        return [_on_path("python", Path(sys.executable)), "-m", "algorithms.cli"]
    return ["rlmodule" if called.stem != "rlmodule" else _on_path("rlmodule", called)]


def _on_path(name: str, called: Path) -> str:
    found = shutil.which(name)
    return name if found is not None and called.exists() and Path(found).samefile(called) else str(called)


def what_next(algorithm: Algorithm, folder: RunFolder) -> str:
    """How to look at the run, go on with it and act with it."""
    config, name = algorithm.config, type(algorithm).__name__.lower()
    modules, allow = [*config.modules_to_allow()], allow_flag(config)
    path = _path_of(config.env)
    explained = ["explain", path, *([] if name == DEFAULT_ALGO else ["--algo", name]), *_spec_flags(config)]
    explained += ["--env-config", json.dumps(config.env_config)] if config.env_config else []
    acting = folder.best_checkpoint if folder.best_checkpoint.exists() else folder.checkpoint
    return f"""
Next:

{commands(["evaluate", str(folder.path), *allow], ["train", "--load", str(folder.path), *allow], explained)}

and in Python:

{in_python(config.env, path, dict(config.env_config), acting, modules)}"""


def allow_flag(config: AlgorithmConfig) -> list[str]:
    """What a command that loads the run needs to be told of the modules that its settings name."""
    modules = config.modules_to_allow()
    return ["--allow", *modules] if modules else []


def commands(*each: Sequence[str]) -> str:
    """Commands as lines to paste."""
    return "\n".join(f"  {shlex.join([*program(), *words])}" for words in each)


def _path_of(env: Any) -> str:
    return env if isinstance(env, str) else encode(env).get("__import__", "")


def _spec_flags(config: AlgorithmConfig) -> list[str]:
    """The classes of one's own that the nets are made with, as they were typed."""
    spec = config.rl_module_spec
    given = {name: vars(spec)[name] for name in SPEC_FLAGS} if spec is not None else {}
    paths = {name: encode(value).get("__import__") for name, value in given.items() if value is not None}
    return [word for name, path in paths.items() if path for word in (f"--{kebab(name)}", path)]


def in_python(env: Any, path: str, env_config: dict[str, Any], checkpoint: Path, modules: list[str]) -> str:
    """Lines that act with the policy of ``checkpoint`` in ``env``, whose import path is ``path`` if it is no id."""
    allow = f", allow={modules!r}" if modules else ""
    keywords = f"**{env_config!r}" if env_config else ""
    if isinstance(env, str) and is_atari(env):  # whose module gymnasium does not import
        imported, made = "from rlmodule import AtariGame", f"AtariGame({env!r}, {env_config!r})"
    elif isinstance(env, str):
        imported, made = "import gymnasium", f"gymnasium.make({', '.join(filter(None, (repr(env), keywords)))})"
    else:
        module, _, name = path.partition(":")
        top = name.partition(".")[0]
        imported = f"from {module} import {top}"
        made = f"{name}({keywords})" if isinstance(env, type) else f"{name}({env_config!r})"
    return f"""    {imported}
    from algorithms import Algorithm

    env = {made}
    with Algorithm.from_checkpoint({str(checkpoint)!r}{allow}) as algo:
        (obs, info), state = env.reset(), None
        action, state = algo.policy.act(obs, state)"""
