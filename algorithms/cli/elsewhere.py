"""Flags as other libraries call them, and what to type instead."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

from algorithms.settings import FROM_ELSEWHERE

_IN_A_SHELL = {
    "algo": "Leave its name out: ALGO and ENV come first, as in rlmodule train ppo CartPole-v1.",
    "env": "Leave its name out: ALGO and ENV come first, as in rlmodule train ppo CartPole-v1.",
    "env_id": "Leave its name out: ALGO and ENV come first, as in rlmodule train ppo CartPole-v1.",
    "total_timesteps": "Use --num-env-steps.",
    "timesteps": "Use --num-env-steps.",
    "n_timesteps": "Use --num-env-steps.",
    "verbose": "Leave it out, or use --quiet.",
    "progress_bar": "Leave it out, or use --quiet.",
    "policy_kwargs": "Use --fcnet-hiddens 256 256 and the other flags of section model.",
    "model": "Use --fcnet-hiddens 256 256 and the other flags of section model.",
    "net_arch": "Use --fcnet-hiddens 256 256.",
    "hiddens": "Use --head-fcnet-hiddens 256.",
    "normalize_actions": "Use --normalize-actions.",
    "callback": "Use --callbacks-class my_module:MyCallbacks, or --on-train-result my_module:function.",
    "callbacks": "Use --callbacks-class my_module:MyCallbacks, or --on-train-result my_module:function.",
    "evaluation_config": "Use --evaluation-env-config or --evaluation-explore.",
    "replay_buffer_config": "Use --replay-capacity, --prioritized-replay and the other flags of section replay.",
    "on_algorithm_init": "Use --on-environment-created my_module:function.",
    "on_checkpoint_loaded": "Use --on-environment-created my_module:function.",
    "minibatch_size": "It is a setting of PPO; the batch of DQN is --train-batch-size-per-learner.",
    "n_steps": "Use --train-batch-size-per-learner, of all environments together, or DQN's --n-step.",
    "build_algo": "Leave it out.",
    "resources": "Leave it out.",
    "log_level": "Leave it out, or use --quiet.",
    **dict.fromkeys(
        ("exploration_config", "exploration_fraction", "exploration_initial_eps", "exploration_final_eps"),
        "Use --epsilon '[[0, 1.0], [10000, 0.05]]'.",
    ),
}
"""Where what to type is not what to write in Python."""


def hint_for(flag: str, known: Collection[str]) -> str:
    """What to type instead of ``flag``, if that is known: `` Use --minibatch-size.``, `` Did you mean '--lr'?``.

    Args:
        flag: As it was typed, with its dashes.
        known: The flags there are.
    """
    name = flag.strip("-").replace("-", "_")
    hint = _IN_A_SHELL.get(name) or _typed(FROM_ELSEWHERE.get(name, ""))
    named = re.findall(r"--[a-z][a-z-]*", hint)
    if {*named} & {*known} if named else hint and "--num-env-steps" in known:
        return f" {hint}"
    # without the dashes, which would make all flags alike
    names = {other.strip("-"): other for other in known}
    bare = flag.strip("-")
    near = [other for other in names if len(bare) > 2 and other.startswith(bare)] or get_close_matches(
        bare, names, n=1, cutoff=0.75
    )
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def _typed(hint: str) -> str:
    """A hint on Python as one on flags: ``.training(lr=...)`` becomes ``--lr``."""

    def flags(call: re.Match[str]) -> str:
        names = re.findall(r"(\w+)=", call[1])
        return " and ".join(f"--{name.strip('_').replace('_', '-')}" for name in names)

    text = re.sub(r"\.\w+\(((?:\w+=[^()]*)+)\)", flags, hint)
    return re.sub(r"\b(\w+)=\.\.\.", lambda setting: f"--{setting[1].replace('_', '-')}", text)
