"""Fields of an observation that only the critic reads: what reads them, acting without them, and what is refused."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from rlmodule import Policy
from rlmodule.agents import MultiAgentEnv, WithState

OBS, STATE = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-1.0, 1.0, (3,), np.float32)
BOTH = spaces.Dict(obs=OBS, state=STATE)
KEYS: dict[str, Any] = {"critic_only_keys": ["state"], "fcnet_hiddens": [8]}


class Hidden(gym.Env[Any, Any]):
    """Draws a state in each step; its sum is the reward."""

    observation_space, action_space = BOTH, spaces.Discrete(2)

    def _obs(self) -> dict[str, np.ndarray]:
        self.state = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"obs": np.ones(2, np.float32), "state": self.state}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        return self._obs(), float(self.state.sum()), bool(self.np_random.random() < 0.1), False, {}


def module(action_space: Any = None, **settings: Any) -> PPOModule:
    action = spaces.Discrete(2) if action_space is None else action_space
    return PPOModule(
        observation_space=BOTH, action_space=action, model_config=KEYS | settings, catalog_class=PPOCatalog
    )


MODELS: dict[str, dict[str, Any]] = {
    "streams": {},
    "one vector": {"flatten_observations": True},
    "standardised": {"normalize_observations": True},
    "policy with a memory": {"use_lstm": True, "lstm_cell_size": 4, "functions": {"value": {"use_lstm": False}}},
}


@pytest.mark.parametrize("case", MODELS)
def test_only_the_value_depends_on_the_field(case: str) -> None:
    made = module(**MODELS[case])
    recurrent = made.is_stateful()
    shape = (1, 4) if recurrent else (4,)
    obs = {"obs": torch.rand(*shape, 2), "state": torch.rand(*shape, 3).requires_grad_()}
    batch: dict[str, Any] = {"obs": obs}
    if recurrent:
        state = tree.map_structure(lambda x: x.expand(4, *x.shape).clone(), made.get_initial_state())
        batch |= {"starts": torch.zeros(1, 4, dtype=torch.bool), "state_in": state}
    out = made.forward_train(batch)
    logits, values = out["action_dist_inputs"], made.compute_values(batch, out["embeddings"])
    assert torch.autograd.grad(logits.sum(), obs["state"], allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(values.sum(), obs["state"])[0].abs().sum() > 0


@pytest.mark.parametrize("case", MODELS)
def test_a_policy_acts_with_and_without_the_field(case: str) -> None:
    policy = Policy(module(**MODELS[case]))
    obs = {"obs": np.full(2, 0.5, np.float32)}
    state = np.full(3, 0.7, np.float32)
    for explore in (False, True):
        policy.generator.manual_seed(1)
        expected = policy.act(obs, explore=explore)[0]
        policy.generator.manual_seed(1)
        assert policy.act({**obs, "state": state}, explore=explore)[0] == expected
    batch = {"obs": np.stack([obs["obs"]] * 3)}
    assert (policy.act_batch(batch)[0] == policy.act(obs)[0]).all()
    with pytest.raises(ValueError, match=r"expected one observation of .*, got \['obs', 'other'\]"):
        policy.act({**obs, "other": state})


def test_a_run_learns_values_from_the_field_and_its_policy_files_do_without(tmp_path: Path) -> None:
    config = PPOConfig(env=Hidden, seed=1, train_batch_size_per_learner=64, minibatch_size=32, model_config=KEYS)
    with config.build() as algo:
        algo.train()
        assert "critic only" in algo.explain()
        assert "observation_space['state']: a policy acts without" in algo.explain()
        obs, _ = Hidden().reset(seed=1)
        action = algo.policy.act({"obs": obs["obs"]})[0]
        loaded = Policy.load(algo.policy.save(tmp_path / "policy"))
        assert loaded.act({"obs": obs["obs"]})[0] == action == loaded.act(obs)[0]
        program = torch.export.load(algo.policy.export(tmp_path / "policy.pt2")).module()
        assert int(program(torch.from_numpy(obs["obs"])[None])[0]) == action
        with Algorithm.from_checkpoint(algo.save(tmp_path / "ck"), env=Hidden) as again:
            assert again.train()["training_iteration"] == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"critic_only_keys": ["stat"]}, r"expected fields of a Dict observation.* 'state'"),
    "all": ({"critic_only_keys": ["obs", "state"]}, "fields of a Dict observation, but not all"),
    "shared layers": ({"vf_share_layers": True}, r"got shared layers\. Set vf_share_layers=False"),
    "a memory": ({"use_lstm": True, "vf_share_layers": False}, "got a value function with a memory"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_the_critics_own(case: str) -> None:
    settings, message = WRONG[case]
    with pytest.raises(ValueError, match=rf"model_config\.critic_only_keys: .*{message}"):
        module(**settings)


def test_only_dict_observations_and_algorithms_with_a_critic_have_such_fields() -> None:
    with pytest.raises(ValueError, match="expected fields of a Dict observation"):
        PPOConfig(env="CartPole-v1", model_config=KEYS).build()
    with pytest.raises(ValueError, match="expected a catalog with a value function"):
        DQNConfig(env=Hidden, model_config=KEYS).build()


COUNT = spaces.Box(0, 9, (1,), np.float32)


class Two(MultiAgentEnv):
    """One agent observes a vector, the other a Dict; the state counts steps."""

    possible_agents = ("x", "y")
    observation_spaces = {"x": OBS, "y": spaces.Dict(seen=OBS)}  # noqa: RUF012
    action_spaces = dict.fromkeys("xy", spaces.Discrete(2))
    state_space = COUNT

    def _obs(self) -> dict[str, Any]:
        return {"x": np.zeros(2, np.float32), "y": {"seen": np.ones(2, np.float32)}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, actions: dict[Any, Any]) -> Any:
        self.t += 1
        return self._obs(), {"x": 1.0}, {"__all__": self.t == 3}, {}, {}

    def state(self) -> np.ndarray:
        return np.array([self.t])


def test_a_wrapper_adds_the_state_of_the_env() -> None:
    env = WithState(Two())
    assert env.observation_spaces["x"] == spaces.Dict(obs=OBS, state=COUNT)
    assert env.observation_spaces["y"] == spaces.Dict(seen=OBS, state=COUNT)
    env.reset()
    obs, rewards, *_ = env.step({"x": 0, "y": 1})
    assert (obs["x"]["state"], obs["y"]["state"], rewards) == ([1.0], [1.0], {"x": 1.0})
    assert all(env.observation_spaces[agent].contains(obs[agent]) for agent in "xy")
    with pytest.raises(ValueError, match="expected no field 'seen', got one"):
        WithState(Two(), key="seen")
    config = PPOConfig.mappo(env=lambda _: WithState(Two()), policies="own", model_config={"fcnet_hiddens": [8]})
    assert config.model_config == {"critic_only_keys": ["state"], "flatten_observations": True, "fcnet_hiddens": [8]}
    with config.training(train_batch_size_per_learner=64, minibatch_size=32).build() as algo:
        assert {"x", "y"} <= algo.train()["learners"].keys()
        assert algo.policies.act(Two().reset()[0] | {"x": {"obs": np.zeros(2, np.float32)}})[0].keys() == {"x", "y"}


def test_an_env_without_a_state_is_told() -> None:
    env = Two()
    env.state_space = None
    with pytest.raises(ValueError, match=r"Two\.state_space: expected a Box, got None"):
        WithState(env)
