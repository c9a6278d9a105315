"""The settings and the iteration of algorithms whose env runners never wait for the learners."""

import logging
from collections import defaultdict
from typing import Any

from algorithms.algorithm import Algorithm
from algorithms.episode_config import EpisodeLearnerConfig
from algorithms.run.callbacks import drop_rows_of
from algorithms.sections import ReportingBySteps
from catalog.settings import Section
from rlmodule.data.rollout import Rollout
from rlmodule.distributed.ray_workers import wait_for_any

logger = logging.getLogger(__name__)

CALLS_PER_RUNNER = 2
"""Rollouts that a runner samples or will sample next, so that it never waits for the driver."""
MOST_VERSIONS = 1000
"""Number of the latest versions of weights whose updates are counted, to know how old the weights of a rollout are."""
LONGEST_ROLLOUT = 32
"""Steps per env of the longest rollout, unless ``rollout_fragment_length`` is set."""

FIRST_ITERATIONS = 10
"""Iterations before a slow learner is worth a warning."""
SLOW_LEARNER = (
    "num_env_runners=%d: expected learners that keep up with the env runners, got runners that waited for %.0f %% of "
    "the time. Nothing is lost, but fewer runners would do as well. Larger batches, fewer epochs, num_learners or "
    "num_gpus_per_learner make learning faster."
)
NOT_REPEATED = (
    "%s: a checkpoint holds all that the env runners have sampled and nobody has learned from, so nothing is lost. But "
    "with num_env_runners=%d, rollouts arrive in an order that depends on time: a run that resumes does not repeat to "
    "the bit. With num_env_runners=0 it does."
)


class StreamConfig(ReportingBySteps, EpisodeLearnerConfig):
    """Settings of a :class:`StreamAlgorithm`."""

    reporting = Section(ReportingBySteps)

    def get_rollout_fragment_length(self) -> int:
        """Return the number of steps per env in each rollout: ``rollout_fragment_length``, or if that is None, the
        largest number up to 32 with which whole rollouts fill the train batch.

        Raises:
            ValueError: If no number of whole rollouts fills the train batch; suggests a batch size that works.
        """
        given, num_envs = self.rollout_fragment_length, self.num_envs_per_env_runner
        for length in range(LONGEST_ROLLOUT, 0, -1) if given is None else [given]:
            if self.train_batch_size % (length * num_envs) == 0:
                return length
        rows, learners = (given or 1) * num_envs, max(1, self.num_learners)
        nearest = rows * max(1, round(self.train_batch_size_per_learner / rows))
        raise self._invalid(
            "train_batch_size_per_learner",
            f"a whole number of rollouts of {given or 'a whole number of'} steps from {num_envs} environments to fill "
            f"the batch of {learners} learner{'s' if learners > 1 else ''}",
            f"A batch size that works is {nearest}.",
        )

    @property
    def rollouts_per_batch(self) -> int:
        """Number of rollouts in a train batch."""
        return self.train_batch_size // (self.get_rollout_fragment_length() * self.num_envs_per_env_runner)

    def validate(self) -> None:
        super().validate()
        if self.sample_ahead:
            expected = "0, since the env runners of this algorithm never wait"
            raise self._invalid("sample_ahead", expected, "Leave it out.")


class StreamAlgorithm(Algorithm):
    """Learns from rollouts in the order in which env runners finish them. No runner waits for the learners or for
    another runner; but if the learners are slower, runners stop until they follow, and nothing is dropped.

    With runners in other processes, the order of rollouts depends on time, and a run does not repeat.
    """

    config: Any

    def __init__(self, config: StreamConfig) -> None:
        self._num_updates = 0  # train batches that learners have learned from, or will
        # how many of them led to weights with a version that runners act with
        self._updates_before: dict[int, int] = {}
        self._lags: list[int] = []
        self._warned: set[str] = set()
        super().__init__(config)

    def training_step(self) -> dict[str, dict[str, Any]]:
        results: list[dict[str, Any]] = []
        learners = self.learner_group
        goal = self.env_steps + self.config.num_env_steps_per_iteration
        while self.env_steps < goal:
            learners.wait_for_room()  # if learners have failed, this raises before a rollout is taken
            before = self.clock
            rollout = self.sample()
            if rollout.num_env_steps:
                self._num_updates += 1
                results += learners.update_from_episodes(rollout, env_steps=before, async_update=True)
            self._post_weights()
        self._warn_of_slow_learner()
        timers, learned = _joined(results)
        lags, self._lags = self._lags, []
        stream = {
            "policy_lag_min": min(lags),
            "policy_lag_mean": sum(lags) / len(lags),
            "policy_lag_max": max(lags),
            "num_rollouts_waiting": len(self.env_runner_group.held),
        }
        return {"timers": timers, "learners": learned, "stream": stream}

    def _post_weights(self) -> None:
        """If an update has finished, let runners act with its weights from the next rollout that they begin."""
        version = self.learner_group.num_updates
        before = self._updates_before
        if version not in before:
            before[version] = self._num_updates - self.learner_group.num_unfinished
            if len(before) > MOST_VERSIONS:
                del before[next(iter(before))]  # no rollout on its way is that old
            self.env_runner_group.post_weights(version)

    def _warn_once(self, message: str, *arguments: object) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message, *arguments)

    def _warn_of_slow_learner(self) -> None:
        """Warn once if the env runners have waited for most of the run, which is then as slow as without streams."""
        num_runners = self.config.num_env_runners
        if not num_runners or self.metrics.iterations < FIRST_ITERATIONS:
            return
        waited = self.env_runner_group.report()["env_runners_waited_s"] / num_runners / self.metrics.seconds
        if waited > 0.5:
            self._warn_once(SLOW_LEARNER, self.config.num_env_runners, 100 * waited)

    def get_state(self) -> dict[str, Any]:
        if self.config.num_env_runners:
            self._warn_once(NOT_REPEATED, type(self).__name__, self.config.num_env_runners)
        return super().get_state()

    def _next_rollouts(self) -> list[Rollout]:
        """Return the rollouts of the next train batch."""
        runners, modules = self.env_runner_group, {*self.learner_group.module.items()}
        if replaced := self._modules_ahead - modules:
            runners.finish()
            drop_rows_of(runners.held, replaced)
        self._modules_ahead = modules
        self.before_sampling()
        version, count = self.learner_group.num_updates, self.config.rollouts_per_batch
        runners.ask(self._rollout_length, policy_version=version, in_flight=CALLS_PER_RUNNER)
        self._post_weights()
        self._wait_for_rollouts(count)
        rollouts = runners.take(count)
        for rollout in rollouts:  # an unknown version is from before the checkpoint that the run continues
            self._lags.append(self._num_updates - self._updates_before.get(rollout.policy_version, -1))
        return rollouts

    def _wait_for_rollouts(self, count: int) -> None:
        """Wait until the runners have ``count`` rollouts. If an update finishes meanwhile, let them act with its
        weights."""
        processes = self.env_runner_group.processes + self.learner_group.processes
        while not self.env_runner_group.has(count):
            wait_for_any(*processes)
            if self.learner_group.has_room:  # takes the answers of learners
                self._post_weights()


def _joined(results: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the total seconds of each phase of the updates, and all other numbers by module id."""
    timers: dict[str, float] = {}
    numbers = defaultdict[str, defaultdict[str, list[float]]](lambda: defaultdict(list))
    for result in results:
        for phase, seconds in result.pop("timers").items():
            timers[phase] = timers.get(phase, 0.0) + seconds
        for module_id, reported in result.items():
            for name, number in reported.items():
                numbers[module_id][name].append(number)
    joined = {
        module_id: {name: _number(name, values) for name, values in of_module.items()}
        for module_id, of_module in numbers.items()
    }
    return timers, joined


def _number(name: str, values: list[float]) -> float:
    """Return the number to report of those that several updates reported: their mean, unless they are counts."""
    if name == "num_updates_skipped":
        return sum(values)
    if name.startswith("learning_rate") or name == "num_target_updates":
        return values[-1]
    return sum(values) / len(values)
