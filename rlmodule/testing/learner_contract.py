"""Tests that every learner must pass."""

import copy
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.data.columns import Batch
from rlmodule.data.rollout import Rollout
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.learner import Learner
from rlmodule.testing.data import _columns, _own_random_numbers, clone, differences, global_random_state, random_rollout


class LearnerContract(ABC):
    """Tests for a :class:`Learner`. To use them, write :meth:`make` in a subclass whose name begins with ``Test``.

    Override points:
        ``make``: return a new learner; required.
        ``make_data``: return training data; required for a :class:`BatchLearner`.
    """

    @abstractmethod
    def make(self) -> Learner:
        """Return a new learner, with the same settings and spaces at each call."""

    def make_data(self, learner: Learner, seed: int) -> Rollout | Batch:
        """Return training data for ``learner``, drawn from ``seed``. The default is a :func:`random_rollout` for the
        learner's first module."""
        assert isinstance(learner, EpisodeLearner), "write make_data() for a BatchLearner"
        # a copy: acting must not change the module of the learner
        module = copy.deepcopy(next(iter(learner.module.items()))[1])
        return random_rollout(module, num_steps=16, num_slots=4, seed=seed)

    def build(self, seed: int = 0) -> Learner:
        """Return a new learner with initial weights drawn from ``seed``."""
        with _own_random_numbers(seed):
            return self.make()

    def update(self, learner: Learner, data: Rollout | Batch, env_steps: int = 0) -> dict[str, dict[str, float]]:
        """Run one update of ``learner`` on ``data``, and return the numbers that it reports, by module id and name.
        ``env_steps`` is the number of env steps sampled so far, for schedules."""
        if isinstance(data, Rollout):
            assert isinstance(learner, EpisodeLearner)
            return learner.update_from_episodes(data, env_steps=env_steps)
        assert isinstance(learner, BatchLearner)
        return learner.update_from_batch(data, env_steps=env_steps)

    def test_update_changes_the_weights(self) -> None:
        learner = self.build()
        before, updates = clone(dict(learner.module.named_parameters())), learner.num_updates
        self.update(learner, self.make_data(learner, 0))
        assert differences(before, dict(learner.module.named_parameters()))
        assert learner.num_updates > updates

    def test_update_reports_finite_numbers(self) -> None:
        learner = self.build()
        results = self.update(learner, self.make_data(learner, 0))
        assert set(learner.module) <= results.keys()
        for module_id in learner.module:
            for name, value in results[module_id].items():
                assert isinstance(value, float), f"{name} is a {type(value).__name__}"
                assert np.isfinite(value), f"{name} is {value}"

    def test_update_leaves_the_data_as_it_is(self) -> None:
        learner = self.build()
        data = self.make_data(learner, 0)
        before = clone(_columns(data))
        self.update(learner, data)
        assert differences(before, _columns(data)) == []

    def test_update_draws_no_global_random_numbers(self) -> None:
        learner = self.build()
        data = self.make_data(learner, 0)
        with _own_random_numbers(0):
            before = global_random_state()
            self.update(learner, data)
            assert differences(before, global_random_state()) == []

    def test_state_round_trip_goes_on_bit_equal(self, tmp_path: Path) -> None:
        learner, other = self.build(0), self.build(1)
        self.update(learner, self.make_data(learner, 0), env_steps=64)
        save_checkpoint(tmp_path / "state", learner.get_state())
        other.set_state(load_checkpoint(tmp_path / "state"))
        assert differences(learner.get_state(), other.get_state()) == []
        data = self.make_data(learner, 1)
        for env_steps in (128, 192):
            self.update(learner, data, env_steps)
            self.update(other, data, env_steps)
        assert differences(learner.get_state(), other.get_state()) == []
