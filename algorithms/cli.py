"""The ``rlmodule`` command. Its flags follow from the settings of the configs; none is written here twice.

A subcommand is a function from its arguments to an exit code and a line in :data:`COMMANDS`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from algorithms.algorithm import Algorithm
from algorithms.checks import check_value, is_schedule
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.run_folder import new_run_dir, run_name
from algorithms.session import TrainingSession
from algorithms.settings import Setting, settings_of
from catalog import Catalog, DefaultModelConfig
from catalog.errors import closest, explain_error
from rlmodule.envs import make_vector_env

DEFAULT_ALGO = "ppo"
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

NEW_RUN_DIR = "runs/<algo>-<env>-<time>"
"""Default of ``--run-dir``: a folder of this name, made anew."""

_NOT_FLAGS = ("env", "model_config")  # the argument ENV, and the group of flags "model"
_EXPLAINED = ("env_config", "gym_env_vectorize_mode")  # besides the model's, all that the catalog depends on


class UsageError(ValueError):
    """The command line cannot be understood."""


@dataclass(kw_only=True)
class TrainFlags:
    """Train an algorithm; every setting of its config is a flag."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Gymnasium id of the environment."""
    num_env_steps: int = 200_000
    """Steps to sample, over all environments."""
    target_return: float | None = None
    """Stop once the mean return of an evaluation (of recent training episodes, without --evaluation-interval) is at
    least this; exit code 1 if it is not reached."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error."""


@dataclass(kw_only=True)
class ExplainFlags:
    """Show which networks and action distribution the catalog chooses for an environment, and why."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Gymnasium id of the environment."""
    algo: str = DEFAULT_ALGO
    """The algorithm whose catalog decides."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error."""


def train(args: Sequence[str]) -> int:
    """Train ALGO on ENV, and write the run's folder."""
    config, flags = train_config(args)
    config.validate()
    with _own_run_dir(config), config.build() as algorithm:
        return _run(algorithm, flags)


def train_config(args: Sequence[str]) -> tuple[AlgorithmConfig, TrainFlags]:
    """The config that the arguments of ``rlmodule train`` describe, and the flags that are not settings.

    Raises:
        UsageError: If algorithm or a flag are unknown.
        TypeError, ValueError: If a value does not fit its setting; names the flag.
        SystemExit: After --help, or if a value cannot be read.
    """
    name = _leading(args, "train", "ALGO")
    algo = _config_class(name)
    flags = _parse(TrainFlags, f"rlmodule train {name.lower()}", args[1:], algo, settings_of(algo))
    return _config(algo, flags), flags


def explain(args: Sequence[str]) -> int:
    """Show what the catalog decides for ENV, and why."""
    name = _value_of("--algo", args)
    algo = _config_class(DEFAULT_ALGO if name is None else name)
    known = {name: known for name, known in settings_of(algo).items() if name in (*_EXPLAINED, *algo.net_settings)}
    flags = _parse(ExplainFlags, "rlmodule explain", args, algo, known)
    config = _config(algo, flags)
    env = make_vector_env(flags.env, config.env_config, 1, config.gym_env_vectorize_mode)
    try:
        spaces = env.single_observation_space, env.single_action_space
        spec = config.get_rl_module_spec(*spaces)
        print((spec.catalog_class or Catalog)(*spaces, spec.model_config).explain())
    finally:
        env.close()
    return OK


COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "train": ("ALGO ENV [flags]", train),
    "explain": ("ENV [flags]", explain),
}
"""Name → its arguments and the function; a new command adds its line here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The arguments; None takes the process's own.

    Returns:
        The exit code: 0, 1 for an error or a target that was not reached, 2 for a command line that cannot be
        understood, 130 after Ctrl-C, 143 after SIGTERM.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:  # a script has its own folder there instead; last, so that it hides nothing
        sys.path.append(os.getcwd())  # for environments beside the user: my_envs:MyEnv-v0
    try:
        if not args or args[0] in ("-h", "--help"):
            print(_overview())
            return OK if args else USAGE
        if args[0] not in COMMANDS:
            remedy = f"See rlmodule --help.{closest(args[0], COMMANDS)}"
            expected = f"one of {', '.join(COMMANDS)}"
            raise UsageError(explain_error("rlmodule", expected=expected, got=repr(args[0]), remedy=remedy))
        return COMMANDS[args[0]][1](args[1:])
    except SystemExit as end:  # from tyro after --help or a value it cannot read, and after a SIGTERM
        return end.code if isinstance(end.code, int) else OK
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if "--debug" in args:
            traceback.print_exc()
        else:
            print(_readable(error), file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED


def _overview() -> str:
    lines = ["usage: rlmodule COMMAND ...", ""]
    for name, (arguments, command) in COMMANDS.items():
        lines += [f"  rlmodule {name} {arguments}", f"      {(command.__doc__ or '').strip()}"]
    algorithms = ", ".join(name.lower() for name in ALGORITHMS)
    lines += ["", f"ALGO is one of {algorithms}. The flags are listed by `rlmodule train ALGO --help` and the like."]
    lines += ["", "The first thing to try:", ""]
    return "\n".join([*lines, "  rlmodule train ppo CartPole-v1 --target-return 475 --evaluation-interval 5"])


def _readable(error: Exception) -> str:
    """One message for the terminal. An error that is not of our making also says its type and how to see more."""
    if ": expected " in str(error):
        return f"error: {error}"
    return f"error: {type(error).__name__}: {error} (--debug shows the traceback)"


# --- from settings to flags -------------------------------------------------------------------------------------------

Flags = TypeVar("Flags", TrainFlags, ExplainFlags)


def _parse(
    base: type[Flags],
    prog: str,
    args: Sequence[str],
    algo: type[AlgorithmConfig],
    known: Mapping[str, Setting],
) -> Flags:
    """``args`` as a ``base`` that also has one attribute per section, and one called ``model``.

    Raises:
        UsageError: If a flag is unknown; names the closest.
        SystemExit: From tyro, after it has shown the help or what is wrong with a value.
    """
    groups: dict[str, list[tuple[str, Any, Any]]] = {}
    defaults = algo()
    for name, item in known.items():
        if name not in _NOT_FLAGS and (hint := flag_type(item.hint)) is not None:
            default = NEW_RUN_DIR if name == "run_dir" else vars(defaults)[name]
            doc = f"{item.doc} ({item.bounds})" if str(item.bounds) else item.doc
            groups.setdefault(item.section, []).append(_flag(name, hint, default, doc))
    model, hints = defaults.model_config_class.from_any(defaults.model_config), get_type_hints(DefaultModelConfig)
    for item in dataclasses.fields(DefaultModelConfig):  # what an algorithm adds is among its own settings
        hint = flag_type(hints[item.name])
        groups.setdefault("model", []).append(_flag(item.name, hint, vars(model)[item.name], item.metadata["doc"]))
    members = []
    for section, items in groups.items():
        group = make_dataclass(section, items)
        group.__doc__ = _section_docs(algo).get(section, "Settings of the default networks.")
        members.append((section, tyro.conf.OmitArgPrefixes[group], field(default_factory=group)))
    whole = make_dataclass(base.__name__, members, bases=(base,), kw_only=True)
    whole.__doc__ = base.__doc__
    names = [item.name for item in dataclasses.fields(base)] + [name for items in groups.values() for name, *_ in items]
    return tyro.cli(whole, args=_checked_flags(args, names, prog), prog=prog)


def flag_type(hint: Any) -> Any:
    """The part of an annotation that can be typed in a shell (no classes or functions); None where there is none."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kept = [part for arg in args if (part := flag_type(arg)) is not None]
        return Union[tuple(kept)] if any(part is not NoneType for part in kept) else None  # noqa: UP007
    containers = (list, tuple, dict, collections.abc.Mapping, collections.abc.Sequence)
    if origin in containers:
        inner = [arg for arg in args if arg not in (Any, Ellipsis)]
        return hint if all(flag_type(arg) is not None for arg in inner) else None
    return hint if origin is Literal or hint in (int, float, bool, str, NoneType, *containers) else None


def _flag(name: str, hint: Any, default: Any, doc: str) -> tuple[str, Any, Any]:
    """A field for ``make_dataclass``: ``--kebab-name``, read by tyro or, if it holds lists or dicts, by us."""
    marks: list[Any] = [tyro.conf.arg(name=_kebab(name), help=doc)]
    items = get_args(hint)
    if get_origin(hint) in (list, tuple) and items[0] in (int, float, str) and items[1:] in ((), (Ellipsis,)):
        marks.append(_spec("*", f"[{items[0].__name__.upper()} ...]|JSON", partial(_read_list, items[0])))
    elif _holds_containers(hint):
        words, kind = _words(hint), "NUMBER" if is_schedule(hint) else ""
        metavar = "|".join([*filter(None, [kind, *words]), "JSON"])
        marks.append(_spec(1, metavar, lambda texts: _read_json(texts[0], words)))
    return name, Annotated[(hint, *marks)], field(default_factory=lambda: default)


def _spec(nargs: Literal["*", 1], metavar: str, read: Callable[[list[str]], Any]) -> PrimitiveConstructorSpec[Any]:
    def write(value: Any) -> list[str]:
        return [str(item) for item in value] if nargs == "*" else [json.dumps(value)]

    return PrimitiveConstructorSpec(
        nargs=nargs, metavar=metavar, instance_from_str=read, is_instance=lambda value: True, str_from_instance=write
    )


def _holds_containers(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_holds_containers(arg) for arg in get_args(hint))
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, collections.abc.Collection) and kind is not str


def _read_list(kind: Callable[[str], Any], texts: list[str]) -> Any:
    if len(texts) == 1 and texts[0].startswith("["):
        return _read_json(texts[0])
    return [kind(text) for text in texts]


def _words(hint: Any) -> list[str]:
    """The plain words a flag takes besides JSON: those of a Literal; NAME stands for any."""
    if get_origin(hint) in (Union, UnionType):
        return [word for arg in get_args(hint) for word in _words(arg)]
    if get_origin(hint) is Literal:
        return [arg for arg in get_args(hint) if isinstance(arg, str)]
    return ["NAME"] if hint is str else []


def _read_json(text: str, words: Sequence[str] = ()) -> Any:
    if text == "None":
        return None
    if text in words:
        return text
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # ".5" is a number to everyone but JSON
    except ValueError:
        if "NAME" in words:
            return text
        words = [f"{word!r}" for word in words if word != "NAME"]
        raise ValueError(f"{text!r} is neither {', '.join([*words, 'a number'])} nor JSON") from None


def _kebab(name: str) -> str:
    return name.strip("_").replace("_", "-")


def _section_docs(algo: type[AlgorithmConfig]) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(algo.__mro__):
        found |= vars(base).get("section_docs", {})
    return found


def _checked_flags(args: Sequence[str], names: Iterable[str], prog: str) -> list[str]:
    """``args`` with each flag in its one spelling, also where it was written like the setting (``--num_epochs``).

    Raises:
        UsageError: For a flag that there is not; names the closest.
    """
    flags = {f"--{_kebab(name)}" for name in names} | {"--help"}
    spelt = []
    for arg in args:
        flag, equals, value = arg.partition("=")
        if flag.startswith("--"):
            flag = f"--{_kebab(flag.strip('-'))}"
            if flag not in flags and flag.replace("--no-", "--", 1) not in flags:
                near = [name for name in flags if name.startswith(flag)] or flags
                remedy = f"{prog} --help lists them.{closest(flag, near)}"
                raise UsageError(explain_error(prog, expected="one of its flags", got=repr(arg), remedy=remedy))
            arg = f"{flag}{equals}{value}"
        spelt.append(arg)
    return spelt


def _leading(args: Sequence[str], command: str, what: str) -> str:
    """The first argument, on which the flags depend."""
    if args and not args[0].startswith("-"):
        return args[0]
    if args and args[0] in ("-h", "--help"):
        print(_overview())
        raise SystemExit(OK)
    got, remedy = repr(args[0]) if args else "nothing", f"Write rlmodule {command} {COMMANDS[command][0]}."
    raise UsageError(explain_error(f"rlmodule {command}", expected=f"{what} first", got=got, remedy=remedy))


def _value_of(flag: str, args: Sequence[str]) -> str | None:
    """The value of a flag that has to be known before the others; None if it is not there."""
    for arg, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        if arg == flag:
            return following
        if arg.startswith(f"{flag}="):
            return arg.removeprefix(f"{flag}=")
    return None


def _config_class(name: str) -> type[AlgorithmConfig]:
    try:
        return config_class(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


# --- from flags to a run ----------------------------------------------------------------------------------------------


def _config(algo: type[AlgorithmConfig], flags: TrainFlags | ExplainFlags) -> AlgorithmConfig:
    """The config that the flags describe.

    Raises:
        TypeError, ValueError: If a value does not fit its setting; names the flag.
    """
    known, config = settings_of(algo), algo()
    config.update({"env": flags.env})
    for section, group in vars(flags).items():
        if section == "model" or not dataclasses.is_dataclass(group):
            continue
        for name, value in vars(group).items():
            item = known[name]
            config.update({name: check_value(f"--{_kebab(name)}", value, item.hint, item.bounds, item.doc)})
    base = config.model_config_class.from_any(config.model_config)
    given = vars(vars(flags)["model"])
    changed = {name: value for name, value in given.items() if value != vars(base)[name]}
    return config.update({"model_config": dataclasses.replace(base, **changed)}) if changed else config


@contextmanager
def _own_run_dir(config: AlgorithmConfig) -> Iterator[None]:
    """Put a new folder's path where ``run_dir`` is :data:`NEW_RUN_DIR`; the folder goes again if it stays empty."""
    if config.run_dir != NEW_RUN_DIR:
        yield
        return
    folder = new_run_dir(config.algo_class.__name__, config.env)
    config.update({"run_dir": str(folder)})
    try:
        yield
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _run(algorithm: Algorithm, flags: TrainFlags) -> int:
    """Train and tell; returns the exit code."""
    session = TrainingSession(algorithm, flags.num_env_steps, flags.target_return, progress=not flags.quiet)
    say = _silent if flags.quiet else partial(print, flush=True)
    _introduce(algorithm, say)
    first_step = algorithm.env_steps
    result = session.run()
    steps = algorithm.env_steps - first_step
    say(f"\nSampled {steps:,} env steps in {session.seconds:.1f} s ({steps / session.seconds:,.0f}/s).")
    folder = session.folder
    if folder is not None:
        say("Wrote")
        for path in (folder.checkpoint, folder.progress, folder.learning_curve):
            say(f"  {path}")
    if session.stopped_by is not None:
        return INTERRUPTED
    final, target = _final_evaluation(algorithm, result, say), flags.target_return
    if folder is not None:
        say(_what_next(algorithm, folder.checkpoint))
    if target is None:
        return OK
    if not session.reached and not final >= target:
        print(f"The target return {target:g} was not reached.", file=sys.stderr)
        return FAILED
    say(f"\nThe target return {target:g} was reached.")
    return OK


def _introduce(algorithm: Algorithm, say: Callable[[str], None]) -> None:
    config = algorithm.config
    parameters = sum(parameter.numel() for parameter in algorithm.get_module().parameters())
    say(run_name(algorithm))
    say(f"  seed        {algorithm.run_seed}{' (drawn)' if config.seed is None else ''}")
    say(f"  parameters  {parameters:,}")
    say(f"  run dir     {config.run_dir or 'none: nothing will be written'}")


def _final_evaluation(algorithm: Algorithm, result: Mapping[str, Any], say: Callable[[str], None]) -> float:
    """Mean return of the last iteration's evaluation, or of one made now; NaN if no episode ever ends."""
    config = algorithm.config
    if "evaluation" not in result:
        if not result["env_runners"]["num_episodes_lifetime"]:
            say("No episode has ended yet, so there is no evaluation.")
            return float("nan")
        result = {"evaluation": algorithm.evaluate()}
    final = result["evaluation"]["env_runners"]["episode_return_mean"]
    how = "sampled" if config.evaluation_explore else "most likely"
    say(f"Evaluation: return {final:.1f} over {config.evaluation_duration} episodes, taking {how} actions.")
    return final


def _what_next(algorithm: Algorithm, checkpoint: Path) -> str:
    """How to act with the checkpoint, and where to read more."""
    config, name = algorithm.config, type(algorithm).__name__.lower()
    env_id = str(config.env)
    allow = f", allow=[{env_id.partition(':')[0]!r}]" if ":" in env_id else ""
    env_config = f", **{dict(config.env_config)!r}" if config.env_config else ""
    command = ["rlmodule", "explain", env_id]
    command += [] if name == DEFAULT_ALGO else ["--algo", name]
    command += ["--env-config", json.dumps(config.env_config)] if config.env_config else []
    return f"""
Next, in Python:

    import gymnasium
    from algorithms import Algorithm

    env = gymnasium.make({env_id!r}{env_config})
    with Algorithm.from_checkpoint({str(checkpoint)!r}{allow}) as algo:
        (obs, info), state = env.reset(), None
        action, state = algo.policy.act(obs, state)

and to see how networks are chosen for this environment:

    {shlex.join(command)}"""


def _silent(text: str) -> None:
    """Print nothing."""


if __name__ == "__main__":
    sys.exit(main())
