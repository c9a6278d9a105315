"""Vector envs from whatever the user has: an id, a class, a factory, or a factory of ready vector envs."""

import functools
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from catalog.copies import mutable_copy
from catalog.errors import closest
from catalog.migration import remedy_for
from rlmodule.envs.atari import atari_settings, current_id, importing_id, is_atari
from rlmodule.envs.checks import EnvGuard, VectorGuard, check_finite
from rlmodule.envs.restarting import TRIES, RestartingEnv, pause_before_try
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import die_with_parent, end_processes, in_lasting_thread, workers_ignore_ctrl_c
from rlmodule.envs.sync_vector_env import SyncEnvs

__all__ = [
    "EnvGuard",
    "EnvSource",
    "VectorGuard",
    "VectorizeMode",
    "autoreset_mode",
    "check_finite",
    "end_processes",
    "guard_for",
    "install_remedy",
    "make_vector_env",
    "spec_to_send",
    "workers_ignore_ctrl_c",
]

EnvSource: TypeAlias = str | type[gym.Env] | Callable[..., Any]
"""A registered id (``"CartPole-v1"``, ``"my_package:MyEnv-v0"``), a class, made as ``cls(**env_config)``, or a factory
``fn(env_config)`` that returns a ``gymnasium.Env`` or a ``gymnasium.vector.VectorEnv``."""

VectorizeMode: TypeAlias = Literal["sync", "async", "vector_entry_point"]

_MODES = ("sync", "async", "vector_entry_point")
# What make_vec and make take themselves; in an env_config they would never reach the env.
_RESERVED = ("id", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "disable_env_checker")
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "ale_py": "atari"}  # Package → the extra of ours that brings it.

# Observations are the vector env's own memory, which the next step writes anew: a runner copies them anyway.
_ASYNC_KWARGS: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False}

# The vector envs made here from single ones, each in an EnvGuard. Held by identity and weakly: a worker process cannot
# be asked, and an attribute on another library's object would be a guess for whoever reads it.
_guarded: "weakref.WeakSet[VectorEnv[Any, Any, Any]]" = weakref.WeakSet()


@dataclass(frozen=True)
class _Guarding:
    """What single envs are put into."""

    first_env_index: int
    step_counter: SharedCounter | None
    mends: bool
    maker_pid: int = field(default_factory=os.getpid)
    spaces: dict[str, gym.Space[Any]] = field(default_factory=dict)
    """Those of the first env, once it is made."""

    def guard(self, env: gym.Env[Any, Any], index: int, make: Callable[[], gym.Env[Any, Any]]) -> Any:
        """``env`` in its guard; ``make`` makes another one like it."""
        guard = self._guard_one(env, index)
        return RestartingEnv(guard, lambda: self._guard_one(make(), index)) if self.mends else guard

    def _guard_one(self, env: gym.Env[Any, Any], index: int) -> EnvGuard:
        guard = EnvGuard(env, index, self.step_counter)
        for name, own in (("observation_space", guard.observation_space), ("action_space", guard.action_space)):
            first = self.spaces.setdefault(name, own)
            if own != first:
                raise ValueError(
                    f"env {index}, {name}: expected that of env {self.first_env_index}, {first}, "
                    f"got {own}. Let it depend on nothing that differs between the envs of a run."
                )
        return guard

    def begin(self) -> None:
        """The first thing to do where an env is to be made."""
        if os.getpid() != self.maker_pid:
            die_with_parent()


def make_vector_env(
    env: EnvSource,
    env_config: Mapping[str, Any],
    num_envs: int,
    mode: VectorizeMode | None = None,
    *,
    first_env_index: int = 0,
    step_counter: SharedCounter | None = None,
    mends: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector env of `num_envs` environments.

    Ids, classes and factories of single envs become a SyncVectorEnv or AsyncVectorEnv with same-step autoreset, each
    sub-env in an `EnvGuard`; their observations are overwritten by the next step (``copy=False``). A ready vector env
    (from a factory, a VectorEnv class, which also gets ``num_envs``, or the "vector_entry_point" of an id) is returned
    as it is and keeps its own autoreset mode; guard it with `guard_for`.

    Args:
        env: See `EnvSource`. Factories are called once per env, each time with a fresh dict, fresh at every depth.
        env_config: Settings for the env.
        num_envs: Number of envs; a ready vector env must have exactly so many.
        mode: "sync" steps the envs in turn in this process, "async" in one process each, "vector_entry_point" uses the
            vectorised implementation registered with the id. None is that for Atari's games (ids ``ALE/...``), and
            "sync" for all others.
        first_env_index: Index of the first env in the run, for messages.
        step_counter: Counts the steps of single envs in this process; the caller counts those of other envs.
        mends: Make a single env anew that raises, or cannot be made, up to three times in a row; see `RestartingEnv`.

    Raises:
        ValueError: Unknown id, mode or number of envs; a mode that does not go with `env`; reserved keys; a ready
            vector env that is to be mended.
        TypeError: `env` is none of the above, or a factory returned something else.
        ImportError: The env needs a package that is not installed; says how to install it.
        RuntimeError: The env could not be made; chained, with type and message of the original in the text.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ValueError(
            f"num_envs: expected a positive int, got {num_envs!r}. Set num_envs_per_env_runner to 1 or more."
        )
    if mode is None:
        mode = "vector_entry_point" if is_atari(env) else "sync"
    if mode not in _MODES:
        raise ValueError(
            f"mode: expected one of {_MODES}, got {mode!r}. Choose one of them.{closest(str(mode), _MODES)}"
        )
    guarding = _Guarding(first_env_index, None if mode == "async" else step_counter, mends)
    if isinstance(env, str):
        if current_id(env):
            raise _unknown_id(env)
        make = functools.partial(_from_id, env, dict(env_config), num_envs, mode, guarding)
    elif callable(env):
        make = functools.partial(_from_callable, env, env_config, num_envs, mode, guarding)
    else:
        raise TypeError(
            f"env: expected an id, an env class or a factory fn(env_config), got {env!r}. Pass a "
            "factory that makes it, e.g. lambda env_config: MyEnv()."
        )
    return _persistently(make) if mends else make()


def spec_to_send(env: EnvSource) -> EnvSpec | None:
    """What is registered here under the id `env`, for processes in which nobody registered it; None where `env` is no
    id, or one with a module, which registers it wherever it is imported.

    Raises:
        ValueError: Unknown id.
    """
    if not isinstance(env, str) or ":" in importing_id(env):
        return None
    try:
        namespace, name, version = parse_env_id(env)
    except gym.error.Error:
        raise _unknown_id(env) from None
    if version is None and env not in gym.registry:  # then Gymnasium takes the newest version
        newest = find_highest_version(namespace, name)
        env = env if newest is None else f"{env}-v{newest}"
    if env not in gym.registry:
        raise _unknown_id(env)
    return gym.registry[env]


def _persistently(make: Callable[[], VectorEnv[Any, Any, Any]]) -> VectorEnv[Any, Any, Any]:
    """``make()``, tried again if an env could not be made."""
    for failures in range(1, TRIES):
        try:
            return make()
        except RuntimeError:
            pause_before_try(failures)
    try:
        return make()
    except RuntimeError as error:
        raise RuntimeError(f"{error} This was the last of {TRIES} tries.") from error


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """How `env` begins the next episode: within the step that ends one, in the step after, or not by itself.

    Raises:
        ValueError: The env does not say, or says something unknown.
    """
    # Not declared by VectorEnv, but the vector envs of Gymnasium itself have it, and it is the safer source: up to
    # Gymnasium 1.2 their metadata is the dict of the sub-env's class, overwritten by the next vector env of that class.
    mode = getattr(env.unwrapped, "autoreset_mode", None)
    if mode is None:
        mode = env.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return mode
    spelt = str(mode).replace("_", "").replace("-", "").lower()
    for known in AutoresetMode:
        if isinstance(mode, str) and spelt == known.value.lower():
            return known
    raise ValueError(
        f"autoreset mode of {type(env.unwrapped).__name__}: expected one of "
        f"{[str(known) for known in AutoresetMode]}, got {mode!r}. Set metadata = "
        '{"autoreset_mode": AutoresetMode.SAME_STEP} (or what it does) on the vector env\'s '
        "class."
    )


def guard_for(env: VectorEnv[Any, Any, Any], first_env_index: int = 0) -> VectorGuard | None:
    """The guard its caller must run on each step of `env`; None if every sub-env is in an `EnvGuard` already."""
    return None if env.unwrapped in _guarded else VectorGuard(env, first_env_index)


def last_error(env: VectorEnv[Any, Any, Any], guard: VectorGuard | None) -> Exception | None:
    """What is wrong with what `env` returned last, perhaps in a step in which nobody looked; `guard` is that of its
    caller. Envs in processes of their own are not asked."""
    if guard is not None:
        return guard.last_error()
    errors = env.call("last_error") if isinstance(env, SyncEnvs) else ()
    return next((error for error in errors if error is not None), None)


def _from_id(
    env_id: str, env_config: dict[str, Any], num_envs: int, mode: VectorizeMode, guarding: _Guarding
) -> VectorEnv[Any, Any, Any]:
    where = f"env {env_id!r}"
    if taken := [key for key in _RESERVED if key in env_config]:
        remedy = "Set the number of envs by num_envs_per_env_runner; add wrappers in a factory fn(env_config)."
        where = f"env_config of {where}"
        raise ValueError(f"{where}: expected settings of the env only, got {taken}. {remedy}")
    full_id = importing_id(env_id)
    if mode == "vector_entry_point" and is_atari(env_id):
        env_config = atari_settings(env_id, env_config)
    settings = {"disable_env_checker": True, **env_config}  # EnvGuard does that work, and for longer.
    again = spec_to_send(env_id) or full_id  # a process that was spawned has not what a script registered

    def make_single(index: int) -> gym.Env[Any, Any]:
        guarding.begin()
        here = os.getpid() == guarding.maker_pid
        env = gym.make(full_id if here else again, **mutable_copy(settings))  # by its id it warns of an old version
        return guarding.guard(env, index, lambda: gym.make(again, **mutable_copy(settings)))

    env_fns = [functools.partial(make_single, guarding.first_env_index + i) for i in range(num_envs)]

    try:
        if mode == "vector_entry_point":
            made = gym.make_vec(full_id, num_envs, mode, **mutable_copy(env_config))
        elif mode == "sync":
            made = SyncEnvs(env_fns)
        else:
            with workers_ignore_ctrl_c():
                made = in_lasting_thread(lambda: AsyncVectorEnv(env_fns, **_ASYNC_KWARGS))
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ImportError(f"{where}: expected its packages, got {error}. {install_remedy(error)}") from error
    except Exception as error:
        told = _id_error(env_id, mode, error)
        raise told from (None if isinstance(told, ValueError) else error)  # the former says all there is to say
    if mode == "vector_entry_point":
        return _accept_ready(made, where, num_envs, guarding)
    return _accept_single(made, guarding)


def _id_error(env_id: str, mode: VectorizeMode, error: Exception) -> Exception:
    """What to raise for an `error` of ``make_vec``: told apart by what the registry knows of the id."""
    where, name = f"env {env_id!r}", env_id.rpartition(":")[2]
    spec = gym.registry.get(name)
    if isinstance(error, gym.error.Error) and spec is None:
        return _unknown_id(env_id)
    if mode == "vector_entry_point" and spec is not None and spec.vector_entry_point is None:
        return ValueError(f"{where}: expected an id with a vector entry point, got none. Use mode 'sync' or 'async'.")
    if mode == "async" and isinstance(error, EOFError | ConnectionError):
        return _worker_died(where, error)
    return RuntimeError(
        f"{where}: expected to be made, got {type(error).__name__}: {error}. Check env_config "
        "against the arguments of the env."
    )


def _unknown_id(env_id: str) -> ValueError:
    where, name = f"env {env_id!r}", env_id.rpartition(":")[2]
    if current := current_id(env_id):
        return ValueError(
            f"{where}: expected a current id, got an old one of an Atari game. Use {current!r}, "
            "whose frames are prepared; for raw ones, a factory that calls gymnasium.make()."
        )
    return ValueError(
        f"{where}: expected a registered id, got an unknown one. Register it, or name its module "
        f"as in 'my_package:{name}'.{closest(name, gym.registry)}"
    )


def _worker_died(where: str, error: Exception) -> RuntimeError:
    """What to raise if a worker process ended before it answered; its own error is on stderr."""
    return RuntimeError(
        f"{where}: expected a process for each env, got one that ended ({type(error).__name__}). "
        "See its error above. Where processes are spawned (macOS, Windows), a script must put "
        "what it runs below if __name__ == '__main__':, and mode 'sync' needs no processes."
    )


def install_remedy(error: Exception) -> str:
    """What to do about an `error` of a package that an env misses."""
    text = f"{error} {error.__cause__}".lower()
    for package, extra in _EXTRAS.items():
        if (
            package in text and "gymnasium-robotics" not in text
        ):  # Where Gymnasium sends users of its oldest MuJoCo envs.
            return f'Run: pip install "catalog-rl[{extra}]"'
    return "Install the package that is missing, or correct its name."


def _from_callable(
    source: Callable[..., Any],
    env_config: Mapping[str, Any],
    num_envs: int,
    mode: VectorizeMode,
    guarding: _Guarding,
) -> VectorEnv[Any, Any, Any]:
    where = f"env {_name(source)}"
    made = _call(source, env_config, num_envs, guarding.first_env_index)
    if isinstance(made, VectorEnv):
        if mode == "async" and not isinstance(made.unwrapped, AsyncVectorEnv):
            made.close()
            raise ValueError(
                f"{where}: expected single envs for mode 'async', got a "
                f"{type(made.unwrapped).__name__}. Leave the mode out: it cannot change a ready "
                "one."
            )
        return _accept_ready(made, where, num_envs, guarding)
    if mode == "vector_entry_point":
        made.close()
        raise ValueError(
            f"{where}: expected a VectorEnv for mode {mode!r}, got one env. Use mode 'sync' or "
            "'async', or return a VectorEnv."
        )

    def make_single(index: int) -> gym.Env[Any, Any]:
        return _call_for_single(source, env_config, num_envs, index)

    def guarded(env: gym.Env[Any, Any], index: int) -> gym.Env[Any, Any]:
        return guarding.guard(env, index, functools.partial(make_single, index))

    first = guarded(made, guarding.first_env_index)
    # The env that was looked at is not wasted: it becomes env 0, or the one from which AsyncVectorEnv reads the spaces.
    # The latter happens before the workers start, so that none of them is given a copy of it.
    ready, first_spaces = [first], (first.observation_space, first.action_space)

    def make_env(index: int) -> gym.Env[Any, Any]:
        guarding.begin()
        if ready:
            return ready.pop()
        try:
            return guarded(make_single(index), index)
        except Exception as error:
            if mode == "async":
                return _FailedEnv(error, first_spaces)
            raise

    env_fns = [functools.partial(make_env, guarding.first_env_index + i) for i in range(num_envs)]
    if mode == "async":
        try:
            with workers_ignore_ctrl_c():
                made = in_lasting_thread(lambda: AsyncVectorEnv(env_fns, **_ASYNC_KWARGS))
        except (EOFError, ConnectionError) as error:
            raise _worker_died(where, error) from error
        return _accept_single(made, guarding)
    vector_env = SyncEnvs(env_fns)
    if len({id(env.unwrapped) for env in vector_env.envs}) < num_envs:
        vector_env.close()
        raise ValueError(
            f"{where}: expected a new env from each call, got the same one. Construct the env inside the factory."
        )
    return _accept_single(vector_env, guarding)


def _call(
    source: Callable[..., Any], env_config: Mapping[str, Any], num_envs: int, index: int
) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """Make one env, or a vector env, from a class or factory; see `make_vector_env` for the errors."""
    config = mutable_copy(dict(env_config))
    if isinstance(source, type) and issubclass(source, VectorEnv):
        config.setdefault("num_envs", num_envs)
    try:
        made = source(**config) if isinstance(source, type) else source(config)
    except Exception as error:
        got = f"{type(error).__name__}: {error}".rstrip(".")
        remedy = "Mend what raises there: its traceback stands above."
        if isinstance(error, TypeError):
            remedy = "A class is made as cls(**env_config); a factory takes one dict, as in lambda env_config: MyEnv()."
        if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
            remedy = install_remedy(error)
        raise RuntimeError(f"env {_name(source)}, env index {index}: expected an env, got {got}. {remedy}") from error
    if isinstance(made, gym.Env | VectorEnv):
        return made
    remedy = "Return the env from the factory."
    if made is not None:
        remedy = "Envs of the old gym must be wrapped, e.g. in shimmy.GymV21CompatibilityV0(env=...)."
        if "possible_agents" in dir(made):  # as PettingZoo's have
            remedy = remedy_for("setting", "multi_agent")
    expected = "a gymnasium.Env or gymnasium.vector.VectorEnv"
    got = "None" if made is None else f"an object of {type(made).__module__}.{type(made).__qualname__}"
    raise TypeError(f"env {_name(source)}, env index {index}: expected {expected}, got {got}. {remedy}")


def _call_for_single(
    source: Callable[..., Any], env_config: Mapping[str, Any], num_envs: int, index: int
) -> gym.Env[Any, Any]:
    made = _call(source, env_config, num_envs, index)
    if isinstance(made, gym.Env):
        return made
    raise TypeError(
        f"env {_name(source)}, env index {index}: expected one env, as from the first call, got a "
        "VectorEnv. Return the same kind of env from every call."
    )


def _name(source: Callable[..., Any]) -> str:
    # Partials and callable objects have no name of their own.
    return getattr(source, "__qualname__", None) or repr(source)


def _accept_ready(
    made: VectorEnv[Any, Any, Any], where: str, num_envs: int, guarding: _Guarding
) -> VectorEnv[Any, Any, Any]:
    if guarding.mends:
        made.close()
        raise ValueError(
            f"{where}: expected single envs to mend, got a ready {type(made.unwrapped).__name__}. "
            "Set restart_failed_sub_environments=False, or return single envs, which can be made "
            "one by one."
        )
    if made.num_envs != num_envs:
        made.close()
        raise ValueError(
            f"{where}: expected a VectorEnv of {num_envs} envs, got one of {made.num_envs}. Set "
            f"num_envs_per_env_runner={made.num_envs}, or make the vector env with {num_envs}."
        )
    autoreset_mode(made)  # So that one that does not say is found here.
    return made


def _accept_single(made: VectorEnv[Any, Any, Any], guarding: _Guarding) -> VectorEnv[Any, Any, Any]:
    """Number the guards of a vector env of single envs; the first call that reaches the worker processes."""
    if not isinstance(made, SyncVectorEnv | AsyncVectorEnv):  # make_vec's annotation does not say so.
        raise TypeError(f"expected a SyncVectorEnv or AsyncVectorEnv, got {made}")
    try:
        first = guarding.first_env_index
        made.set_attr("env_index", list(range(first, first + made.num_envs)))
    except Exception:
        made.close()
        raise
    _guarded.add(made)
    return made


class _FailedEnv(gym.Env[Any, Any]):
    """Stands in for an env that could not be made in a worker process, and raises on the first use.

    A worker that dies while it makes its env leaves its caller with a bare EOFError.
    """

    def __init__(self, error: Exception, spaces: tuple[gym.Space[Any], gym.Space[Any]]) -> None:
        self.observation_space, self.action_space = spaces
        self._error = error

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        raise self._error
