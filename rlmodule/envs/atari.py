"""Atari games with the preprocessing of Mnih et al. 2015, through ale-py's vector env, which steps the games in
threads.

Only functions that need a game import ale-py.
"""

import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

NAMESPACE = "ALE/"
"""Prefix of the ids of Atari games."""

DEFAULTS: Mapping[str, Any] = {"reward_clipping": False, "autoreset_mode": AutoresetMode.SAME_STEP}
"""Settings that differ from ale-py's defaults: no reward clipping, and a reset within the step that ends an episode."""

ENLARGED = 4
"""Factor by which rendered frames are enlarged in width and height."""


def is_atari(env: object) -> bool:
    """Return whether ``env`` is the id of an Atari game, with or without a ``module:`` prefix."""
    return isinstance(env, str) and env.rpartition(":")[2].startswith(NAMESPACE)


def importing_id(env: Any) -> Any:
    """Return ``env``. If it is the id of an Atari game that is not registered yet, put the prefix ``ale_py:`` before
    it, with which Gymnasium imports and registers the games."""
    is_new = isinstance(env, str) and env.startswith(NAMESPACE) and env not in gym.registry
    return f"ale_py:{env}" if is_new else env


def current_id(env_id: str) -> str | None:
    """Return the current id for an old id of an Atari game, such as ``"ALE/Breakout-v5"`` for
    ``"BreakoutNoFrameskip-v4"``. Return None for any other id."""
    old = re.fullmatch(r"(?:ale_py:)?([A-Z][A-Za-z]+?)(-ram|NoFrameskip|Deterministic)*-v[0-4]", env_id)
    if old is None:
        return None
    spec = gym.registry.get(env_id.rpartition(":")[2])
    # a user's own env may have such a name
    is_game = old[2] if spec is None else str(spec.entry_point).startswith("ale_py")
    return f"{NAMESPACE}{old[1]}-v5" if is_game else None


class AtariGame(gym.Env):
    """One game as a single env that returns prepared frames, to act by hand and to render.

    Pictures show the newest frame, enlarged.

    Args:
        env_id: The id of the game.
        env_config: Options of ale-py's vector env, which plays the game, and ``render_mode``.
    """

    def __init__(self, env_id: str, env_config: Mapping[str, Any]) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
        settings = {**DEFAULTS, **env_config}
        self.render_mode = settings.pop("render_mode", None)
        self._game = gym.make_vec(importing_id(env_id), 1, "vector_entry_point", **settings)
        self.observation_space, self.action_space = self._game.single_observation_space, self._game.single_action_space
        self._is_grey = settings.get("grayscale", True)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game. Return its first stack of frames, and an empty info."""
        # ale-py does not accept numpy integers
        self._obs = self._game.reset(seed=None if seed is None else int(seed))[0][0]
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game. Return the five values that Gymnasium defines; the info is empty."""
        obs, rewards, terminateds, truncateds, info = self._game.step(np.asarray(action)[None])
        self._obs = info.get("final_obs", obs)[0]
        return self._obs, float(rewards[0]), bool(terminateds[0]), bool(truncateds[0]), {}

    def render(self) -> Any:
        """Return the newest frame, uint8 ``[H, W, 3]``, enlarged by :data:`ENLARGED`.

        Raises:
            RuntimeError: Before the first ``reset()``.
        """
        if self._obs is None:
            raise RuntimeError(
                "AtariGame.render(): expected a game that has started, got one before reset(). Call reset() first."
            )
        frame = self._obs[-1].repeat(ENLARGED, 0).repeat(ENLARGED, 1)
        return frame[..., None].repeat(3, -1) if self._is_grey else frame

    def close(self) -> None:
        """Close the vector env."""
        self._game.close()
