"""DQN runs: what an iteration does, how much it trains, and that a run is the same twice and after a pause."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree

from algorithms import Algorithm
from algorithms.dqn import DQN, DQNCatalog, DQNConfig, DQNLearner
from algorithms.ppo import PPOCatalog
from rlmodule import ExplorationAPI, QNetAPI, RLModule, RLModuleSpec
from rlmodule.testing.data import clone, differences
from tests.algorithms.dqn.conftest import tiny
from tests.turns import NUM_PARTS, marks_of

PARTS: dict[str, dict[str, Any]] = {
    "plain": {"double_q": False},
    "double": {"double_q": True},
    "dueling": {"dueling": True},
    "n-step": {"n_step": 3},
    "n-steps": {"n_step": (1, 4)},
    "prioritized": {"prioritized_replay": True},
    "atoms": {"num_atoms": 11, "v_min": 0.0, "v_max": 50.0},
    "noisy": {"noisy": True},
    "mse and Polyak": {"td_error_loss_fn": "mse", "tau": 0.01, "target_network_update_freq": 1},
    "rainbow": {
        "dueling": True, "n_step": 3, "prioritized_replay": True, "num_atoms": 11, "v_min": 0.0, "v_max": 50.0,
        "noisy": True,
    },
    "LSTM": {"model_config": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}},
    "GRU with burn-in": {
        "model_config": {
            "fcnet_hiddens": [8], "use_gru": True, "lstm_cell_size": 8, "max_seq_len": 4, "lstm_use_prev_action": True,
            "lstm_use_prev_reward": True,
        },
        "burn_in_len": 3, "n_step": 2, "prioritized_replay": True, "dueling": True,
    },
    "attention with burn-in": {
        "model_config": {"fcnet_hiddens": [8], "use_attention": True, "attention_memory": 5, "max_seq_len": 4},
        "burn_in_len": 3, "n_step": 2,
    },
    "LSTM in fragments": {
        "model_config": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4},
        "rollout_fragment_length": 3, "prioritized_replay": True,
    },
    "fragments": {"rollout_fragment_length": 4, "training_intensity": 2.0},
    "dropout": {"model_config": {"fcnet_dropout": 0.2}},
    "normalised observations": {"model_config": {"normalize_observations": True}},
}  # fmt: skip
IN_RAINBOW = {"double", "dueling", "n-step", "prioritized", "atoms", "noisy"}
EACH_TIME = ("plain", "rainbow", "GRU with burn-in")


def marks(name: str, number: int) -> Any:
    """Parts of Rainbow are run alone with the slow tests. The others take turns, but for three that hold most."""
    if name in IN_RAINBOW:
        return pytest.mark.slow
    return () if name in EACH_TIME else marks_of(number % NUM_PARTS)


part = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks(name, number)) for number, name in enumerate(PARTS)]
)


def state_of(algorithm: Algorithm) -> dict[str, Any]:
    return tree.map_structure(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, algorithm.get_state())


def trained(config: DQNConfig) -> dict[str, Any]:
    with config.build() as algorithm:
        result = algorithm.train()
        assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
        state = state_of(algorithm)
    del state["metrics"]["seconds"]
    return state


@part
def test_two_runs_with_one_seed_are_bit_identical(name: str) -> None:
    starts = {"num_steps_sampled_before_learning_starts": 48}  # so that an iteration has eight updates
    first, second, other = (trained(tiny(**PARTS[name] | starts, seed=seed)) for seed in (3, 3, 4))
    assert differences(first, second) == []
    assert differences(first["learners"]["module"], other["learners"]["module"])
    assert differences(first["replay"], other["replay"])


@part
def test_a_run_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    with tiny(**PARTS[name]).build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
        before = state_of(algorithm)
    runs = []
    for _ in range(2):
        with Algorithm.from_checkpoint(tmp_path / "c") as other:
            assert isinstance(other, DQN)
            assert differences(before, state_of(other)) == []
            other.train()
            state = state_of(other)
            del state["metrics"]["seconds"]
            runs.append(state)
    assert differences(*runs) == []
    assert runs[0]["learners"]["num_updates"] > before["learners"]["num_updates"]


def test_without_the_replay_a_resumed_run_fills_it_up_first(tmp_path: Path) -> None:
    with tiny(replay_in_checkpoints=False, training_intensity=4.0).build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
        updates = algorithm.learner_group.num_updates
    with Algorithm.from_checkpoint(tmp_path / "c") as other:
        assert isinstance(other, DQN)
        assert other.replay.num_transitions == 0
        other.train()  # 64 steps, of which the first 32 only fill it
        assert other.replay.num_transitions == 64
        assert 0 < other.learner_group.num_updates - updates <= 64 * 4 / 16


@pytest.mark.parametrize("intensity", [0.25, 0.3, 1.0, 2.7, 16.0])
@pytest.mark.parametrize("fragment", [None, 3])
def test_the_intensity_is_kept_exactly(intensity: float, fragment: int | None) -> None:
    config = tiny(
        training_intensity=intensity, rollout_fragment_length=fragment, num_steps_sampled_before_learning_starts=32
    )
    with config.build() as algorithm:
        counted = 0
        while counted < 300:
            algorithm.train()
            starts = -(-32 // (2 * (fragment or 1))) * 2 * (fragment or 1)  # the rollout that reaches it counts
            counted = algorithm.env_steps - starts + 2 * (fragment or 1)
            assert algorithm.learner_group.num_updates == int(intensity * counted / 16 + 1e-9)


def test_rollouts_that_a_callback_keeps_stay_as_they_are() -> None:
    kept: list[tuple[Any, Any]] = []

    def keep(algorithm: Algorithm, rollout: Any) -> None:
        kept.append((rollout.columns, tree.map_structure(torch.clone, rollout.columns)))

    with tiny(on_sample_end=keep).build() as algorithm:
        algorithm.train()
    assert len(kept) > 1
    assert differences([now for now, _ in kept], [then for _, then in kept]) == []


def test_without_an_intensity_each_rollout_is_followed_by_one_update() -> None:
    with tiny().build() as algorithm:
        algorithm.train()
        assert (algorithm.env_steps, algorithm.learner_group.num_updates) == (64, (64 - 32) // 2 + 1)
        result = algorithm.train()
        assert algorithm.learner_group.num_updates == 17 + 32
    assert result["env_runners"]["num_env_steps_sampled"] == 64
    assert result["replay_buffer"]["num_transitions"] == 128
    assert {"replay", "update", "env_step", "forward"} <= result["timers"].keys()


def test_nothing_is_learnt_before_there_is_enough() -> None:
    with tiny(num_steps_sampled_before_learning_starts=100).build() as algorithm:
        assert algorithm.train()["learners"] == {}
        assert algorithm.learner_group.num_updates == 0
        assert algorithm.train()["learners"]["default_policy"]["qf_loss"] >= 0


def test_epsilon_follows_its_schedule() -> None:
    with tiny(epsilon=[[0, 1.0], [128, 0.0]]).build() as algorithm:
        seen = []
        for _ in range(3):
            algorithm.train()
            seen.append(float(algorithm.get_module().epsilon))
    assert seen == pytest.approx([1 - 62 / 128, 1 - 126 / 128, 0.0], abs=1e-6)


def test_a_constant_epsilon_survives_states_that_learners_in_other_processes_send() -> None:
    seen = []

    class Replaced(DQN):
        def before_sampling(self) -> None:
            super().before_sampling()
            seen.append(float(self.get_module().epsilon))  # type: ignore[arg-type]
            self.get_module().set_exploration(0.0)  # type: ignore[operator]

    with Replaced(tiny(epsilon=0.5).freeze()) as algorithm:
        algorithm.config = tiny(epsilon=0.5, num_learners=1).freeze()
        algorithm.train()
    assert len(seen) > 1
    assert {*seen} == {0.5}


def test_batches_go_on_with_fewer_sequences_than_they_have() -> None:
    """A full ring of 13 rows has two or three complete sequences, and a batch has three."""
    memory = {"fcnet_hiddens": [8], "use_gru": True, "lstm_cell_size": 4, "max_seq_len": 4}
    config = tiny(num_envs_per_env_runner=1, n_step=2, train_batch_size_per_learner=12, replay_capacity=13)
    config.training(num_steps_sampled_before_learning_starts=13)
    with config.rl_module(model_config=memory).build() as algorithm:
        algorithm.train()
        assert algorithm.learner_group.num_updates == 64 - 13 + 1


class Choice(gym.Env[np.ndarray, np.int64]):
    """Each step shows two numbers; to name the greater one gives 1. Truncated after ``length`` steps."""

    def __init__(self, length: int = 8) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._length = length

    def _look(self) -> np.ndarray:
        self._seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(self._seen.argmax() == action)
        self._t += 1
        return self._look(), reward, False, self._t == self._length, {}


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in IN_RAINBOW else ()) for name in PARTS]
)
def test_each_part_learns_a_small_task(name: str) -> None:
    settings = {"training_intensity": 16.0, "num_steps_sampled_before_learning_starts": 128, "replay_capacity": 4096}
    settings |= {"gamma": 0.5, "lr": 2e-3, "epsilon": None if "noisy" in PARTS[name] else 0.3}
    values = PARTS[name] | ({"v_max": 3.0} if "num_atoms" in PARTS[name] else {})
    config = tiny(Choice, **settings | values, num_envs_per_env_runner=4).evaluation(evaluation_interval=4)
    with config.build() as algorithm:
        result = algorithm.learn(num_env_steps=2000, target_return=6.6)
    assert result["evaluation"]["env_runners"]["episode_return_mean"] > 6.5  # of 8; chance gives 4 ± 0.3


def test_a_continuous_action_space_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?s)action_space.*Discrete.*Box.*PPO"):
        tiny("Pendulum-v1").build()


def test_learners_of_the_other_kind_are_told_apart() -> None:
    right = r"update_from_episodes\(\).*DQNLearner.*Call update_from_batch\(\)"
    with tiny().build() as algorithm, pytest.raises(TypeError, match=right):
        algorithm.learner_group.update_from_episodes(algorithm.sample(), env_steps=0)


def test_burn_in_needs_something_to_bring_up() -> None:
    with pytest.raises(ValueError, match=r"burn_in_len: expected 0, since the module has no recurrent state, got 3"):
        tiny(burn_in_len=3).build()


def test_a_recurrent_net_needs_enough_before_it_learns() -> None:
    model_config = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 20}
    needed = r"learning_starts: expected at least 40, for|learning_starts: expected at least 40: 1 sequences of 20"
    with pytest.raises(ValueError, match=needed):
        tiny(model_config=model_config).build()
    with tiny(model_config=model_config, num_steps_sampled_before_learning_starts=40).build() as algorithm:
        assert algorithm.train()["learners"]["default_policy"]["qf_loss"] >= 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prioritized_replay": True}, "expected prioritized True, got prioritized False"),
        ({"replay_capacity": 512}, "expected capacity 512, got capacity 256"),
        ({"num_envs_per_env_runner": 4}, "expected num_envs 4, got num_envs 2"),
    ],
)
def test_a_checkpoint_goes_on_with_another_replay_if_that_begins_empty(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with tiny().build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
        weights = clone(state_of(algorithm)["learners"])
    with pytest.raises(ValueError, match=rf"state of a replay buffer: {text}\..*replay_in_checkpoints=False"):
        Algorithm.from_checkpoint(tmp_path / "c", **change)
    with Algorithm.from_checkpoint(tmp_path / "c", **change, replay_in_checkpoints=False) as other:
        assert isinstance(other, DQN)
        assert (other.env_steps, other.replay.num_transitions) == (64, 0)
        assert differences(state_of(other)["learners"], weights) == []
        other.train()


def test_epsilon_and_beta_are_reported() -> None:
    config = tiny(
        epsilon=[[0, 1.0], [100, 0.0]], prioritized_replay=True, prioritized_replay_beta=[[0, 0.0], [128, 1.0]]
    )
    with config.build() as algorithm:
        numbers = algorithm.train()["learners"]["default_policy"]
    assert numbers["epsilon"] == pytest.approx(1 - 62 / 100)
    assert numbers["prioritized_replay_beta"] == pytest.approx(0.5)


class Bare(RLModule, QNetAPI, ExplorationAPI):
    """A module of your own; ``explore`` and ``width`` say what is wrong with it."""

    explore: ClassVar[bool] = True
    width: ClassVar[int] = 2

    def setup(self) -> None:
        self.net = torch.nn.Linear(4, self.width)
        self.register_buffer("epsilon", torch.ones(()))

    def set_exploration(self, value: float) -> None:
        self.epsilon.fill_(value)

    def compute_q_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.net(batch["obs"])

    def _forward(self, batch: Any) -> Any:
        return {"action_dist_inputs": self.compute_q_values(batch)}

    def _forward_exploration(self, batch: Any) -> Any:
        greedy = self.compute_q_values(batch) * 1000.0
        return {"action_dist_inputs": torch.where(self.epsilon > 0.5, 0.0, greedy) if self.explore else greedy}


@pytest.mark.parametrize(
    ("attributes", "settings", "message"),
    [
        ({}, {}, ""),
        ({"explore": False}, {}, r"set_exploration\(\): expected forward_exploration\(\) of the copy"),
        ({"width": 3}, {}, r"forward_inference\(\)\['action_dist_inputs'\] of 2 .* \(2, 2\), got .* \(2, 3\)"),
        ({}, {"noisy": True}, r"DQNLearner with noisy=True.*NoisyNetAPI \(resample_noise\)"),
        (
            {},
            {"num_atoms": 5, "v_min": 0.0, "v_max": 1.0},
            r"return_head\(\) of module .*: expected Atoms of shape \(5,\).*, got Number",
        ),
    ],
)
def test_modules_of_ones_own_are_checked_at_build(
    attributes: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    module_class = type("Mine", (Bare,), attributes)
    config = tiny(rl_module_spec=RLModuleSpec(module_class=module_class), model_config=None, **settings)
    if not message:
        with config.build() as algorithm:
            assert np.isfinite(algorithm.train()["learners"]["default_policy"]["qf_loss"])
        return
    with pytest.raises((ValueError, TypeError), match=message):
        config.build()


def test_a_head_of_ones_own_must_be_noisy_where_noise_explores() -> None:
    class Own(DQNCatalog):
        def build_af_head(self) -> torch.nn.Module:
            return torch.nn.Linear(*self.latent_dims, 2)

    spec = RLModuleSpec(catalog_class=Own)
    with tiny(rl_module_spec=spec).build() as algorithm:
        algorithm.train()
    with pytest.raises(TypeError, match=r"Own\.build_af_head\(\): expected a NoisyHead, since noisy=True, got Linear"):
        tiny(rl_module_spec=spec, noisy=True).build()


def test_a_catalog_of_another_algorithm_is_refused() -> None:
    with pytest.raises(TypeError, match=r"catalog of DQNModule: expected a DQNCatalog, got PPOCatalog"):
        tiny(rl_module_spec=RLModuleSpec(catalog_class=PPOCatalog)).build()


class Own(DQNLearner):
    """A loss of your own that reports nothing, or targets of a wrong shape."""

    def compute_loss_for_module(self, module_id: str, batch: Any, fwd_out: Any) -> Any:
        return super().compute_loss_for_module(module_id, batch, fwd_out)[0], {}


class Misshapen(DQNLearner):
    def compute_targets(self, module_id: str, batch: Any) -> Any:
        return batch["rewards"].unsqueeze(-1)


class Unreduced(DQNLearner):
    def compute_loss_for_module(self, module_id: str, batch: Any, fwd_out: Any) -> Any:
        return torch.zeros(16, requires_grad=True), {}


def test_a_loss_of_ones_own_reports_what_it_likes() -> None:
    with tiny(learner_class=Own).build() as algorithm:
        assert "td_error_mean" not in algorithm.train()["learners"]["default_policy"]
    right = r"expected 'td_error', one per row, since prioritized_replay=True"
    with tiny(learner_class=Own, prioritized_replay=True).build() as algorithm, pytest.raises(ValueError, match=right):
        algorithm.train()


@pytest.mark.parametrize(
    ("learner_class", "message"),
    [
        (Misshapen, r"Misshapen\.compute_targets\(\): expected shape \(16,\), got shape \(16, 1\)"),
        (Unreduced, r"Unreduced\.compute_loss_for_module\(\): expected a scalar tensor .*got shape \(16,\) and dict"),
    ],
)
def test_wrong_shapes_are_told(learner_class: type[DQNLearner], message: str) -> None:
    with tiny(learner_class=learner_class).build() as algorithm, pytest.raises((ValueError, TypeError), match=message):
        algorithm.train()


def test_learning_that_samples_nothing_ends() -> None:
    class Idle(DQN):
        def training_step(self) -> dict[str, Any]:
            return {}

    with (
        Idle(tiny()) as algorithm,
        pytest.raises(RuntimeError, match=r"Idle\.training_step\(\): expected an iteration"),
    ):
        algorithm.learn(num_env_steps=10)


def test_what_is_owed_is_still_owed_after_a_pause(tmp_path: Path) -> None:
    with tiny(training_intensity=0.3).build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
        owed = algorithm.get_state()["steps_owed"]
    assert 0 < owed < 16
    with Algorithm.from_checkpoint(tmp_path / "c") as other:
        assert other.get_state()["steps_owed"] == owed
    with Algorithm.from_checkpoint(tmp_path / "c", training_intensity=16.0) as other:
        updates = other.learner_group.num_updates
        other.train()
        assert other.learner_group.num_updates - updates == int((owed + 16 * 64) / 16)


class Normed(DQNCatalog):
    def build_encoder(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())


def test_a_net_with_batch_norm_is_built_with_its_statistics_untouched_and_learns() -> None:
    with tiny(rl_module_spec=RLModuleSpec(catalog_class=Normed), model_config=None).build() as algo:
        module = algo.get_module()
        assert isinstance(module, ExplorationAPI)
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        fresh = dict(algo.module_spec.build().named_buffers())
        assert differences(buffers, fresh) == []
        learned = algo.train()["learners"]["default_policy"]
        counts = [buffer for name, buffer in module.named_buffers() if name.endswith("num_batches_tracked")]
        assert [int(count) for count in counts] == [algo.learner_group.num_updates]
        assert learned["qf_loss"] > 0
