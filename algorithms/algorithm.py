"""Algorithm: builds the parts of a run from a config and turns iterations into results."""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from algorithms.loggers.base import file_logger
from algorithms.ops.rewards import clipped_rewards
from algorithms.registry import config_class, name_of
from algorithms.run.evaluation import Evaluation, EvaluationPlan, finished_episodes
from algorithms.run.metrics import RunMetrics
from algorithms.run.run_folder import RunReport, last_checkpoint, run_folder_of, run_name
from algorithms.run.threads import SMALL_NET, Threads, one_thread
from algorithms.settings.fields import SettingsBase
from catalog.errors import closest, explain_error
from catalog.explain.explain import Format
from catalog.migration import remedy_for
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.data.rollout import Rollout
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.groups.learner_group import LearnerGroup
from rlmodule.modules.policy import Policy
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, RLModule
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.seeding import int_seed, torch_stream

if TYPE_CHECKING:
    from typing_extensions import Never, Self

    from algorithms.config import AlgorithmConfig

logger = logging.getLogger(__name__)

if TYPE_CHECKING:  # checkers must keep on reporting unknown attributes
    _AlgorithmType = ABCMeta
else:

    class _AlgorithmType(ABCMeta):
        """Explains words of other libraries on the class too, such as ``PPO.load``."""

        def __getattr__(cls, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
            raise _unknown_attribute(cls, name)


class Algorithm(metaclass=_AlgorithmType):
    """A run: samples, learns, evaluates, saves.

    Override points:
        ``training_step``: what one iteration does.

    Args:
        config: A validated config; usually through ``config.build()``.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.run_seed = secrets.randbits(31) if config.seed is None else config.seed
        self._callbacks = config.callback_caller()
        self._shows_rollouts = self._callbacks.listens("on_sample_end", "on_episode_end")
        self.learning_stopped = False
        """Whether :meth:`stop_learning` was called since the last :meth:`learn` began."""
        self._evaluation = Evaluation(self, self._callbacks)
        self._report: RunReport | None = None
        with torch.random.fork_rng(devices=[]), one_thread():
            # module construction draws from torch's global generator; everything after has streams of its own
            seed = int_seed(self.run_seed, "module")
            torch.default_generator.manual_seed(seed)
            self._check_resources()
            on_env = self._callbacks.on_env(in_evaluation=False)
            self.env_runner_group = EnvRunnerGroup.create(config, run_seed=self.run_seed, on_env=on_env)
            try:
                torch.default_generator.manual_seed(seed)  # whatever envs and callbacks drew
                self.module_spec, self.learner_group = self._build_modules()
            except BaseException:
                self.env_runner_group.stop()
                raise
        self.policy = Policy(self.env_runner_group.module, torch_stream(self.run_seed, "policy"))
        """Acts with the current weights: ``action, state = algo.policy.act(obs)``."""
        self.metrics = RunMetrics(config.metrics_num_episodes_for_smoothing)
        self._stopped = False
        self._has_warned_of_script = False
        self._threads = Threads(self._num_threads)

    if not TYPE_CHECKING:  # checkers must keep on reporting other arguments and unknown attributes

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            values = (*args, *kwargs.values())
            if not any(isinstance(value, SettingsBase) for value in values):
                ids = [value for value in values if isinstance(value, str) and not value.endswith("Policy")]
                remedy = f"Write {cls.__name__}Config().environment({', '.join(map(repr, ids[:1])) or '...'}).build()."
                got = ", ".join(map(repr, values)) or "nothing"
                raise TypeError(explain_error(f"{cls.__name__}()", expected="a config", got=got, remedy=remedy))
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if name in dir(self):  # a property that raised an AttributeError, which says more
                return object.__getattribute__(self, name)
            raise _unknown_attribute(self, name)

    def _build_modules(self) -> tuple[RLModuleSpec, LearnerGroup]:
        runners, config = self.env_runner_group, self.config
        spec = config.get_rl_module_spec(runners.observation_space, runners.action_space)
        learners = config.learner_group_for(spec, self.run_seed)
        try:
            runners.build_modules(spec, learners.get_module(DEFAULT_MODULE_ID))
        except BaseException:
            learners.stop()
            raise
        return spec, learners

    def _check_resources(self) -> None:
        """Whether Ray has what all workers together ask for; it is not even imported if there are none."""
        config = self.config
        if config.num_env_runners or config.num_learners:
            from rlmodule.distributed.ray_workers import check_resources

            cpus = config.num_env_runners * config.num_cpus_per_env_runner
            cpus += config.num_learners * config.num_cpus_per_learner
            gpus = config.num_learners * config.num_gpus_per_learner
            where = f"num_env_runners={config.num_env_runners}, num_learners={config.num_learners}"
            runner = {"CPU": config.num_cpus_per_env_runner} if config.num_env_runners else {}
            learner = {"CPU": config.num_cpus_per_learner, "GPU": config.num_gpus_per_learner}
            check_resources({"CPU": cpus, "GPU": gpus}, where, [runner, learner if config.num_learners else {}])

    def _num_threads(self, found: int) -> int:
        if self.config.torch_num_threads is not None:
            return self.config.torch_num_threads
        size = sum(p.numel() for p in self.get_module().parameters())
        return 1 if size < SMALL_NET else found

    @abstractmethod
    def training_step(self) -> dict[str, dict[str, Any]]:
        """One iteration: sample, learn.

        Returns:
            Sections of the result: ``learners`` (numbers by module id), seconds by phase under ``timers``, and what
            else there is to tell.
        """

    @property
    def env_steps(self) -> int:
        """Env steps sampled in the whole run."""
        return self.metrics.env_steps

    @property
    def report(self) -> RunReport:
        """What writes the log and the checkpoints of ``run_dir``; opened when it is first needed.

        Raises:
            OSError, ImportError: See :class:`RunReport`.
        """
        if self._report is None:
            self._report = RunReport(self)
        return self._report

    def sample(self) -> Rollout:
        """One train batch, the :meth:`sample_rollouts` side by side."""
        return Rollout.concat(self.sample_rollouts())

    def sample_rollouts(self) -> list[Rollout]:
        """A rollout of each env runner, in order of their envs, counted; there may be fewer if runners fail. Rewards
        are clipped as the settings say once metrics and callbacks have seen them.

        Raises:
            RuntimeError: If a callback raises; what was sampled is then not learned from, and new episodes start. If
                runners in other processes fail for good (:class:`WorkerFailed`).
        """
        rollouts = self.env_runner_group.sample_all(
            self.config.get_rollout_fragment_length(), policy_version=self.learner_group.num_updates
        )
        for rollout in rollouts:
            self.metrics.add_rollout(rollout)
        if self._shows_rollouts:
            try:
                for rollout in rollouts:
                    self._show(rollout)
            except BaseException:
                self._reset_runners()
                raise
        return [clipped_rewards(rollout, self.config.clip_rewards) for rollout in rollouts]

    def _show(self, rollout: Rollout) -> None:
        """Let callbacks see ``rollout`` and the episodes that ended in it."""
        self._callbacks.call("on_sample_end", algorithm=self, rollout=rollout)
        if self._callbacks.listens("on_episode_end"):
            for episode in finished_episodes(rollout, in_evaluation=False):
                self._callbacks.call("on_episode_end", algorithm=self, episode=episode)

    def _reset_runners(self) -> None:
        """Let runners begin new episodes: what was sampled is lost to a replay, which must not take the next rollouts
        for its continuation."""
        with suppress(Exception):  # what is on its way out counts for more
            self.env_runner_group.reset()

    def train(self) -> dict[str, Any]:
        """One iteration; its result is also logged, if there is a ``run_dir`` or a logger that needs none.

        Returns:
            Nested dict: ``env_runners`` (returns, lengths, step counts), ``learners`` by module id, ``timers`` in
            seconds, ``training_iteration``, ``time_total_s``, and ``evaluation`` in iterations that evaluate.

        Raises:
            OSError, ImportError: In the first iteration, if ``run_dir`` cannot be written to, holds another run or one
                that is training, or a logger misses its package.
            RuntimeError: If a callback raises; names it. The next call goes on with another iteration.
        """
        self._refuse_if_stopped("train")
        with self._threads.used():
            report, start = self.report, perf_counter()
            sections = self.training_step()
            if not isinstance(sections, dict):
                where, got = f"{type(self).__name__}.training_step()", type(sections).__name__
                remedy = "Return {'learners': ...}."
                raise TypeError(
                    explain_error(where, expected="a dict of sections of the result", got=got, remedy=remedy)
                )
            self.metrics.add_timers(sections.pop("timers", {}))
            result = self.metrics.finish_iteration(perf_counter() - start) | sections | self._workers_section()
            interval = self.config.evaluation_interval
            if interval is not None and self.metrics.iterations % interval == 0:
                result["evaluation"] = self.evaluate_for_run()
                result["time_total_s"] = self.metrics.seconds
            self._callbacks.call("on_train_result", algorithm=self, result=result)
            if "env_runners" not in result:
                remedy = "Add to the result, and leave what is there."
                where, expected, got = "result after on_train_result", "the section env_runners", ", ".join(result)
                raise ValueError(explain_error(where, expected=expected, got=got, remedy=remedy))
            self._add_logged(result)
            report.write(result)
            return result

    def _workers_section(self) -> dict[str, dict[str, Any]]:
        """What is to be told of workers in other processes, and of steps that were lost; nothing if neither can be."""
        workers = self.env_runner_group.report() | self.learner_group.report()
        return {"workers": {"num_env_steps_lost_lifetime": 0} | workers} if workers else {}

    def _add_logged(self, result: dict[str, Any]) -> None:
        """Let ``result`` also have what a callback logged that saw it."""
        for section, means in self.metrics.take_logged().items():
            result.setdefault(section, {}).update(means)

    def learn(
        self,
        *args: Never,
        num_env_steps: int = 0,
        target_return: float | None = None,
        progress: bool = False,
        **foreign: Never,
    ) -> dict[str, Any]:
        """Call :meth:`train` until ``num_env_steps`` more steps are sampled or ``target_return`` is reached.

        With ``run_dir`` set, the log grows as it goes, and the checkpoint and learning_curve.png stand there at the
        end.

        Ctrl-C finishes the running iteration, saves (below ``runs/`` if there is no ``run_dir``) and returns as if the
        steps were spent: the script goes on with its next line. A second one interrupts at once. A callback ends it by
        :meth:`stop_learning`.

        Args:
            num_env_steps: Steps to sample from now on, over all envs; required.
            target_return: Stop once the mean return of an evaluation, or of recent training episodes if
                ``evaluation_interval`` is None, is at least this.
            progress: Show a live display (on a terminal).

        Returns:
            The last iteration's result.

        Raises:
            TypeError: For an argument by position or of another library.
            ValueError: If ``num_env_steps`` is no int >= 1, or ``target_return`` no finite number.
            OSError: If ``run_dir`` cannot be written to, holds another run, or a run is training in it.
            KeyboardInterrupt: On the second Ctrl-C.
            SystemExit: With code 143, after saving, on SIGTERM.
        """
        from algorithms.run.session import TrainingSession

        if args or foreign:
            raise _wrong_call(f"{type(self).__name__}.learn()", args, foreign)
        self._refuse_if_stopped("learn")
        return TrainingSession(self, num_env_steps, target_return, progress).run()

    def stop_learning(self) -> None:
        """Let the running :meth:`learn` end with this iteration, as if its steps were spent; a callback calls it."""
        self.learning_stopped = True

    def evaluate(
        self,
        *,
        num_episodes: int | None = None,
        num_env_steps: int | None = None,
        explore: bool | None = None,
        num_videos: int | None = None,
        video_dir: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Play with the current weights, in envs of their own; nothing of it enters the training.

        Args:
            num_episodes: Episodes to play; None, as for the following, goes by the settings of ``evaluation``.
            num_env_steps: Steps to play instead, of all its envs together; the episodes that end within them count.
            explore: Whether to sample actions instead of taking the most likely ones.
            num_videos: Further episodes to film.
            video_dir: Folder for the films; None takes one below ``run_dir``.
            progress: Show a live bar (on a terminal).

        Returns:
            Nested dict: ``env_runners`` (returns, lengths, ``num_episodes``, ``num_env_steps``); ``videos``, a list of
            path, return and length of each, if there are any; ``custom_metrics``, what callbacks logged.

        Raises:
            ValueError: If both lengths are given, a number is less than 1, or films have no folder.
            RuntimeError: If episodes do not end.
            ImportError: If there is no package to write films with; says how to install it.
        """
        plan = EvaluationPlan.of(self.config, num_episodes, num_env_steps, explore, num_videos, video_dir)
        self._refuse_if_stopped("evaluate")
        with self.metrics.logging_apart(), self._threads.used():
            evaluation = self._evaluation.run(plan, progress)
            self._callbacks.call("on_evaluate_end", algorithm=self, evaluation=evaluation)
            self._add_logged(evaluation)
        return evaluation

    def evaluate_for_run(self, *, num_videos: int | None = None, progress: bool = False) -> dict[str, Any]:
        """:meth:`evaluate` by the settings, as part of the run: its seconds count."""
        start = perf_counter()
        evaluation = self.evaluate(num_videos=num_videos, progress=progress)
        self.metrics.seconds += perf_counter() - start
        return evaluation

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """The learner's module: the weights being trained, value function included."""
        return self.learner_group.get_module(module_id)

    def explain(self, format: Format = "text") -> str:
        """The catalog's path through its decision tree and the nets of the module; see :meth:`RLModule.explain`."""
        return self.get_module().explain(format)

    def get_state(self) -> dict[str, Any]:
        """Everything that evolves: a tree of tensors and JSON-able values."""
        return {
            "learners": self.learner_group.get_state(),
            "env_runners": self.env_runner_group.get_state(),
            "num_env_steps_lost": dict(self.env_runner_group.num_env_steps_lost),
            "workers": self.env_runner_group.get_counters() | self.learner_group.get_counters(),
            "metrics": self.metrics.get_state(),
            "policy": self.policy.generator.get_state(),
            "evaluation": self._evaluation.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave. Envs start new episodes."""
        self.learner_group.set_state(state["learners"])
        self.env_runner_group.set_state(state["env_runners"])
        self.env_runner_group.num_env_steps_lost.clear()
        self.env_runner_group.num_env_steps_lost.update(state["num_env_steps_lost"])
        self.env_runner_group.set_counters(state["workers"])
        self.learner_group.set_counters(state["workers"])
        self.metrics.set_state(state["metrics"])
        self.policy.generator.set_state(state["policy"])
        self._evaluation.set_state(state["evaluation"])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a checkpoint folder: tensors in safetensors, the rest in JSON. See :func:`save_checkpoint`.

        Warns once if a setting names a class or function of the script that runs, which no other program can import.
        """
        self._warn_of_script()
        content = {
            "algorithm": name_of(self.config),
            "run_seed": self.run_seed,
            "config": self.config.to_dict(),
            "modules": {DEFAULT_MODULE_ID: _described(self.get_module())},
            "state": self.get_state(),
        }
        written = save_checkpoint(path, content)
        self._callbacks.call("on_checkpoint", algorithm=self, path=written)
        return written

    def _warn_of_script(self) -> None:
        names = self.config.modules_to_allow().get("__main__", [])
        if names and not self._has_warned_of_script:
            self._has_warned_of_script = True
            objects = ", ".join(f"{name}=..." for name in names)
            expected, got = "code in modules, which other programs can import", f"{', '.join(names)} of this script"
            remedy = f"Move it to a module of its own, or pass it again: from_checkpoint(path, {objects})."
            warnings.warn(explain_error("save()", expected=expected, got=got, remedy=remedy), stacklevel=3)

    @staticmethod
    def from_checkpoint(path: str | os.PathLike[str], *, allow: Sequence[str] = (), **objects: Any) -> Algorithm:
        """The algorithm that was saved at ``path``, ready to go on.

        Args:
            path: The folder that :meth:`save` wrote, or that of a run, for its last checkpoint.
            allow: Import paths (``"my_package"``, ``"my_module:MyCatalog"``) that the checkpoint may import besides
                this library's classes where a setting asks for one; nothing else is imported.
            **objects: Settings that could not be saved or shall differ, such as ``env=my_factory``. What an
                ``rl_module_spec=`` leaves open is as it was saved. Without ``run_dir=`` the run writes to the run's
                folder that the checkpoint lies in, or to none.

        Raises:
            FileNotFoundError, ValueError: If there is no checkpoint, it is damaged, needs an import that is not
                allowed, or a setting that must be passed again. Callbacks it names can also be left out, as
                ``on_train_result=None``.
        """
        folder = last_checkpoint(path)
        content = load_checkpoint(folder)
        if not content.keys() >= {"algorithm", "run_seed", "config", "state"}:
            got, remedy = f"one with {', '.join(content) or 'nothing'}", "Pass the folder that algo.save(path) wrote."
            where = f"from_checkpoint({str(path)!r})"
            raise ValueError(explain_error(where, expected="the checkpoint of an algorithm", got=got, remedy=remedy))
        config = config_class(content["algorithm"]).from_dict(content["config"], allow=list(allow), **objects)
        if config.run_dir is not None and "run_dir" not in objects:
            _write_only_where_it_lies(config, folder)
        if config.seed is None:
            config.seed = content["run_seed"]
        if config.seed != content["run_seed"]:  # whose evaluations are another's
            content["state"]["evaluation"] = None
        algorithm = config.build()
        try:
            algorithm.set_state(content["state"])
        except BaseException as error:
            algorithm.stop()
            if isinstance(error, ValueError) and objects.keys() & {"env", "env_config"}:
                where, expected = "from_checkpoint(env=)", "an env with the spaces of the one that was trained on"
                remedy = f"For another env, begin another run: {type(config).__name__}(env=...).build(). {error}"
                raise ValueError(
                    explain_error(where, expected=expected, got=repr(config.env), remedy=remedy)
                ) from error
            raise
        return algorithm

    def stop(self) -> None:
        """Close all envs and loggers, and give torch back the threads that it had; a second call does nothing.

        Raises:
            Exception: What an env or a logger raises; the others are closed all the same.
        """
        if self._stopped:
            return
        self._stopped = True
        with ExitStack() as last:  # the first comes last, whatever the others raise
            last.callback(self._threads.give_back)
            if self._report is not None:
                last.callback(self._report.close)
            last.callback(self._evaluation.stop)
            last.callback(self.learner_group.stop)
            last.callback(self.env_runner_group.stop)

    def _refuse_if_stopped(self, method: str) -> None:
        if self._stopped:
            where, got = f"{type(self).__name__}.{method}()", "one that was stopped"
            remedy = "Build another, or load one: from_checkpoint(path). Callbacks end learn() by stop_learning()."
            raise RuntimeError(explain_error(where, expected="a run that goes on", got=got, remedy=remedy))

    def __repr__(self) -> str:
        return f"<{run_name(self)}, seed {self.run_seed}, {self.env_steps:,} env steps>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _write_only_where_it_lies(config: AlgorithmConfig, checkpoint: Path) -> None:
    """Have a run go on in the folder that its checkpoint lies in, not in any that a file of others may name."""
    folder = run_folder_of(checkpoint)
    if folder is None:
        lost = f"a run_dir of {config.run_dir!r}, in which it does not lie. Nothing is written there"
        logger.warning("%s has %s unless you pass run_dir=%r.", checkpoint, lost, config.run_dir)
        loggers = [one for one in config.loggers or () if file_logger(one) is None]
        config.update({"checkpoint_interval": None, "evaluation_num_videos": 0, "loggers": loggers})
    config.run_dir = None if folder is None else str(folder)


def _described(module: RLModule) -> dict[str, Any]:
    """What a checkpoint tells of a module to who only looks at it; what is not a parameter is a buffer."""
    return {"class": type(module).__name__, "parameters": [name for name, _ in module.named_parameters()]}


def _unknown_attribute(owner: Algorithm | type[Algorithm], name: str) -> AttributeError:
    cls, known = owner if isinstance(owner, type) else type(owner), [x for x in dir(owner) if not x.startswith("_")]
    remedy = remedy_for("algorithm", name) or f"help({cls.__name__}) lists them.{closest(name, known)}"
    where, expected = f"{cls.__name__}.{name}", "a method or attribute of an algorithm"
    return AttributeError(explain_error(where, expected=expected, got=repr(name), remedy=remedy))


def _wrong_call(where: str, args: tuple[Any, ...], foreign: Mapping[str, Any]) -> TypeError:
    """The error for ``learn(10_000)`` and ``learn(total_timesteps=10_000)``."""
    steps = args[0] if args else foreign.get("total_timesteps", "...")
    remedies = (f"Call learn(num_env_steps={steps}).", *(remedy_for("learn", name) for name in foreign))
    got = ", ".join([*map(repr, args), *(f"{name}=" for name in foreign)])
    remedy = " ".join(filter(None, remedies))
    return TypeError(explain_error(where, expected="num_env_steps by keyword", got=got, remedy=remedy))
