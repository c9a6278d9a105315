"""What to do after a run, as commands and as Python that can be pasted."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.run.run_folder import RunFolder
from algorithms.settings.encoding import encode
from rlmodule.envs.atari import is_atari


def what_next(algorithm: Algorithm, folder: RunFolder) -> str:
    """Format how to look at the run, go on with it and act with it."""
    config, allow, run = algorithm.config, allow_flag(algorithm.config), str(folder.path)
    acting = folder.best_checkpoint if folder.best_checkpoint.exists() else folder.checkpoint
    shell = commands(["evaluate", run, *allow], ["train", "--load", run, *allow])
    return f"\nNext:\n\n{shell}\n\nand in Python:\n\n{in_python(config, acting, allow[1:])}"


def allow_flag(config: AlgorithmConfig) -> list[str]:
    """Return the flag by which a command that loads the run may import the modules that its settings name."""
    modules = config.modules_to_allow()
    return ["--allow", *modules] if modules else []


def commands(*each: Sequence[str]) -> str:
    """Format commands as lines to paste."""
    program = ["rlmodule"]
    if shutil.which("rlmodule") is None and sys.argv[0].endswith(("rlmodule", "algorithms/cli/__main__.py")):
        program = [sys.executable, "-m", "algorithms.cli"]
    return "\n".join(f"  {shlex.join([*program, *words])}" for words in each)


def in_python(config: AlgorithmConfig, checkpoint: Path, modules: list[str]) -> str:
    """Format lines that act with the policy of ``checkpoint``."""
    env: Any = config.env
    env_config = dict(config.env_config)
    allow = f", allow={modules!r}" if modules else ""
    keywords = f"**{env_config!r}" if env_config else ""
    if not isinstance(env, str):
        module, _, name = encode(env).get("__import__", "").partition(":")
        imported = f"from {module} import {name.partition('.')[0]}"
        made = f"{name}({keywords})" if isinstance(env, type) else f"{name}({env_config!r})"
    elif is_atari(env):  # whose module gymnasium does not import
        imported, made = "from rlmodule import AtariGame", f"AtariGame({env!r}, {env_config!r})"
    else:
        imported, made = "import gymnasium", f"gymnasium.make({', '.join(filter(None, (repr(env), keywords)))})"
    return f"""    {imported}
    from algorithms import Algorithm

    env = {made}
    with Algorithm.from_checkpoint({str(checkpoint)!r}{allow}) as algo:
        (obs, info), state = env.reset(), None
        action, state = algo.policy.act(obs, state)"""
