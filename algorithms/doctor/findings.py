"""What the doctor can find in an env, how serious it is, and what to do."""

import re
from collections.abc import Iterator
from typing import NamedTuple

REMEDIES = {
    "fault": {
        "import": "Install what is missing, or correct the name; run the command in the folder of the module.",
        "contract": "Return what the spaces and the API of the env say.",
        "spaces": "Choose another algorithm with --algo, or wrap the env so that its spaces are supported.",
        "agents": "Name all agents that may ever be in play; which of them observe may differ in each step.",
        "mask": "Let the mask have an entry for each action, and allow at least one in each state.",
        "nan": "Look for a division by zero, or a simulation that needs smaller actions or steps.",
        "raises": "Repeat the episode from the seed and the action above.",
        "crash": "Look for os._exit() or a crash in compiled code: python -X faulthandler shows where.",
        "hang": "Set a time-out in the simulator, or raise --seconds if it is slow.",
        "display": "Open no window unless render_mode is 'human'; on servers, set SDL_VIDEODRIVER=dummy.",
        "training": "Train with rlmodule train --debug, which shows the traceback.",
    },
    "warning": {
        "seed": "Call super().reset(seed=seed), draw all random numbers from self.np_random, and keep nothing on the "
        "class.",
        "leak": "Set everything in reset(), and keep nothing on the class or in the module.",
        "actions": "Check that step() uses its action.",
        "no-end": "Unless episodes are longer, register max_episode_steps, or use gymnasium.wrappers.TimeLimit.",
        "short-episodes": "Check what sets terminated; an episode of one step has no future to learn about.",
        "time-out": "If a time limit ends them, return truncated: what would follow then counts.",
        "constant-reward": "Reward steps towards the goal, or explore: random play never sees a difference.",
        "constant-observation": "Return what the policy needs to see, copied after the step.",
        "observation-scale": "Set model_config={'normalize_observations': True}, or scale in a wrapper.",
        "action-bounds": "Give the Box finite bounds: actions are stretched to them.",
        "reset-cost": "Load files and start simulators in __init__, and let reset() only set the state.",
        "memory": "Look for a list that grows with each step, such as of frames or infos.",
        "prints": "Remove the print(), which takes longer than many steps.",
    },
    "note": {
        "reward-scale": "PPO standardises returns. For DQN, SAC and TD3, set normalize_rewards=True.",
        "learning": "Half a minute is too little for most tasks. If a longer run stays as flat, check rewards and "
        "observations.",
        "time": "If the env takes most and a step takes over 1 ms, set gym_env_vectorize_mode='async'.",
    },
}
"""Severity, the most serious first → name of a finding → what to do. A fault ends a run or makes its data wrong, a
warning costs time or return, a note is a fact."""

_BY_TEXT = {
    "import": r"^ENV:|expected (its packages|the package|a registered id)",
    "display": r"\bdisplay\b|video device|\bx11\b|\bGLFW|\bEGL\b|OpenGL",
    "agents": r"possible_agents",
    "mask": r"mask",
    "nan": r"expected (a )?finite number",
    "spaces": r"^(observation|action)_space\b",  # from the catalog, and the guard begins with the env
    "raises": r"^env \d+ (raised|failed in)",  # and not what its guard found
    "contract": r"^env\b",
}
"""Name of a fault → what the text of its error matches, the first to match first."""


Found = tuple[str, str]
"""What was found in an env: its name in :data:`REMEDIES`, and a text."""


class Finding(NamedTuple):
    """What was found in an env, with how serious it is, and what to do."""

    severity: str
    name: str
    found: str
    remedy: str


def findings_in(found: list[Found]) -> Iterator[Finding]:
    """Yield what was ``found`` with its severity and remedy, the most serious first."""
    for severity, remedies in REMEDIES.items():
        for name, text in found:
            if name in remedies:
                yield Finding(severity, name, text, remedies[name])


def found_in(error: BaseException) -> Found:
    """Return the name and text of the fault that ``error`` shows, which ended the examination."""
    text = str(error).partition("\n")[0] or type(error).__name__
    for name, pattern in _BY_TEXT.items():
        if re.search(pattern, text):
            return name, text
    return "training", text
