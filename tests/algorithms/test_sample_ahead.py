"""``sample_ahead=1``: the next rollout begins before the update, with weights that are exactly one update old."""

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import Algorithm, AlgorithmConfig
from algorithms.ppo import PPOConfig
from algorithms.replay.ring import START
from algorithms.sac import SACConfig
from rlmodule import Columns
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.groups.held_rollouts import rollout_from, state_of
from rlmodule.testing.data import clone
from tests.algorithms.dqn.conftest import tiny
from tests.rlmodule.agents.envs import CartPoles

LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}


def ppo(env: Any = "CartPole-v1", **values: Any) -> PPOConfig:
    quick: dict[str, Any] = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 64, "minibatch_size": 32}
    quick |= {"num_epochs": 2, "seed": 3, "model_config": {"fcnet_hiddens": [8]}, "sample_ahead": 1}
    return PPOConfig(env=env, **quick | values)


def dqn(**values: Any) -> AlgorithmConfig:
    return tiny(**{"sample_ahead": 1, "rollout_fragment_length": 8} | values)


def weights(algorithm: Algorithm) -> list[Tensor]:
    modules = sorted(algorithm.learner_group.module.items())
    return [x.clone() for _, module in modules for x in module.state_dict().values()]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def starts_in_replay(algorithm: Any) -> list[bool]:
    """Whether each row of the only column begins an episode."""
    return (algorithm.replay.get_state()["flags"].flatten() & START).bool().tolist()


class Counting(gym.Env[np.ndarray, int]):
    """Its rewards are the numbers of its steps."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.array([self.steps], np.float32), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return np.array([self.steps], np.float32), float(self.steps), False, False, {}


class Failing(Counting):
    """Its twentieth step raises."""

    def step(self, action: int) -> Any:
        if self.steps == 19:
            self.steps += 1
            raise ArithmeticError("the twentieth")
        return super().step(action)


@pytest.mark.parametrize("model_config", [{"fcnet_hiddens": [8]}, LSTM], ids=["rows", "lstm"])
def test_weights_that_act_are_exactly_one_update_old(model_config: dict[str, Any]) -> None:
    """Compared with a loop by hand, which samples each rollout before it learns from the one before."""
    with ppo(model_config=model_config).build() as by_hand:
        expected = []
        (rollout,) = by_hand.env_runner_group.sample(32)
        for iteration in range(4):
            (following,) = by_hand.env_runner_group.sample(32)
            by_hand.learner_group.update_from_episodes(rollout, env_steps=64 * iteration)
            expected.append(weights(by_hand))
            rollout = following
    with ppo(model_config=model_config).build() as algorithm:
        for iteration, wanted in enumerate(expected):
            algorithm.train()
            assert equal(weights(algorithm), wanted), iteration
            assert algorithm.env_steps == 64 * (iteration + 1)


@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize(
    "config",
    [
        lambda **values: ppo(**values),
        lambda **values: dqn(epsilon=[[0, 1.0], [200, 0.1]], **values),
        pytest.param(lambda **values: ppo(CartPoles, policies="shared", **values), marks=pytest.mark.end_to_end),
    ],
    ids=["ppo", "dqn", "agents"],
)
def test_a_runner_in_another_process_gives_the_same_weights(config: Any) -> None:
    found = []
    for num_env_runners in (0, 1):
        values = {"num_env_runners": num_env_runners, "num_cpus_per_env_runner": 0.1}
        with config(**values).build() as algorithm:
            found.append([(algorithm.train(), weights(algorithm))[1] for _ in range(4)])
    assert all(map(equal, *found))


@pytest.mark.usefixtures("ray_started")
def test_runners_sample_while_the_learner_updates() -> None:
    """Every call is on its way, or answered, when train() returns."""
    with ppo(num_env_runners=2, num_cpus_per_env_runner=0.1, num_envs_per_env_runner=1).build() as algorithm:
        algorithm.train()
        group: Any = algorithm.env_runner_group
        assert [group.workers.in_flight(worker) for worker in range(2)] == [1, 1]
        group.finish()
        assert sum(rollout.num_env_steps for rollout in group.held) == 64
        assert algorithm.env_steps == 64


def test_rollouts_on_their_way_are_not_overwritten() -> None:
    with dqn(env=Counting, num_envs_per_env_runner=1, num_steps_sampled_before_learning_starts=256).build() as run:
        for _ in range(3):
            run.train()
        stored = run.replay.get_state()["rewards"].flatten()[: run.env_steps]  # type: ignore[attr-defined]
        assert stored.tolist() == list(range(1, run.env_steps + 1))


def test_an_env_that_raises_ahead_costs_no_rollout_that_was_sampled() -> None:
    """The error comes with the rollout that it belongs to, after the update from the one before."""
    config = ppo(Failing, num_envs_per_env_runner=1, train_batch_size_per_learner=16, minibatch_size=8)
    with config.build() as algorithm:
        before = weights(algorithm)
        algorithm.train()
        assert not equal(weights(algorithm), before)
        with pytest.raises(Exception, match="the twentieth"):
            algorithm.train()
        assert algorithm.env_steps == 16
        assert algorithm.env_runner_group.num_env_steps_lost.total() == 4
        algorithm.train()
        assert algorithm.env_steps == 32


def test_a_callback_that_raises_finds_no_rollout_on_its_way() -> None:
    calls = []

    def raises(*, algorithm: Algorithm, rollout: Any) -> None:
        calls.append(algorithm.env_runner_group.is_asked)
        if len(calls) == 3:
            raise ArithmeticError("third")

    config = dqn(env=Counting, num_envs_per_env_runner=1, n_step=3, num_env_steps_per_iteration=8)
    with config.callbacks(on_sample_end=raises).build() as algorithm:
        for _ in range(2):
            algorithm.train()
        with pytest.raises(RuntimeError, match="third"):
            algorithm.train()
        algorithm.train()
        assert not any(calls)
        # the rollout of the callback is lost, and the next one begins an episode: no window joins the two
        assert starts_in_replay(algorithm)[16]


def test_a_rollout_that_is_sampled_by_hand_leaves_no_gap_in_replay() -> None:
    with dqn(env=Counting, num_envs_per_env_runner=1, num_env_steps_per_iteration=8).build() as algorithm:
        algorithm.train()
        assert algorithm.sample()[Columns.REWARDS].flatten().tolist() == list(range(9, 17))
        assert not algorithm.env_runner_group.is_asked
        algorithm.train()
        assert starts_in_replay(algorithm)[8]


def test_rows_of_a_policy_that_was_replaced_in_the_meantime_are_dropped() -> None:
    def by_episode(agent: Any, episode: Any) -> str:
        return episode.policies[int(agent[-1]) % len(episode.policies)]

    config = ppo(CartPoles, policies=["a", "b"], policy_mapping_fn=by_episode, env_config={"num_agents": 2})
    with config.build() as algorithm:
        algorithm.train()
        algorithm.remove_policy("b")
        algorithm.add_policy("b", copy_of="a", train=True)
        rollouts: Any = algorithm.sample_rollouts(last=True)
        assert [*rollouts[0].modules] == ["a"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with ppo().build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
    return tmp_path / "c"


def test_without_sample_ahead_a_resumed_run_learns_from_the_saved_rollout_first(saved: Path) -> None:
    with Algorithm.from_checkpoint(saved, sample_ahead=0) as algorithm:
        algorithm.train()
        assert algorithm.env_steps == 128
        assert not algorithm.env_runner_group.is_asked
        assert not algorithm.env_runner_group.num_env_steps_lost.total()


@pytest.mark.parametrize("change", [{"train_batch_size_per_learner": 32}, {"num_envs_per_env_runner": 1}])
def test_a_rollout_that_fits_no_more_is_lost_by_name(
    saved: Path, change: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Algorithm.from_checkpoint(saved, **change) as algorithm:
        assert algorithm.env_runner_group.num_env_steps_lost == {"moved": 64}
        assert "got 1 of 32 steps from 2 envs that were sampled ahead. Their 64 env steps are lost" in caplog.text
        algorithm.train()


def test_a_rollout_of_a_runner_that_is_no_more_is_lost_by_name() -> None:
    """With fewer runners, its envs are not there, and replay has no columns for them."""
    with dqn().build() as algorithm:
        algorithm.train()
        state = clone(algorithm.get_state())
        state["held_rollouts"]["rollouts"][0]["first_env_index"] = 2
        algorithm.set_state(state)
        assert algorithm.env_runner_group.num_env_steps_lost == {"moved": 16}
        algorithm.train()


LIES: dict[str, tuple[Any, str]] = {
    "count": (lambda it: it.update(num_env_steps=10**30), "rollouts/0/num_env_steps: expected an int of at most"),
    "index": (lambda it: it.update(first_env_index="os:system"), "rollouts/0/first_env_index: expected a value like 0"),
    "returns": (lambda it: it["stats"].update(episode_returns=[1.0]), "stats/episode_returns: expected a value like"),
    "no stats": (lambda it: it.update(stats={}), "stats/episode_returns: expected a value like"),
    "column": (lambda it: it["columns"].update({"os:system": []}), "does not fit. KeyError: 'os:system'"),
    "shape": (lambda it: it["columns"].update(obs=[torch.zeros(32, 2, 5)]), "rollout, obs: expected"),
    "text": (lambda it: it["columns"].update(obs="os:system"), "does not fit"),
}
"""By kind: what a file may say of a rollout that was sampled ahead, and what the error says."""


@pytest.mark.parametrize("kind", LIES)
def test_a_file_that_lies_about_a_rollout_is_refused(kind: str, saved: Path, tmp_path: Path) -> None:
    lie, message = LIES[kind]
    content = load_checkpoint(saved)
    lie(content["state"]["held_rollouts"]["rollouts"][0])
    save_checkpoint(tmp_path / "lie", content)
    with pytest.raises(ValueError, match=r"checkpoint .*: expected the settings and state of a run of PPO") as raised:
        Algorithm.from_checkpoint(tmp_path / "lie")
    assert message in str(raised.value)


def test_a_saved_rollout_that_is_not_one_of_the_module_is_refused() -> None:
    config = ppo(model_config=LSTM)
    with config.build() as algorithm:
        algorithm.train()
        (rollout,) = algorithm.env_runner_group.held
        module = algorithm.env_runner_group.module
        good = state_of(rollout)
        back = rollout_from(good, module)
        assert torch.equal(back[Columns.ACTION_LOGP], rollout[Columns.ACTION_LOGP])
        columns = good["columns"]
        lies: dict[str, dict[str, Any]] = {
            "obs": {"columns": columns | {"obs": [torch.zeros(32, 2, 5)]}},
            "rewards": {"columns": columns | {"rewards": [torch.zeros(32, 2, dtype=torch.float64)]}},
            "actions": {"columns": columns | {"actions": [torch.zeros(31, 2, dtype=torch.int64)]}},
            "last_obs": {"last_obs": [torch.zeros(3, 4)]},
            "state_in": {"state_in": good["state_in"][:1]},
            "final_obs": {"final_obs": [torch.zeros(7, 4)]},
            "final_index": {"final_index": torch.tensor([[32, 0]]), "final_obs": [torch.zeros(1, 4)]},
        }
        for name, lie in lies.items():
            with pytest.raises(ValueError, match=rf"rollout, {name}: expected"):
                rollout_from(good | lie, module)


def test_the_runner_in_this_process_is_told_to_save_no_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), ppo().build():
        pass
    assert "sample_ahead=1: expected num_env_runners of at least 1" in caplog.text


def test_sac_with_priorities_learns_one_rollout_late() -> None:
    config = SACConfig(env="Pendulum-v1", seed=1, sample_ahead=1, rollout_fragment_length=4, prioritized_replay=True)
    config.training(
        train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=32, training_intensity=1.0
    )
    with config.rl_module(model_config={"fcnet_hiddens": [8]}).build() as algorithm:
        algorithm.train()
        (ahead,) = algorithm.env_runner_group.held
        assert ahead.num_env_steps == 32
        assert algorithm.replay.num_transitions <= algorithm.env_steps  # type: ignore[attr-defined]


@pytest.mark.parametrize("model_config", [{"fcnet_hiddens": [8]}, LSTM], ids=["rows", "lstm"])
def test_ppo_compares_with_the_policy_from_before_the_update(model_config: dict[str, Any]) -> None:
    """Hilton et al. 2022: the ratio of each row begins at 1, and advantages are weighted by newer / acting policy."""
    with ppo(model_config=model_config, lr=0.03, use_kl_loss=True).build() as algorithm:
        algorithm.train()
        (ahead,) = algorithm.env_runner_group.take()
        ahead.columns[Columns.VALID][-3:, 1] = False  # as if its env had been reset
        ahead.columns[Columns.ACTION_LOGP][0, 0] -= 3.0  # an action that has become far more likely
        learner: Any = algorithm.learner_group.learner
        before = clone(learner.module.state_dict())
        with torch.no_grad():
            batch, _ = learner._train_batch("default_policy", ahead)
            rows, fwd_out = learner.forward_rows("default_policy", batch)
            learner.module.load_state_dict(before)  # a batch updates the statistics of values
            learner.settings = learner.settings.copy().update({"sample_ahead": 0})
            acting, _ = learner._train_batch("default_policy", ahead)
            acting_rows, _ = learner.forward_rows("default_policy", acting)
        newer = learner.module["default_policy"].action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = newer.logp(rows[Columns.ACTIONS])
        assert torch.equal(rows[Columns.ACTION_LOGP], logp)
        assert torch.equal(rows[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.ACTION_DIST_INPUTS])
        assert len(logp) == 61
        ratio = (logp - acting_rows[Columns.ACTION_LOGP]).exp()
        assert ratio.min() < 1 < 2 < ratio.max()
        expected = acting_rows[Columns.ADVANTAGES] * ratio.clamp(max=2.0)
        assert torch.allclose(rows[Columns.ADVANTAGES], expected, rtol=1e-5)


def test_the_first_update_learns_as_without_sample_ahead() -> None:
    """Its rollout was sampled with the weights of now."""
    updated = []
    for sample_ahead in (0, 1):
        with ppo(sample_ahead=sample_ahead).build() as algorithm:
            algorithm.train()
            updated.append(weights(algorithm))
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(*updated, strict=True))
