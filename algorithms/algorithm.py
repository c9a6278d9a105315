"""Algorithm: the base class of training runs, which repeat one iteration: sample, learn, evaluate, report."""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import Never, Self

from algorithms.ops.rewards import clipped_rewards
from algorithms.run.callbacks import CallbackCaller, drop_rows_of
from algorithms.run.checkpoints import checkpoint_content, load_algorithm, prepare_content
from algorithms.run.evaluation import Evaluation, evaluation_config
from algorithms.run.goal import Budget, StoppedBy, goal_from_now
from algorithms.run.metrics import RunMetrics
from algorithms.run.run_folder import RunReport, run_name
from algorithms.run.session import TrainingSession
from algorithms.run.threads import Threads, building, computing_on
from algorithms.run.wrong_calls import (
    already_stopped,
    cannot_load,
    check_budget,
    check_has_config,
    no_sections,
    not_several,
    wrong_learn,
)
from catalog.explain.explain import Format
from catalog.hooks import explain_unknown, refuses_foreign
from rlmodule.data.rollout import Rollout
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.modules.policy import Policy
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, RLModule
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.sealed_folder import StrPath
from rlmodule.seeding import torch_stream

if TYPE_CHECKING:
    from algorithms.config import AlgorithmConfig
    from algorithms.run.policies import PolicyChanges
    from algorithms.run.saved_settings import SavedSettings


logger = logging.getLogger(__name__)


class Algorithm(ABC):
    """A training run, made by ``config.build()``. Subclasses implement :meth:`training_step`, and may override
    :meth:`before_sampling`, for example to set the share of random actions.

    Attributes:
        config: The frozen settings.
        run_seed: ``config.seed``, or a random seed if that is None.
        metrics: Counters of the run; log your own numbers with ``metrics.log_value``.
        stopped_by: What ended the last :meth:`learn`, also if it raised: ``"steps"``, ``"target"``, ``"callback"`` or
            ``"signal"``. None before and during it, and if another exception ended it.
        budget: What the last :meth:`learn` counts or counted: ``"num_env_steps"`` or ``"num_updates"``.
        policies: All policies by id. In a multi-agent run, this dict is a :class:`MultiAgentPolicy`, which can also act
            for all agents at once.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.working_dir = Path.cwd()  # an env may change it
        self.run_seed = secrets.randbits(31) if config.seed is None else config.seed
        self.metrics = RunMetrics(config.metrics_num_episodes_for_smoothing)
        self._modules_ahead: set[tuple[str, RLModule]] = set()  # that act in the rollouts which the runners have begun
        self._callbacks = CallbackCaller(config)
        self._evaluation = Evaluation(self, self._callbacks)
        self._rollout_length = config.get_rollout_fragment_length()
        self._writes = config.run_dir is not None or bool(config.loggers)
        self.lost_run_dir = ""  # warning before training, for a checkpoint that was in no run folder
        self.changes_run_dir = False  # to a folder that must hold no run, though this one is not new
        self.is_stopped = False
        self.stopped_by: StoppedBy | None = None
        self.budget: Budget = "num_env_steps"
        if config.num_env_runners or config.num_learners:
            from rlmodule.distributed.ray_cluster import check_resources_of  # most runs have no workers

            check_resources_of(config, config)
        if config.sample_ahead and not config.num_env_runners:
            logger.warning(
                "sample_ahead=1: expected num_env_runners of at least 1, whose processes sample while the learners "
                "update, got 0. The run is the same as with one, but no faster than without sample_ahead."
            )
        with ExitStack() as opened:
            with building(self.run_seed):
                self.env_runner_group = runners = self._make_runners()
            opened.callback(runners.stop)
            with building(self.run_seed):  # seeded again: envs and callbacks may have drawn
                self.module_spec = config.get_module_spec(runners.observation_space, runners.action_space)
                self.learner_group = config.learner_group_for(self.module_spec, self.run_seed)
                opened.callback(self.learner_group.stop)
                self._changes = self._make_changes()
                self.build_modules_of(runners)
            opened.callback(self._evaluation.stop)
            self._policy_stream = torch_stream(self.run_seed, "policy")
            if self._changes is None:
                self.policies: Any = {DEFAULT_MODULE_ID: Policy(runners.module, self._policy_stream)}
            else:
                from algorithms.run.policies import policies_of  # imports much that only several agents need

                self.policies = policies_of(self, self._policy_stream)
                if (league := self._changes.league) is not None:
                    self._callbacks.add(league, "league")
                    league.take_snapshot(self)
            threads = Threads(config, self.learner_group.module)
            self._threads = opened.enter_context(closing(threads))
            self._opened = opened.pop_all()

    def _make_runners(self) -> EnvRunnerGroup:
        """Create the env runners, whose spaces are those of the nets."""
        on_env = self._callbacks.on_env(in_evaluation=False)
        return EnvRunnerGroup.create(self.config, run_seed=self.run_seed, on_env=on_env)

    def build_modules_of(self, runners: EnvRunnerGroup) -> None:
        """Build the modules of new ``runners``, so that they act with the learners' weights."""
        modules = self.learner_group.module
        if self._changes is None:
            runners.build_modules(self.module_spec, modules[DEFAULT_MODULE_ID])
        else:
            self._changes.build_modules_of(runners)

    def all_runners(self) -> list[EnvRunnerGroup]:
        """Return the group of env runners for training and, after the first evaluation, also the evaluation's group."""
        return [group for group in (self.env_runner_group, self._evaluation.made) if group is not None]

    def _make_changes(self) -> PolicyChanges | None:
        """Create what only a run with several agents has, and its metrics. Return None for a single-agent run."""
        if not self.config.is_multi_agent:
            return None
        from algorithms.run.agent_metrics import AgentMetrics
        from algorithms.run.policies import PolicyChanges  # imports much that only several agents need

        self.metrics = AgentMetrics(self.config.metrics_num_episodes_for_smoothing)
        return PolicyChanges(self)

    def train(self) -> dict[str, Any]:
        """Run one iteration: sample, learn, evaluate if due, report.

        Returns:
            Nested dict: ``env_runners`` (returns, lengths, step counts), ``learners`` by module id, ``timers`` in
            seconds, ``training_iteration``, ``time_total_s``, and ``evaluation`` in iterations that evaluate.
        """
        if self.is_stopped:
            raise already_stopped(self, "train")
        with nullcontext() if torch.get_num_threads() == self._threads.count else computing_on(self._threads.count):
            report, start = self.report if self._writes or self.lost_run_dir else None, perf_counter()
            self.metrics.begin_iteration()  # the one before may have raised
            sections = self.training_step()
            if not isinstance(sections, dict):
                raise no_sections(self, sections)
            result = self.metrics.finish_iteration(perf_counter() - start, sections)
            if workers := self.env_runner_group.report() | self.learner_group.report():
                result["workers"] = {"num_env_steps_lost_lifetime": 0} | workers
            interval = self.config.evaluation_interval
            if interval is not None and self.metrics.iterations % interval == 0:
                with self.metrics.timed():
                    result["evaluation"] = self.evaluate()
                result["time_total_s"] = self.metrics.seconds
            with self.metrics.reporting_logged(result):
                if self._callbacks.listeners["on_train_result"]:
                    self._callbacks.show_result(self, result)
            if "evaluation" in result:
                self.metrics.note_evaluation(result)
            if report is not None:
                report.write(result)
            return result

    @abstractmethod
    def training_step(self) -> dict[str, dict[str, Any]]:
        """Sample env steps and learn from them. :meth:`train` calls this once in each iteration.

        Returns:
            Sections of the iteration's result: ``learners`` (metrics by module id), ``timers`` (seconds by phase), and
            any additional sections.
        """

    def sample(self) -> Rollout:
        """Join the rollouts of :meth:`sample_rollouts` along the envs. In a multi-agent run, return a MultiRollout."""
        return (rollouts := self.sample_rollouts())[0].concat(rollouts)

    def sample_rollouts(self, *, last: bool = False) -> list[Rollout]:
        """Return one rollout from each env runner, in order of their envs. A runner that fails contributes no rollout.

        With ``sample_ahead``, the env runners have begun these rollouts at the end of the call before, with the weights
        of then, and begin the next ones at the end of this call.

        Rewards are clipped by ``clip_rewards`` in the result only: metrics and callbacks get the original rewards. If a
        callback raises, all envs start new episodes.

        Args:
            last: Let the env runners begin no further rollouts.
        """
        rollouts = self._next_rollouts()
        for rollout in rollouts:
            self.metrics.add_rollout(rollout)
        if self._callbacks.listeners["on_sample_end"] or self._callbacks.listeners["on_episode_end"]:
            self._callbacks.show_rollouts(self, rollouts)
        if self.config.sample_ahead and not last:
            self._begin_ahead()  # after callbacks: one that raises finds no rollout on its way
        clip = self.config.clip_rewards
        return rollouts if clip is None else [rollout.map(partial(clipped_rewards, clip=clip)) for rollout in rollouts]

    def _next_rollouts(self) -> list[Rollout]:
        """Return the rollouts that were begun ahead, or else sample new ones."""
        if self.env_runner_group.is_asked:
            return self._take_ahead()
        self.before_sampling()
        return self.env_runner_group.sample(self._rollout_length, policy_version=self.learner_group.num_updates)

    def _begin_ahead(self) -> None:
        """Let the env runners begin the next rollouts with the current weights."""
        self.before_sampling()
        self._modules_ahead = {*self.learner_group.module.items()}
        self.env_runner_group.ask(self._rollout_length, policy_version=self.learner_group.num_updates)

    def _take_ahead(self) -> list[Rollout]:
        """Return the rollouts that :meth:`_begin_ahead` began, without the rows of modules that were removed or
        replaced since then."""
        rollouts = self.env_runner_group.take()
        drop_rows_of(rollouts, self._modules_ahead.difference(self.learner_group.module.items()))
        return rollouts

    def before_sampling(self) -> None:
        """Prepare the modules for the next rollouts. Called before the env runners begin them, when ``env_steps`` is
        the number of env steps sampled so far. Default: do nothing."""

    @property
    def env_steps(self) -> int:
        """Env steps sampled in the whole run, including those before a checkpoint that the run resumed from."""
        return self.metrics.env_steps

    @property
    def clock(self) -> int:
        """Env steps sampled, plus gradient steps taken from data alone (``metrics.updates``), in the whole run.

        Everything that depends on how far the run is follows the clock: schedules, target nets, and the names and order
        of rows, checkpoints and videos. Without data, the clock is the number of env steps."""
        return self.metrics.clock

    @property
    def num_threads(self) -> int:
        """Threads that torch computes on in this process. The number follows from the work of a gradient step and the
        CPU cores, or is ``torch_num_threads``; a run that resumes keeps it, since it changes the last bits of sums."""
        return self._threads.count

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The arguments of :meth:`learn` that say how long this run can learn. Override it in an algorithm that learns
        from data, which adds its gradient steps to ``metrics.updates``."""
        return ("num_env_steps",)

    def learn(
        self,
        num_env_steps: int | None = None,
        *args: Never,
        num_updates: int | None = None,
        target_return: float | None = None,
        progress: bool = False,
        **foreign: Never,
    ) -> dict[str, Any]:
        """Call :meth:`train` until ``num_env_steps`` more steps are sampled or ``num_updates`` more are learned,
        ``target_return`` is reached, or a callback calls :meth:`stop_learning`. With a ``run_dir``, write a checkpoint
        and learning_curve.png at the end.

        On Ctrl-C, finish the iteration, write a checkpoint (below ``runs/`` if there is no ``run_dir``) and raise
        ``KeyboardInterrupt``, so that a loop over several runs ends, too. On SIGTERM and SIGHUP, do the same, but raise
        ``SystemExit`` with code 143 or 129. On a second Ctrl-C, raise ``KeyboardInterrupt`` at once.

        Args:
            num_env_steps: Env steps to sample from now on, over all envs.
            num_updates: Gradient steps to take from data from now on, instead of ``num_env_steps``.
            target_return: Stop when the mean return reaches this value. The mean is that of the latest evaluation, or
                of recent training episodes if ``evaluation_interval`` is None.
            progress: Show a live display on a terminal or in a notebook. If stderr is neither, print a plain line
                after 5 s, then every 30 s.

        Returns:
            The result of the last iteration, with ``stopped_by``: ``"steps"``, ``"target"`` or ``"callback"``.

        Raises:
            TypeError, ValueError: If an argument is invalid, or not exactly one of ``num_env_steps`` and
                ``num_updates`` is given and is among :attr:`budgets`.
            OSError: If ``run_dir`` cannot be written to, holds another run, or a run is training in it.
            RuntimeError: If an iteration takes no step.
            KeyboardInterrupt, SystemExit: After Ctrl-C, SIGTERM and SIGHUP; :attr:`stopped_by` is then ``"signal"``.
        """
        if args or foreign:
            raise wrong_learn(self, num_env_steps, args, foreign)
        budget, amount = check_budget(self, {"num_env_steps": num_env_steps, "num_updates": num_updates})
        session = TrainingSession(self, goal_from_now(self, budget, amount, target_return), progress)
        result = session.run()
        session.raise_signal()
        return result

    def stop_learning(self) -> None:
        """End the running :meth:`learn` after the current iteration. Callbacks may call this."""
        self.metrics.learning_stopped = True

    @refuses_foreign
    def evaluate(
        self,
        *,
        num_episodes: int | None = None,
        num_env_steps: int | None = None,
        explore: bool | None = None,
        num_videos: int | None = None,
        video_dir: StrPath | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Evaluate the current weights in separate envs. For an argument that is None, use the matching setting of the
        section ``evaluation``.

        Args:
            num_episodes: Episodes to play.
            num_env_steps: Env steps to play, over all envs, instead of a number of episodes. Only episodes that end
                within these steps count.
            explore: Whether to sample actions instead of taking the most likely ones.
            num_videos: Additional episodes to record. They do not count in the returns.
            video_dir: Folder for the videos; None takes a folder below ``run_dir``.
            progress: Show how far it is, as :meth:`learn` does.

        Returns:
            Nested dict: ``env_runners`` (returns, lengths, ``num_episodes``, ``num_env_steps``); ``videos`` (the path,
            return and length of each) if any were recorded; and ``custom_metrics`` if callbacks logged any.

        Raises:
            TypeError, ValueError: If an argument is invalid, or arguments contradict each other.
            RuntimeError: If an episode does not end.
            ImportError: If a package for videos is missing.
        """
        config = evaluation_config(self.config, num_episodes, num_env_steps, explore, num_videos, video_dir)
        video_dir = None if video_dir is None else Path(video_dir).absolute()  # before envs are made
        with computing_on(self._threads.count):
            return self._evaluation.run(config, video_dir, progress)

    @property
    def policy(self) -> Policy:
        """The policy that acts with the current weights: ``action, state = algo.policy.act(obs)``.

        Raises:
            AttributeError: If the run has several policies; names their ids.
        """
        first, *others = self.policies.values()
        if others:
            ids = ", ".join(map(repr, self.policies))
            raise AttributeError(
                f"{type(self).__name__}.policy: expected a run with one policy, got {ids}. Use "
                "algo.policies[id] for one of them, or algo.policies.act({agent: obs}) for all."
            )
        return first

    @cached_property
    def report(self) -> RunReport:
        """The writer of logs and checkpoints. It is created, and locks ``run_dir``, on first access."""
        return self._opened.enter_context(closing(RunReport(self, self._callbacks)))

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """Return the learners' module. Unlike the copies that act, it has all parts, such as the value function."""
        return self.learner_group.get_module(module_id)

    def add_policy(
        self, policy_id: str, *, copy_of: str | None = None, spec: RLModuleSpec | None = None, train: bool = False
    ) -> None:
        """Add a policy to a multi-agent run: to its learners, env runners, evaluations, checkpoints and
        :attr:`policies`. Open episodes continue. From now on, a function ``policy_mapping_fn`` may return the new id.

        Args:
            policy_id: Id of the new policy.
            copy_of: Id of the policy whose nets and weights are copied.
            spec: Spec of the new nets, instead of ``copy_of``. Their initial weights depend on the run's seed and on
                ``policy_id``.
            train: Whether to train the policy. If False, it only acts: it has no optimizer and gets no gradient.

        Raises:
            ValueError: If the id is in use, ``copy_of`` names no policy, both or neither of ``copy_of`` and ``spec``
                are given, no agent has the spaces of ``spec``, or the run is not multi-agent.
        """
        self._changes_or_raise("add_policy").add(policy_id, copy_of, spec, train)

    def remove_policy(self, policy_id: str) -> None:
        """Remove a policy from all parts of the run to which :meth:`add_policy` adds one. Open episodes that use the
        policy are still played to their end with it.

        Raises:
            ValueError: If no policy has that id, agents are mapped to it in a way that does not depend on the episode,
                it is the only trained policy or the only snapshot of a league, or the run is not multi-agent.
        """
        self._changes_or_raise("remove_policy").remove(policy_id)

    def policies_changed(self, trained: Collection[str]) -> None:
        """Adapt the state that a subclass keeps for each trained policy. Called after policies were added or removed.
        Default: do nothing.

        Args:
            trained: Ids of all policies that are trained from now on.
        """

    def _changes_or_raise(self, method: str) -> PolicyChanges:
        if self._changes is None:
            raise not_several(self, method)
        return self._changes

    def explain(self, format: Format = "text") -> str:
        """Describe the networks and the catalog's decisions that led to them; see :meth:`MultiRLModule.explain`."""
        return self.learner_group.module.explain(format)

    def save(self, path: StrPath) -> Path:
        """Write a checkpoint to the folder ``path``, call ``on_checkpoint``, and return the path. An earlier checkpoint
        there is replaced in one step. The first time, warn if loading needs code from the running script.

        Raises:
            ValueError: If a weight is NaN or infinite.
            OSError: If the folder cannot be written.
        """
        written = prepare_content(checkpoint_content(self))(path)
        self._callbacks.call("on_checkpoint", algorithm=self, path=written)
        return written

    @staticmethod
    def from_checkpoint(path: StrPath, *, allow: Sequence[str] = (), **objects: Any) -> Algorithm:
        """Load the algorithm that was saved at ``path``, ready for further training.

        Args:
            path: A folder that :meth:`save` wrote, or a run folder, whose newest undamaged checkpoint is loaded.
                Damaged checkpoints that are skipped are logged.
            allow: Import paths (``"my_package"``, ``"my_module:MyCatalog"``) that the settings may use in addition to
                this library's own. For an algorithm that is not registered, these modules are imported.
            **objects: Settings that could not be saved or are to change, such as ``env=my_factory``. One that acts on
                new runs only (:attr:`catalog.settings.Setting.for_new_runs`) is named in a warning. Without
                ``run_dir=``, the run writes to the run folder that holds the checkpoint, or writes no files if the
                checkpoint is in no run folder.

        Raises:
            FileNotFoundError: If ``path`` holds no checkpoint.
            ValueError: If the checkpoint is damaged, needs an import that is not allowed, or lacks a setting that was
                not saved. Pass None to drop a callback, as in ``on_train_result=None``.
        """
        return load_algorithm(path, allow, objects)

    def get_state(self) -> dict[str, Any]:
        """Return everything that changes during training, as nested dicts of tensors and JSON values."""
        runners = self.env_runner_group
        state = {
            **({} if self._changes is None else self._changes.get_state()),
            "learners": self.learner_group.get_state(),
            "env_runners": runners.get_state(),
            "workers": self.env_runner_group.get_counters() | self.learner_group.get_counters(),
            "metrics": self.metrics.get_state(),
            "policy": self._policy_stream.get_state(),
            "evaluation": self._evaluation.get_state(),
            "num_threads": self.num_threads,
        }
        if runners.held:  # the states of the runners are those after these rollouts
            from rlmodule.groups.held_rollouts import get_held

            state["held_rollouts"] = get_held(runners, self._rollout_length)
        return state

    def set_policies(self, state: Mapping[str, Any], allow: Sequence[str] | None = None) -> None:
        """Add and remove policies until the run has the policies of ``state``, a result of :meth:`get_state`. Do
        nothing in a single-agent run.

        Args:
            state: The state of the run.
            allow: Import paths that module specs in ``state`` may use, in addition to this library's own; None allows
                all.
        """
        if self._changes is not None:
            self._changes.set_state(state, allow)

    def adapt_state(self, state: dict[str, Any], saved: SavedSettings) -> None:
        """Change ``state``, which a checkpoint holds, so that settings of this run apply that differ from ``saved`` and
        that the state would replace. Called once, before :meth:`set_state`. Default: do nothing.

        Args:
            state: A state from :meth:`get_state`.
            saved: The settings of the run that was saved.
        """

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`get_state`. An open episode continues if it can be restored, else a new one
        begins."""
        self.set_policies(state)
        self.learner_group.set_state(state["learners"])
        self.env_runner_group.set_state(state["env_runners"])
        self.env_runner_group.set_counters(state["workers"])
        self.learner_group.set_counters(state["workers"])
        self.metrics.set_state(state["metrics"])
        self._policy_stream.set_state(state["policy"])
        self._evaluation.set_state(state["evaluation"])
        if self.config.torch_num_threads is None:
            self._threads.use(state["num_threads"])
        if "held_rollouts" in state:
            from rlmodule.groups.held_rollouts import set_held

            set_held(self.env_runner_group, state["held_rollouts"], self._rollout_length)
            self._modules_ahead = {*self.learner_group.module.items()}

    def stop(self) -> None:
        """Close all envs, workers and loggers, even if closing one of them raises, and restore torch's number of
        threads."""
        self.is_stopped = True
        self._opened.close()

    def __repr__(self) -> str:
        return f"<{run_name(self)}, seed {self.run_seed}, {self.metrics.clock_text}>\n{self.config!r}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    if not TYPE_CHECKING:  # checkers must keep on reporting unknown attributes and arguments
        __getattr__ = explain_unknown

        def __new__(cls, *args: Any, **keywords: Any) -> Self:  # before __init__, which subclasses override
            check_has_config(cls, args, keywords)
            return super().__new__(cls)

        # How other libraries load: called on the class, where __getattr__ does not apply.
        @classmethod
        def load(cls, *args: Any, **keywords: Any) -> Never:
            """Raise AttributeError, which names what loads here."""
            raise cannot_load(cls, "load")

        @classmethod
        def restore(cls, *args: Any, **keywords: Any) -> Never:
            """Raise AttributeError, which names what loads here."""
            raise cannot_load(cls, "restore")
