"""What the doctor can find in an env, how serious it is, and what to do."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from rlmodule.envs.checks import EnvError

Severity = Literal["fault", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("fault", "warning", "note")
"""Most serious first. A fault ends a run or makes its data wrong, a warning costs time or return, a note is a fact."""

KINDS: dict[str, tuple[Severity, str]] = {
    "import": ("fault", "Install what is missing, or correct the name; run the command in the folder of the module."),
    "contract": ("fault", "Return what the spaces and the API of the env say."),
    "spaces": ("fault", "Choose another algorithm with --algo, or wrap the env so that its spaces are supported."),
    "agents": ("fault", "Name all agents that may ever be in play; which of them observe may differ in each step."),
    "mask": ("fault", "Let the mask have an entry for each action, and allow at least one in each state."),
    "nan": ("fault", "Look for a division by zero, or a simulation that needs smaller actions or steps."),
    "raises": ("fault", "Repeat the episode from the seed and the action above."),
    "crash": ("fault", "Look for os._exit() or a crash in compiled code: python -X faulthandler shows where."),
    "hang": ("fault", "Set a time-out in the simulator, or raise --timeout if it is slow."),
    "display": ("fault", "Open no window unless render_mode is 'human'; on servers, set SDL_VIDEODRIVER=dummy."),
    "training": ("fault", "Train with rlmodule train --debug, which shows the traceback."),
    "seed": ("warning", "Call super().reset(seed=seed), and draw all random numbers from self.np_random."),
    "leak": ("warning", "Set everything in reset(), and keep nothing on the class or in the module."),
    "actions": ("warning", "Check that step() uses its action."),
    "no-end": ("warning", "Register max_episode_steps, or wrap the env in gymnasium.wrappers.TimeLimit."),
    "short-episodes": ("warning", "Check what sets terminated; an episode of one step has no future to learn about."),
    "time-out": ("warning", "If a time limit ends them, return truncated: what would follow then counts."),
    "constant-reward": ("warning", "Reward steps towards the goal, or explore: random play never sees a difference."),
    "reward-scale": ("note", "PPO standardises returns. For DQN, SAC and TD3, set normalize_rewards=True."),
    "constant-observation": ("warning", "Return what the policy needs to see, copied after the step."),
    "observation-scale": ("warning", "Set model_config={'normalize_observations': True}, or scale in a wrapper."),
    "action-bounds": ("warning", "Give the Box finite bounds: actions are stretched to them."),
    "reset-cost": ("warning", "Load files and start simulators in __init__, and let reset() only set the state."),
    "memory": ("warning", "Look for a list that grows with each step, such as of frames or infos."),
    "prints": ("warning", "Remove the print(), which takes longer than many steps."),
    "logged": ("note", "Do what the text says; the run goes on without."),
    "learning": (
        "note",
        "Half a minute is too little for most tasks. If a longer run stays as flat, check rewards and observations.",
    ),
    "time": ("note", "If the env takes most and a step takes over 1 ms, set gym_env_vectorize_mode='async'."),
}
"""Name of a finding → its severity, and what to do."""

_BY_TEXT = {
    "import": r"expected a registered id",
    "display": r"\bdisplay\b|video device|\bx11\b|\bGLFW|\bEGL\b|OpenGL",
    "agents": r"possible_agents",
    "mask": r"mask",
    "nan": r"expected (a )?finite number",
    "spaces": r"^(observation|action)_space\b",  # from the catalog, and the guard begins with the env
}


class Finding(NamedTuple):
    """One thing that was found in an env: its name in :data:`KINDS`, and what was found, as text."""

    severity: Severity
    name: str
    found: str
    remedy: str


def finding(name: str, found: str) -> Finding:
    """Return the finding ``name`` with its severity and remedy."""
    severity, remedy = KINDS[name]
    return Finding(severity, name, found, remedy)


def finding_of(error: BaseException, otherwise: str) -> Finding:
    """Return the fault that ``error`` shows, which ended the examination. ``otherwise`` is its name if neither the
    type nor the text of the error says more."""
    text = str(error).partition("\n")[0] or type(error).__name__
    if isinstance(error, EnvError):
        otherwise = "raises"
    elif isinstance(error, ImportError):
        otherwise = "import"
    names = (name for name, pattern in _BY_TEXT.items() if re.search(pattern, text))
    return finding(next(names, otherwise), text)
