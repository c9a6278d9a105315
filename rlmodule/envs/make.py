"""Functions that make vector envs from an id, a class, a factory of envs, or a factory of ready vector envs."""

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from catalog.copies import mutable_copy
from catalog_rl import closest
from rlmodule.env_names import is_zoo_id, is_zoo_module
from rlmodule.envs.async_vector_env import AsyncEnvs
from rlmodule.envs.atari import DEFAULTS as ATARI_DEFAULTS
from rlmodule.envs.atari import current_id, importing_id, is_atari
from rlmodule.envs.batched import as_vector_env
from rlmodule.envs.checks import SEVERAL_AGENTS, EnvGuard
from rlmodule.envs.restarting import TRIES, RestartingEnv, made_in_tries
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import close_in_time, follow_parent, in_lasting_thread
from rlmodule.envs.sync_vector_env import SyncEnvs
from rlmodule.envs.vector_guard import VectorGuard

EnvSource: TypeAlias = str | type[gym.Env] | Callable[..., Any]
"""A registered id (``"CartPole-v1"``, ``"my_package:MyEnv-v0"``), a class that is called as ``cls(**env_config)``, or a
factory ``fn(env_config)`` that returns a ``gymnasium.Env`` or a ``gymnasium.vector.VectorEnv``."""

VectorizeMode: TypeAlias = Literal["sync", "async", "vector_entry_point"]

# Maps a package to the extra of catalog-rl that installs it.
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "ale_py": "atari"}


def make_vector_env(
    env: EnvSource,
    env_config: Mapping[str, Any],
    num_envs: int,
    mode: VectorizeMode | None = None,
    *,
    first_env_index: int = 0,
    step_counter: SharedCounter | None = None,
    restart: bool = False,
) -> VectorEnv:
    """Make a vector env of `num_envs` environments.

    If `env` makes single envs, return `SyncEnvs` or `AsyncEnvs` with same-step autoreset and each env in an `EnvGuard`.
    Each step overwrites the observations of the step before (``copy=False``). If `env` makes a vector env itself (a
    factory that returns one, or a batched env; a VectorEnv class, which also gets ``num_envs``; or an id in mode
    "vector_entry_point"), return this *ready* vector env, with its own autoreset mode. The caller must check the values
    of a ready vector env with the guard that `guard_for` returns.

    Args:
        env: See `EnvSource`. A factory is called once per env, each time with a new deep copy of ``env_config``.
        env_config: Settings for the env.
        num_envs: Number of envs, 1 or more; a ready vector env must have exactly this number.
        mode: "sync" steps the envs one after another in this process, "async" steps each in a separate process, and
            "vector_entry_point" uses the vectorised implementation registered with the id. None means
            "vector_entry_point" for Atari games (ids ``ALE/...``), and "sync" for all others.
        first_env_index: Index of the first env in the run, for error texts.
        step_counter: Counts steps in mode "sync". With "async" or a ready vector env, the caller must count them.
        restart: Replace a single env that raises with a new one; see `RestartingEnv`. Also try up to three times to
            make an env.

    Raises:
        ValueError: If the id is invalid; the mode does not fit `env`; the spaces of the envs differ; or a ready vector
            env has a different number of envs, or ``restart`` is set for it.
        TypeError: If a factory returned anything but an env.
        ImportError: If the env needs a package that is not installed; names the command that installs it.
        RuntimeError: If making the env raised; the text has the type and message of that error.
    """
    if mode is None:
        mode = "vector_entry_point" if is_atari(env) else "sync"
    if isinstance(env, str) and current_id(env):
        raise _unknown_id(env)
    vectorize = mode == "vector_entry_point"
    if vectorize and is_atari(env):
        env_config = {**ATARI_DEFAULTS, **env_config}
    where = f"env {name_of(env)}"
    # pass the id, not its spec: then Gymnasium warns of old versions
    make_first = functools.partial(_make, importing_id(env), env_config, num_envs, where, vectorize)
    tries = TRIES if restart else 1
    made = made_in_tries(make_first, tries)
    try:
        if isinstance(made, VectorEnv):
            _check_ready(made, where, num_envs, mode, restart)
            return made
        if vectorize:
            raise ValueError(f"{where}: expected a VectorEnv for mode {mode!r}, got one env. Leave the mode out.")
        spaces = _spaces_of(made, where)
    except ValueError:
        made.close()
        raise
    # send the spec: a spawned process does not run the script that registered the id
    make_another = functools.partial(_make, spec_to_send(env) or importing_id(env), env_config, num_envs, where)
    # `made` becomes env 0 of SyncEnvs. AsyncVectorEnv makes an env in this process to read the spaces, before it starts
    # the workers: that one is `made`, and no worker gets a copy of it.
    ready, maker_pid = [made], os.getpid()

    def guarded(single: gym.Env, index: int) -> EnvGuard:
        try:
            check_alike(f"env {index}, spaces", _spaces_of(single, f"env {index}"), f"env {first_env_index}", spaces)
        except ValueError:
            close_in_time(single, f"env {index}")
            raise
        return EnvGuard(single, index, None if mode == "async" else step_counter)

    def make_single(index: int) -> gym.Env:
        if os.getpid() != maker_pid:
            follow_parent()
        try:
            guard = guarded(ready.pop() if ready else made_in_tries(make_another, tries), index)
        except Exception as error:
            if mode == "async":
                return _FailedEnv(error, *spaces)
            raise
        return RestartingEnv(guard, lambda: guarded(make_another(), index)) if restart else guard

    env_fns = [functools.partial(make_single, first_env_index + i) for i in range(num_envs)]
    return _in_processes(env_fns, where) if mode == "async" else _in_turn(env_fns, where)


def name_of(env: EnvSource) -> str:
    """Return the name of an env's id, class or factory, for error texts."""
    # ids, partials and callable objects have no __qualname__
    return getattr(env, "__qualname__", None) or repr(env)


def _make(
    source: EnvSource | EnvSpec, env_config: Mapping[str, Any], num_envs: int, where: str, vectorize: bool = False
) -> Any:
    """Make a single or vector env from ``source``. An id gives a single env, or with ``vectorize`` a vector env of
    ``num_envs``. A class or factory gives what it makes; one of vector envs gets ``num_envs``. Errors name ``where``.
    """
    config = mutable_copy(dict(env_config))
    remedy = "Check env_config against the arguments of the env."
    try:
        if isinstance(source, str | EnvSpec):
            if vectorize:
                remedy = f"{remedy} If the id has no vector class, or for a game as it is, set another mode."
                return gym.make_vec(source, num_envs, "vector_entry_point", **config)
            return gym.make(source, disable_env_checker=True, **config)  # EnvGuard checks more
        remedy = "A class is called as cls(**env_config), a factory with one dict, as in lambda env_config: MyEnv()."
        if isinstance(source, type) and issubclass(source, VectorEnv):
            config.setdefault("num_envs", num_envs)
        made = source(**config) if isinstance(source, type) else source(config)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        got = str(error).rstrip(".")
        raise ImportError(f"{where}: expected its packages, got {got}. {install_remedy(error)}") from error
    except Exception as error:
        if (
            isinstance(source, str)
            and isinstance(error, gym.error.Error)
            and source.rpartition(":")[2] not in gym.registry
        ):
            raise _unknown_id(source.removeprefix("ale_py:")) from None
        raise RuntimeError(
            f"{where}: expected an env, got {type(error).__name__}: {str(error).rstrip('.?')}. {remedy}"
        ) from error
    if (batch := as_vector_env(made)) is not None:
        return batch
    if isinstance(made, gym.Env):
        return made
    remedy = "Return the env from the factory; wrap one of the old gym in shimmy.GymV21CompatibilityV0(env=...)."
    # every env of several agents lists one of these; a PettingZoo wrapper lists only what its class defines
    if not {"possible_agents", "max_num_agents"}.isdisjoint(dir(made)):
        remedy = SEVERAL_AGENTS
    elif "step_async" in dir(made):  # a vector of Stable-Baselines3
        remedy = "Return one env: a runner makes num_envs_per_env_runner of them itself."
    expected = "a gymnasium.Env or gymnasium.vector.VectorEnv"
    got = "None" if made is None else f"an object of {type(made).__module__}.{type(made).__qualname__}"
    raise TypeError(f"{where}: expected {expected}, got {got}. {remedy}")


def _spaces_of(env: gym.Env, where: str) -> tuple[gym.Space, gym.Space]:
    """Return the observation and action space of ``env``. Raise ValueError as :func:`_space_of` does."""
    return _space_of(env, "observation_space", where), _space_of(env, "action_space", where)


def _space_of(env: gym.Env | VectorEnv, name: str, where: str) -> gym.Space:
    """Return the space of ``env`` with this name. Raise ValueError if it is missing or is not one of Gymnasium's."""
    expected = f"{where}, {name}: expected a space of gymnasium.spaces"
    remedy = f"Set it in the env's __init__, as in self.{name} = gymnasium.spaces.Discrete(2)."
    try:
        space = getattr(env, name)
    except AttributeError as error:  # Gymnasium's base classes only declare it
        raise ValueError(f"{expected}, got an env without it ({error}). {remedy}") from error
    if not isinstance(space, gym.Space):
        got = f"an object of {type(space).__module__}.{type(space).__qualname__}"
        raise ValueError(f"{expected}, got {got}. {remedy}")
    return space


def _check_ready(made: VectorEnv, where: str, num_envs: int, mode: VectorizeMode, restart: bool) -> None:
    """Raise ValueError unless ``made``, a ready vector env, has spaces and fits the settings."""
    if restart or mode == "async":
        setting = "restart_failed_sub_environments" if restart else "gym_env_vectorize_mode='async'"
        raise ValueError(
            f"{where}: expected single envs for {setting}, got a ready {type(made.unwrapped).__name__}. "
            "Leave the setting out, or return a single env from each call."
        )
    for name in ("single_observation_space", "single_action_space", "observation_space"):
        _space_of(made, name, where)
    if made.observation_space == made.single_observation_space:
        raise ValueError(
            f"{where}, observation_space: expected a space of all {made.num_envs} envs, got that of one. Set it to "
            "gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)."
        )
    if made.num_envs != num_envs:
        raise ValueError(
            f"{where}: expected a VectorEnv of {num_envs} envs, got one of {made.num_envs}. Set "
            f"num_envs_per_env_runner={made.num_envs}, or make the vector env with {num_envs}."
        )
    autoreset_mode(made)  # raises if it does not declare one


def _in_turn(env_fns: list[Callable[[], gym.Env]], where: str) -> SyncEnvs:
    with ExitStack() as closing:  # closes the envs unless all are good
        envs = [closing.enter_context(env_fn()) for env_fn in env_fns]
        if len({id(env.unwrapped) for env in envs}) < len(envs):
            raise ValueError(
                f"{where}: expected a new env from each call, got the same one. Construct the env inside the factory."
            )
        made = SyncEnvs([lambda env=env: env for env in envs])
        closing.pop_all()
    return made


def _in_processes(env_fns: list[Callable[[], gym.Env]], where: str) -> AsyncEnvs:
    try:
        made = in_lasting_thread(lambda: AsyncEnvs(env_fns))
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(
            f"{where}: expected a process for each env, got one that ended ({type(error).__name__}). "
            "See its error above. Where processes are spawned (macOS, Windows), a script must put "
            "what it runs below if __name__ == '__main__':, and mode 'sync' needs no processes."
        ) from error
    try:
        made.get_attr("env_index")  # the first call that reaches the envs; a `_FailedEnv` raises in it
    except Exception:
        made.close()
        raise
    return made


class _FailedEnv(gym.Env):
    """Stands in for an env that could not be made in a worker process, and raises the error on the first use.

    If the worker ended instead, the parent process would only see an EOFError.
    """

    def __init__(self, error: Exception, obs_space: gym.Space, action_space: gym.Space) -> None:
        self.observation_space, self.action_space, self._error = obs_space, action_space, error

    def get_wrapper_attr(self, name: str) -> Any:
        raise self._error


def spec_to_send(env: EnvSource) -> EnvSpec | None:
    """Return the spec registered under the id `env`, to send to processes in which the id is not registered.

    For an id without a version, return the spec of the newest version. Return None if `env` is not an id. Also return
    None if the id names a Python module, because importing that module registers the id in any process.

    Raises:
        ValueError: If the id is not registered.
    """
    if not isinstance(env, str) or ":" in importing_id(env):
        return None
    known = [spec for spec in gym.registry.values() if env in (spec.id, spec.id.rpartition("-v")[0])]
    if not known:
        raise _unknown_id(env)
    return max(known, key=lambda spec: spec.version or 0)


def _unknown_id(env_id: str) -> ValueError:
    if current := current_id(env_id):
        return ValueError(
            f"env {env_id!r}: expected a current id, got an old one of an Atari game. Use {current!r}, "
            "whose frames are prepared; for raw ones, a factory that calls gymnasium.make()."
        )
    if is_zoo_id(env_id) or is_zoo_module(env_id):
        return ValueError(f"env {env_id!r}: expected an id of Gymnasium's, got one of PettingZoo's. {SEVERAL_AGENTS}")
    name = env_id.rpartition(":")[2]  # without the module
    return ValueError(
        f"env {env_id!r}: expected a registered id, got an unknown one. Register it with gymnasium.register(), name "
        f"its module as in 'my_package:{name}', or pass the class or the function that makes it (the names of RLlib's "
        f"register_env() are not read): .environment(make_env).{closest(name, gym.registry)}"
    )


def install_remedy(error: Exception) -> str:
    """Return the sentence that says how to install the package whose absence `error` reports."""
    text = f"{error} {error.__cause__}".lower()
    for package, extra in _EXTRAS.items():
        # for its oldest MuJoCo envs, Gymnasium recommends gymnasium-robotics, which the extra does not install
        if package in text and "gymnasium-robotics" not in text:
            return f'Run: pip install "catalog-rl[{extra}]"'
    return "Install the package that is missing, or correct its name."


def autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Return the autoreset mode of `env`: whether it resets a sub-env within the step that ends an episode, in the next
    step, or never.

    Raises:
        ValueError: If the env declares no mode, or an unknown mode.
    """
    # VectorEnv does not declare the attribute, but Gymnasium's own vector envs have it, and it is more reliable: up to
    # Gymnasium 1.2 their metadata is the dict of the sub-env's class, which the next vector env of that class
    # overwrites.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        name = type(env.unwrapped).__name__
        raise ValueError(
            f"autoreset mode of {name}: expected one of {[*map(str, AutoresetMode)]}, got {mode!r}. Set metadata = "
            '{"autoreset_mode": AutoresetMode.SAME_STEP} (or what it does) on the vector env\'s class.'
        ) from None


def guard_for(env: VectorEnv, first_env_index: int = 0) -> VectorGuard | None:
    """Return a guard for the caller to check each step of `env` with. Return None if every sub-env is already in an
    `EnvGuard`."""
    return None if isinstance(env, SyncEnvs | AsyncEnvs) else VectorGuard(env, first_env_index)


def check_alike(where: str, found: Any, first: str, expected: Any) -> None:
    """Raise ValueError if what was ``found``, such as the spaces of an env, is not ``expected``, that of ``first``."""
    if found != expected:
        raise ValueError(
            f"{where}: expected those of {first}, {expected}, got {found}. Let them depend on nothing that "
            "differs between the envs of a run."
        )
