"""PPO with rewards for what is new (random network distillation)."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from algorithms import Algorithm
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from catalog import DefaultModelConfig
from rlmodule import Columns, Policy, RLModule, RLModuleSpec, Rollout
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from rlmodule.collective import Collective
from rlmodule.data.rollout import map_leaves
from rlmodule.testing.data import clone, differences, random_rollout
from tests.algorithms.ppo.matrix import OBSERVATIONS
from tests.nothing_leaks.cases import Case
from tests.rlmodule.agents.envs import CartPoles
from tests.rlmodule.toys import Small
from tests.together import Fleet, digest

ID = "default_policy"
OBS = spaces.Box(-1, 1, (4,), np.float32)
QUICK: dict[str, Any] = {
    "num_envs_per_env_runner": 2,
    "train_batch_size_per_learner": 32,
    "minibatch_size": 16,
    "num_epochs": 2,
    "lr": 1e-2,
    "seed": 1,
}


def learner_of(**settings: Any) -> PPOLearner:
    config = PPOConfig(**QUICK | {"rnd_coeff": 0.5, "model_config": {"fcnet_hiddens": [8]}} | settings)
    spec = config.get_rl_module_spec(OBS, spaces.Discrete(3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PPOLearner(config, spec.as_multi(), run_seed=1)


def target_of(module: RLModule) -> dict[str, Tensor]:
    """The state of the net that is predicted."""
    return {name: x.clone() for name, x in module.state_dict().items() if "'rnd_target'" in name}


def prediction_of(module: RLModule) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in module.state_dict().items() if "'rnd'" in name}


# --- off --------------------------------------------------------------------------------------------------------------


def test_without_a_coefficient_there_is_nothing_of_it() -> None:
    config = PPOConfig(**QUICK, rnd_coeff=0.0).environment("CartPole-v1")
    with config.build() as algorithm, PPOConfig(**QUICK).environment("CartPole-v1").build() as other:
        module = algorithm.get_module()
        assert isinstance(module, PPOModule)
        assert module.extra_outputs is module.novelty_moments is None
        assert config.records_final_obs == "truncated"
        result = algorithm.train()["learners"][ID]
        assert not [name for name in result if "rnd" in name or "intrinsic" in name]
        other.train()
        assert differences(algorithm.get_state()["learners"], other.get_state()["learners"]) == []


def test_an_output_of_that_name_alone_is_an_output_like_others() -> None:
    spec = RLModuleSpec(PPOModule, OBS, spaces.Discrete(2), {"functions": {"rnd": {"output_dim": 3}}}, PPOCatalog)
    module: Any = spec.build()
    assert module.novelty_moments is None
    assert all(parameter.requires_grad for parameter in module.extra_outputs.parameters())


# --- the nets ---------------------------------------------------------------------------------------------------------


def test_the_two_nets_have_their_own_encoders_and_as_many_outputs_as_asked_for() -> None:
    settings = {"fcnet_hiddens": [8], "functions": {"rnd": {"fcnet_hiddens": [9]}}}
    module: Any = learner_of(rnd_dim=5, model_config=settings).module[ID]
    nets = {name: tuple(x.shape) for name, x in module.extra_outputs.named_parameters() if "weight" in name}
    assert nets == {
        "encoders.'rnd'.linears.0.weight": (9, 4),
        "encoders.'rnd_target'.linears.0.weight": (8, 4),
        "heads.'rnd'.linears.0.weight": (5, 9),
        "heads.'rnd_target'.linears.0.weight": (5, 8),
    }


def test_observations_are_standardised_unless_the_user_says_otherwise() -> None:
    def normalizes(**settings: Any) -> bool:
        return learner_of(**settings).module[ID].observation_normalizer is not None

    assert normalizes()
    assert not normalizes(model_config={"normalize_observations": False})
    assert not normalizes(rnd_coeff=0.0)
    bytes_alone = PPOConfig(rnd_coeff=1.0).get_rl_module_spec(spaces.Box(0, 255, (3,), np.uint8), spaces.Discrete(2))
    assert bytes_alone.build().observation_normalizer is None


@pytest.mark.parametrize("scene", ["novelty", "LSTM, novelty", "novelty and batch norm"])
def test_the_target_stays_as_it_began(scene: str) -> None:
    with Case("PPO", scene).config.build() as algorithm:
        before, predicted = target_of(algorithm.get_module()), prediction_of(algorithm.get_module())
        for _ in range(3):
            algorithm.train()
        assert differences(target_of(algorithm.get_module()), before) == []
        assert differences(prediction_of(algorithm.get_module()), predicted)


def test_the_target_is_in_checkpoints_and_neither_net_in_what_acts(tmp_path: Path) -> None:
    with PPOConfig(**QUICK, rnd_coeff=0.5).environment("CartPole-v1").build() as algorithm:
        algorithm.train()
        module: Any = algorithm.get_module()
        target, moments = target_of(module), clone(module.novelty_moments.state_dict())
        algorithm.save(tmp_path / "run")
        algorithm.policy.save(tmp_path / "policy")
        acting = algorithm.env_runner_group.local_runner.module
        assert isinstance(acting, PPOModule)
        assert acting.extra_outputs is acting.novelty_moments is None
    with Algorithm.from_checkpoint(tmp_path / "run") as algorithm:
        module = algorithm.get_module()
        assert differences(target_of(module), target) == []
        assert differences(module.novelty_moments.state_dict(), moments) == []
        algorithm.train()
        assert differences(target_of(module), target) == []
    names = Policy.load(tmp_path / "policy").module.state_dict()
    assert not [name for name in names if "extra_outputs" in name or "novelty" in name]


def test_what_was_seen_is_no_longer_new() -> None:
    learner = learner_of(model_config={"fcnet_hiddens": [8], "normalize_observations": False})
    module: Any = learner.module[ID]
    rollout = random_rollout(module, 16, 4)
    # some of them are the last ones of episodes
    seen, unseen = rollout.following_observations()[rollout.valid], torch.full((1, 4), 5.0)
    before = [module.compute_novelty(obs).mean().item() for obs in (seen, unseen)]
    for i in range(20):
        learner.update_from_episodes(rollout, env_steps=64 * i)
    after = [module.compute_novelty(obs).mean().item() for obs in (seen, unseen)]
    assert after[0] < 0.05 * before[0]
    assert after[1] > 3 * before[1] / before[0] * after[0]


# --- the rewards ------------------------------------------------------------------------------------------------------


class ByHand(PPOModule):
    """Observations are as new as their first number says."""

    def compute_novelty(self, obs: Any) -> Tensor:
        return self.env_part(obs)[..., 0].abs()


def targets_of(learner: PPOLearner, rollout: Rollout) -> tuple[Tensor, float]:
    """The rewards that the learner sees in valid rows, since no later one counts, and the mean that it reports."""
    with torch.no_grad():
        batch, reported = learner.make_train_batch(ID, rollout)
    return batch[Columns.VALUE_TARGETS], reported["intrinsic_reward_mean"]


def test_rewards_are_those_worked_out_by_hand() -> None:
    # before the first rewards have statistics, values count as 0
    config = PPOConfig(**QUICK, rnd_coeff=0.5, gamma=0.0, lambda_=0.0)
    obs_space = spaces.Box(-99, 99, (1,), np.float32)
    spec = config.get_rl_module_spec(obs_space, spaces.Discrete(2), RLModuleSpec(module_class=ByHand))
    learner = PPOLearner(config, spec.as_multi(), run_seed=1)

    def column(*numbers: float) -> Tensor:
        return torch.tensor(numbers)[:, None]

    no, yes = False, True
    obs = column(1.0, 2.0, 3.0, 4.0, 90.0, 6.0)
    inputs = torch.zeros(6, 1, 2)
    rollout = Rollout(
        columns={
            Columns.OBS: obs[..., None],
            Columns.ACTIONS: torch.zeros(6, 1, dtype=torch.int64),
            Columns.REWARDS: column(0.0, 10.0, 20.0, 30.0, 40.0, 50.0),
            # truncated after row 1 and terminated after row 2, which are listed, and terminated after row 3, whose last
            # observation is in the row that is none
            Columns.TRUNCATEDS: column(no, yes, no, no, no, no),
            Columns.TERMINATEDS: column(no, no, yes, yes, no, no),
            Columns.VALID: column(yes, yes, yes, yes, no, yes),
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: inputs[..., 0],
        },
        last_obs=torch.tensor([[7.0]]),
        final_index=torch.tensor([[1, 0], [2, 0]]),
        final_obs=torch.tensor([[8.0], [9.0]]),
    )
    new = np.array([2.0, 8.0, 9.0, 90.0, 7.0])
    rms = np.sqrt(np.mean(new**2))
    rewards, mean = targets_of(learner, rollout)
    expected = np.array([0.0, 10.0, 20.0, 30.0, 50.0]) + 0.5 * new / rms
    np.testing.assert_allclose(rewards.numpy(), expected, rtol=1e-6)
    assert mean == pytest.approx(0.5 * np.mean(new) / rms)
    # the unit is that of all observations so far
    rollout.columns[Columns.OBS] = 3 * rollout.columns[Columns.OBS]
    rollout.last_obs, rollout.final_obs = 3 * rollout.last_obs, 3 * rollout.final_obs
    rms = np.sqrt(np.mean(np.concatenate([new, 3 * new]) ** 2))
    _, mean = targets_of(learner, rollout)
    assert mean == pytest.approx(0.5 * np.mean(3 * new) / rms)


class Reached(gym.Env[Any, Any]):
    """Rewards are the first number of the observation that a step reaches. Episodes end in both ways."""

    observation_space = spaces.Box(0, 999, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.number += 1
        self.t = 0
        return np.array([500.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        reached = 10.0 * self.number + self.t
        ends = self.t == 2 + self.number % 3
        terminates = ends and self.number % 2 == 0
        return np.array([reached], np.float32), reached, terminates, ends and not terminates, {}


class TwoReach(MultiAgentEnv):
    """The same for two agents."""

    possible_agents = ("a", "b")
    observation_spaces: ClassVar[Any] = dict.fromkeys(possible_agents, Reached.observation_space)
    action_spaces: ClassVar[Any] = dict.fromkeys(possible_agents, Reached.action_space)

    def __init__(self, config: Any = None) -> None:
        self.envs = {agent: Reached() for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return {agent: env.reset(seed=seed)[0] for agent, env in self.envs.items()}, {}

    def step(self, actions: Any) -> Any:
        of_agents = {agent: self.envs[agent].step(action) for agent, action in actions.items()}
        return tuple({agent: result[i] for agent, result in of_agents.items()} for i in range(5))


def with_reset_steps(config: dict[str, Any]) -> SyncVectorEnv:
    return SyncVectorEnv([Reached] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("env", [Reached, with_reset_steps, TwoReach])
def test_a_reward_is_for_the_observation_that_the_step_reached_also_at_the_end(env: Any) -> None:
    config = PPOConfig(**QUICK, rnd_coeff=1.0, gamma=0.0, lambda_=0.0)
    config.environment(env).rl_module(rl_module_spec=RLModuleSpec(module_class=ByHand))
    if env is TwoReach:
        config.multi_agent(policies="shared")
    with config.build() as algorithm:
        learner: Any = algorithm.learner_group.learner
        sampled = algorithm.sample()
        [(module_id, rollout)] = getattr(sampled, "modules", {ID: sampled}).items()
        assert (rollout[Columns.TERMINATEDS] & rollout.valid).any()
        assert (rollout[Columns.TRUNCATEDS] & rollout.valid).any()
        rewarded, reported = learner._rewarded(module_id, rollout)
    valid = rollout.valid
    intrinsic = (rewarded[Columns.REWARDS] - rollout[Columns.REWARDS])[valid]
    reached = rollout[Columns.REWARDS][valid]
    torch.testing.assert_close(intrinsic, reached / reached.square().mean().sqrt(), rtol=1e-4, atol=1e-5)
    assert reported["intrinsic_reward_mean"] == pytest.approx(float(intrinsic.mean()), rel=1e-4)


def test_the_loss_is_the_mean_error_over_the_rows() -> None:
    learner = learner_of(num_epochs=1, minibatch_size=None)
    module: Any = learner.module[ID]
    rollout = random_rollout(module, 16, 4)
    assert not rollout.valid.all()
    with torch.no_grad():
        reached = rollout.following_observations()[rollout.valid]
        expected = module.compute_novelty(reached).mean()
    result = learner.update_from_episodes(rollout, env_steps=0)[ID]
    assert result["rnd_loss"] == pytest.approx(float(expected), rel=1e-5)
    parts = result["policy_loss"] + 0.5 * result["vf_loss"] + result["rnd_loss"]
    assert result["total_loss"] == pytest.approx(parts, rel=1e-5)


# --- together with other settings -------------------------------------------------------------------------------------

MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "seen": OBS})
ROBOT = OBSERVATIONS["Dict and Tuple nested, images and vectors"].space
COMPOSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "mask": (MASKED, {}),
    "nested": (ROBOT, {}),
    "LSTM": (OBS, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}),
    "attention that sees the past": (OBS, {"use_attention": True, "attention_memory": 3, "lstm_use_prev_action": True}),
    "frames": (spaces.Box(0, 255, (2, 8, 8, 3), np.uint8), {}),
    "one encoder": (OBS, {"vf_share_layers": True}),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_it_composes(name: str) -> None:
    space, nets = COMPOSED[name]
    config = PPOConfig(**QUICK, rnd_coeff=0.5, model_config={"fcnet_hiddens": [8], **nets})
    learner = PPOLearner(config, config.get_rl_module_spec(space, spaces.Discrete(3)).as_multi(), run_seed=1)
    module: Any = learner.module[ID]
    rollout = random_rollout(module, 8, 3)
    if name == "mask":
        for obs in (rollout[Columns.OBS], rollout.last_obs, rollout.final_obs):
            obs["action_mask"].fill_(1)
    before, predicted = target_of(module), prediction_of(module)
    result = learner.update_from_episodes(rollout, env_steps=0)[ID]
    assert result["intrinsic_reward_mean"] > 0
    assert result["num_updates_skipped"] == 0
    assert differences(target_of(module), before) == []
    assert differences(prediction_of(module), predicted)


def test_policies_may_have_it_or_not() -> None:
    config = PPOConfig(**QUICK).environment(CartPoles, env_config={"num_agents": 2}).multi_agent(policies="own")
    config.multi_agent(policy_overrides={"cart_1": {"rnd_coeff": 0.5, "rnd_dim": 3}})
    assert config.records_final_obs == "ended"
    with config.build() as algorithm:
        results = algorithm.train()["learners"]
        modules: Any = algorithm.learner_group.module
        assert modules["cart_0"].novelty_moments is None
        assert modules["cart_1"].novelty_moments.count > 0
    assert "rnd_loss" not in results["cart_0"]
    assert results["cart_1"]["intrinsic_reward_mean"] > 0


def learn(collective: Collective, parts: list[Rollout | None]) -> dict[str, Any]:
    learner = learner_of()
    learner.connect(collective)
    before = target_of(learner.module[ID])
    result: dict[str, float] = {}
    for i, part in enumerate(parts):
        result = learner.update_from_episodes(part, env_steps=64 * i)[ID]
    moved = differences(target_of(learner.module[ID]), before)
    state = {name: x.clone() for name, x in learner.module[ID].get_state().items()}
    return {"digest": digest(learner.get_state()), "module": state, "result": result, "moved": moved}


def test_several_learners_come_to_what_one_does(fleet: Fleet) -> None:
    module = learner_of().module[ID]
    rollouts = [random_rollout(module, 12, 6, seed) for seed in range(3)]

    def slots(rollout: Rollout, first: int, count: int) -> Rollout:
        chosen = slice(first, first + count)
        inside = (rollout.final_index[:, 1] >= first) & (rollout.final_index[:, 1] < first + count)
        return Rollout(
            columns={name: map_leaves(lambda x: x[:, chosen], column) for name, column in rollout.columns.items()},
            last_obs=rollout.last_obs[chosen],
            final_index=rollout.final_index[inside] - torch.tensor([0, first]),
            final_obs=rollout.final_obs[inside],
            first_env_index=first,
        )

    parts = [[slots(rollout, first, count) for rollout in rollouts] for first, count in ((0, 2), (2, 4))]
    first, second = fleet.values(learn, *[(part,) for part in parts])
    assert first["digest"] == second["digest"]
    assert first["moved"] == []
    alone = learner_of(minibatch_size=32)
    results = [alone.update_from_episodes(rollout, env_steps=64 * i)[ID] for i, rollout in enumerate(rollouts)]
    for name in ("intrinsic_reward_mean", "rnd_loss"):
        assert first["result"][name] == pytest.approx(results[-1][name], rel=1e-4)
    for name, value in alone.module[ID].get_state().items():
        torch.testing.assert_close(first["module"][name], value, rtol=1e-5, atol=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_number_of_outputs_without_a_coefficient_is_refused() -> None:
    def build(**settings: Any) -> None:
        PPOConfig(**QUICK | settings).environment("CartPole-v1").build().stop()

    with pytest.raises(ValueError, match=r"PPOConfig.rnd_dim: expected its default without rnd_coeff, got 3"):
        build(rnd_dim=3)
    config = PPOConfig(**QUICK, rnd_coeff=0.5, rnd_dim=3).environment(CartPoles).multi_agent(policies="own")
    config.multi_agent(policy_overrides={"cart_0": {"rnd_coeff": 0.0, "rnd_dim": 5}})
    with pytest.raises(ValueError, match=r"PPOConfig.rnd_dim: expected its default without rnd_coeff, got 5"):
        config.build()


def test_a_module_without_the_nets_is_refused() -> None:
    config = PPOConfig(**QUICK, rnd_coeff=0.5).environment("CartPole-v1")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Small))
    with pytest.raises(TypeError, match=r"PPOConfig.rnd_coeff: expected 0 with Small .*Derive it from PPOModule"):
        config.build()


def test_the_setting_reaches_the_model_config_as_two_outputs() -> None:
    spec = PPOConfig(rnd_coeff=0.5).get_rl_module_spec(OBS, spaces.Discrete(2))
    assert isinstance(spec.model_config, DefaultModelConfig)
    own = {"output_dim": 64, "trunk": "own"}
    assert spec.model_config.functions == {"rnd": own, "rnd_target": own}
