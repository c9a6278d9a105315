"""IQL, TD3+BC, ReBRAC and CQL: losses against slow oracles, small tasks with known answers, and mistakes."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from algorithms.ddpg import DDPG, DDPGConfig
from algorithms.dqn import DQNConfig
from algorithms.iql import IQLCatalog, IQLConfig, IQLLearner
from algorithms.iql.learner import expectile_loss
from algorithms.sac import SACConfig
from algorithms.sac.conservative import CQL_NOISE, NEXT_DIST_INPUTS
from algorithms.td3 import TD3Config
from rlmodule import Dataset
from rlmodule.data.columns import Columns
from rlmodule.testing.learner_contract import LearnerContract
from tests.algorithms.offline.data import noise

ID = "default_policy"
OBS = gym.spaces.Box(-1, 1, (4,))
BOX = gym.spaces.Box(-1, 1, (2,))
SMALL: dict[str, Any] = {
    "train_batch_size_per_learner": 16,
    "num_steps_sampled_before_learning_starts": 16,
    "num_updates_per_iteration": 5,
    "seed": 1,
}
NETS: dict[str, Any] = {"model_config": {"fcnet_hiddens": [8], "normalize_observations": False}}


def learner_of(config: Any, spaces: Any = (OBS, BOX)) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return config.default_learner_class()(config, config.get_rl_module_spec(*spaces).as_multi(), run_seed=1)


def batch(rows: int = 16, seed: int = 0, **columns: Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 4, (rows,), generator=generator)
    return {
        Columns.OBS: torch.rand(rows, 4, generator=generator),
        Columns.ACTIONS: torch.rand(rows, 2, generator=generator) * 2 - 1,
        Columns.REWARDS: torch.randn(rows, generator=generator),
        Columns.NEXT_OBS: torch.rand(rows, 4, generator=generator),
        Columns.DISCOUNTS: torch.where(steps > 0, 0.9**steps, 0.0),
    } | columns


def prepared_batch(learner: Any, data: dict[str, Any]) -> dict[str, Any]:
    with torch.no_grad():
        learner.before_gradient_step(ID)
        return learner.prepare_batch(ID, data)


def data_of(space: gym.Space, num_steps: int = 60, *, episode_length: int = 6) -> Dataset:
    """Return random episodes with actions in ``space``."""
    rng = np.random.default_rng(0)
    space.seed(0)
    ends = np.arange(num_steps) % episode_length == episode_length - 1
    observations = rng.uniform(-1, 1, size=(num_steps, 3)).astype(np.float32)
    actions = np.stack([space.sample() for _ in range(num_steps)])
    rewards = rng.normal(size=num_steps)
    return Dataset.from_arrays(observations, actions, rewards, terminals=ends, timeouts=None, action_space=space)


# --- IQL --------------------------------------------------------------------------------------------------------------


class _Contract(LearnerContract):
    config: ClassVar[Any]

    def make(self) -> Any:
        return learner_of(self.config)

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed, weights=torch.rand(16, generator=torch.Generator().manual_seed(seed)))


class TestIQL(_Contract):
    config = IQLConfig(**NETS, grad_clip=1.0, critic_lr=1e-3, num_critics=3, target_critics=2)


class TestTD3BC(_Contract):
    config = TD3Config.td3_bc(policy_delay=1)


class TestCQL(_Contract):
    config = SACConfig.cql(**NETS, num_critics=3, num_quantiles=5)


class PlainIQL:
    """Algorithm 1 of Kostrikov et al. 2022, with an optimizer for each net."""

    def __init__(self, learner: IQLLearner) -> None:
        module, config = learner.module[ID], learner.settings
        self.config = config
        self.policy: Any = copy.deepcopy(torch.nn.ModuleList([module.encoder.actor_encoder, module.pi_head]))
        self.critics, self.value = copy.deepcopy(module.qf), copy.deepcopy(module.vf)
        self.targets = copy.deepcopy(learner.target[ID].qf)
        nets = self.policy, self.critics, self.value
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-8) for net in nets]

    def step(self, data: dict[str, Any]) -> None:
        config, obs, actions = self.config, data[Columns.OBS], data[Columns.ACTIONS]
        with torch.no_grad():
            least = self.targets(obs, actions).min(0).values
            next_values = self.value(data[Columns.NEXT_OBS]).squeeze(-1)
            aims = data[Columns.REWARDS] + data[Columns.DISCOUNTS] * next_values
        advantages = least - self.value(obs).squeeze(-1)
        signs = (advantages < 0).float()
        value_loss = ((config.expectile - signs).abs() * advantages**2).mean()
        critic_loss = sum(functional.mse_loss(values, aims) for values in self.critics(obs, actions))
        encoder, head = self.policy
        mean, log_std = head(encoder(obs).latent).chunk(2, -1)
        logp = torch.distributions.Normal(mean, log_std.exp()).log_prob(actions).sum(-1)
        weights = torch.exp(config.beta * advantages.detach()).clamp(max=config.max_weight)
        policy_loss = -(weights * logp).mean()
        for optimizer, loss in zip(self.optimizers, (policy_loss, critic_loss, value_loss), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for theirs, mine in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                theirs.lerp_(mine, config.tau)


def test_updates_of_iql_are_those_of_a_plain_loop() -> None:
    config = IQLConfig(**NETS, lr=1e-2, tau=0.1, expectile=0.8, beta=2.0, max_weight=3.0)
    learner = learner_of(config)
    plain = PlainIQL(learner)
    for step in range(8):
        data = batch(seed=step)
        learner.step_on_batch(data, env_steps=0)
        plain.step(data)
    module = learner.module[ID]
    mine = [*module.encoder.actor_encoder.parameters(), *module.pi_head.parameters(), *module.qf.parameters()]
    mine += [*module.vf.parameters(), *learner.target[ID].qf.parameters()]
    theirs = [*plain.policy.parameters(), *plain.critics.parameters(), *plain.value.parameters()]
    theirs += [*plain.targets.parameters()]
    for own, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)


def test_the_least_expectile_loss_is_at_the_expectile() -> None:
    sample = torch.tensor([0.0, 1.0, 2.0, 3.0, 10.0])
    # above 3 only one number is left: 0.7 · (10 - e) = 0.3 · (4e - 6), so e = 88 / 19
    places = torch.linspace(0, 10, 10_001)
    losses = expectile_loss(sample - places[:, None], 0.7).sum(1)
    assert float(places[losses.argmin()]) == pytest.approx(88 / 19, abs=1e-3)
    halves = expectile_loss(sample - places[:, None], 0.5).sum(1)
    assert float(places[halves.argmin()]) == pytest.approx(3.2, abs=1e-3)  # the mean


def test_the_net_of_state_values_has_no_copy_of_older_weights() -> None:
    learner = learner_of(IQLConfig(**NETS))
    for step in range(3):
        learner.step_on_batch(batch(seed=step), env_steps=0)
    module, target = learner.module[ID], learner.target[ID]
    assert all(x is y for x, y in zip(module.vf.parameters(), target.vf.parameters(), strict=True))
    assert not torch.equal(module.qf.head.linears[0].weight, target.qf.head.linears[0].weight)


@pytest.mark.parametrize(
    ("data", "nets"),
    [
        (data_of(gym.spaces.Box(-2, 2, (2,))), {"use_lstm": True, "max_seq_len": 4}),
        (data_of(gym.spaces.MultiDiscrete([2, 3])), {"autoregressive_actions": True}),
        (data_of(gym.spaces.MultiBinary(3)), {"vf_share_layers": True}),
        (noise(), {"use_gru": True, "max_seq_len": 3, "functions": {"value": {"fcnet_norm": "layer"}}}),
    ],
    ids=["Box with LSTM", "autoregressive", "bits, shared", "choices with GRU"],
)
def test_iql_learns_any_actions_with_a_log_probability(data: Dataset, nets: dict[str, Any]) -> None:
    config = IQLConfig(data=data, **SMALL, beta=0.1, lr=3e-3, burn_in_len=2 if "max_seq_len" in nets else 0)
    with config.rl_module(model_config={"fcnet_hiddens": [16], **nets}).build() as algorithm:
        first = algorithm.learn(num_updates=5)["learners"][ID]
        last = algorithm.learn(num_updates=150)["learners"][ID]
    assert np.isfinite(last["qf_loss"])
    assert last["policy_loss"] < first["policy_loss"]


# --- TD3+BC and ReBRAC ------------------------------------------------------------------------------------------------


def test_the_policy_s_loss_of_td3_bc_by_hand() -> None:
    config = TD3Config(**NETS, policy_delay=1, bc_coeff=0.4, normalize_q=True)
    learner = learner_of(config)
    module, data = learner.module[ID], prepared_batch(learner, batch())
    learner.trained[ID].stepping = ("critic", "actor")
    _, metrics = learner.compute_loss_for_module(ID, data, module.forward_train(data))
    actions = module.forward_train(data)[Columns.ACTION_DIST_INPUTS].tanh()
    values = module.compute_action_values(data, actions)[0]
    distance = functional.mse_loss(actions, data[Columns.ACTIONS])
    published = -2.5 / values.abs().mean().detach() * values.mean() + distance
    torch.testing.assert_close(2.5 * metrics["policy_loss"], published)
    torch.testing.assert_close(metrics["bc_loss"], distance)


def test_targets_of_rebrac_fall_with_the_distance_from_the_next_action() -> None:
    config = TD3Config(**NETS, target_noise=0.0, bc_coeff=1.0, critic_bc_coeff=0.5)
    learner = learner_of(config)
    generator = torch.Generator().manual_seed(9)
    known = torch.rand(16, generator=generator) < 0.7
    next_actions = (torch.rand(16, 2, generator=generator) * 2 - 1) * known[:, None]
    data = batch(next_actions=next_actions, has_next_action=known)
    target = learner.target[ID]
    with torch.no_grad():
        got = learner.compute_targets(ID, data)
        for row in range(16):
            obs = {Columns.OBS: data[Columns.NEXT_OBS][row : row + 1]}
            action = target.forward_train(obs)[Columns.ACTION_DIST_INPUTS].tanh()
            value = float(target.compute_action_values(obs, action).min())
            distance = float(((action - next_actions[row]) ** 2).mean()) if known[row] else 0.0
            expected = float(data[Columns.REWARDS][row]) + float(data[Columns.DISCOUNTS][row]) * (
                value - 0.5 * distance
            )
            assert float(got[row]) == pytest.approx(expected, abs=1e-5)


def test_an_action_may_be_a_single_number() -> None:
    data = data_of(gym.spaces.Box(-1, 1, ()))
    with TD3Config(data=data, **SMALL, **NETS, bc_coeff=1.0, critic_bc_coeff=1.0).build() as algorithm:
        numbers = algorithm.train()["learners"][ID]
    assert numbers["bc_loss"] > 0


@pytest.mark.parametrize("memory", [{}, {"use_gru": True, "max_seq_len": 3}], ids=["rows", "sequences"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_next_actions_are_those_after_the_window_in_the_data(memory: dict[str, Any], n_step: int) -> None:
    space = gym.spaces.Box(-1, 1, (2,))
    data = data_of(space)
    nets = {"model_config": {"fcnet_hiddens": [8], **memory}}
    config = TD3Config(data=data, **SMALL, **nets, n_step=n_step, bc_coeff=1.0, critic_bc_coeff=1.0)
    with config.build() as algorithm:
        drawn = algorithm.data[ID].sample(300).batch  # type: ignore[attr-defined]
    rows = range(300) if not memory else drawn[Columns.VALID_ROWS].tolist()

    def flat(name: str) -> np.ndarray:
        column = drawn[name]
        return column.numpy() if not memory else column.flatten(0, 1).numpy()

    known = flat(Columns.HAS_NEXT_ACTION)
    for row in rows:
        [step] = np.flatnonzero((data.actions == flat(Columns.ACTIONS)[row]).all(1))
        end = step - step % 6 + 6  # episodes have six steps
        after = step + n_step
        assert known[row] == (after < end)
        expected = data.actions[after] if known[row] else np.zeros(2)
        np.testing.assert_array_equal(flat(Columns.NEXT_ACTIONS)[row], expected)
    assert 0 < known[rows].mean() < 1


def test_the_newest_step_of_env_steps_has_no_next_action_yet() -> None:
    nets = {"model_config": {"fcnet_hiddens": [8]}}
    small = {name: value for name, value in SMALL.items() if name != "num_updates_per_iteration"}
    config = TD3Config(env="Pendulum-v1", **small, **nets, bc_coeff=1.0, critic_bc_coeff=0.1, replay_capacity=50)
    config.training(training_intensity=1.0).reporting(num_env_steps_per_iteration=130)
    config.env_runners(num_envs_per_env_runner=1)
    with config.build() as algorithm:
        algorithm.learn(num_env_steps=130)  # the ring wraps twice
        replay = algorithm.replay  # type: ignore[attr-defined]
        places = np.flatnonzero(replay.sampleable.reshape(-1))
        rows = replay.gather_rows(places)
    order = np.argsort(replay.ring.steps_after(places))[::-1]
    known = rows[Columns.HAS_NEXT_ACTION].numpy()[order]
    assert known.tolist() == [True] * (len(places) - 1) + [False]
    actions, following = rows[Columns.ACTIONS].numpy()[order], rows[Columns.NEXT_ACTIONS].numpy()[order]
    np.testing.assert_array_equal(following[:-1], actions[1:])


# --- CQL --------------------------------------------------------------------------------------------------------------


def test_the_conservative_loss_of_a_box_by_hand() -> None:
    config = SACConfig(**NETS, cql_alpha=3.0, cql_num_actions=2)
    learner = learner_of(config)
    module, data = learner.module[ID], prepared_batch(learner, batch())
    _, metrics = learner.compute_loss_for_module(ID, data, module.forward_train(data))
    drawn, total = data[CQL_NOISE], 0.0
    assert drawn.shape == (16, 6, 2)
    with torch.no_grad():
        here = module.forward_train({Columns.OBS: data[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
        after = module.forward_train({Columns.OBS: data[Columns.NEXT_OBS]})[Columns.ACTION_DIST_INPUTS]
        torch.testing.assert_close(data[NEXT_DIST_INPUTS], after)
        for row in range(16):
            obs = {Columns.OBS: data[Columns.OBS][row : row + 1]}
            exponents: list[Tensor] = []
            for number in range(6):
                noise_of = drawn[row, number]
                if number < 2:
                    action = torch.tensor([math.erf(float(x) / math.sqrt(2)) for x in noise_of])
                    density = -2 * math.log(2)
                else:
                    mean, log_std = (here if number < 4 else after)[row].chunk(2)
                    before = mean + log_std.exp() * noise_of
                    action = before.tanh()
                    slopes = (1 - action.square()).log().sum()
                    density = float(torch.distributions.Normal(mean, log_std.exp()).log_prob(before).sum() - slopes)
                exponents.append(module.compute_action_values(obs, action[None])[:, 0] - density)
            taken = module.compute_action_values(obs, data[Columns.ACTIONS][row : row + 1])[:, 0]
            total += float((torch.stack(exponents).logsumexp(0) - taken).sum())
    assert float(metrics["cql_loss"].detach()) == pytest.approx(total / 16, rel=1e-4)


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_the_conservative_loss_of_a_box_does_not_depend_on_its_shape(shape: tuple[int, ...]) -> None:
    losses = []
    for box in (gym.spaces.Box(-1, 1, shape), gym.spaces.Box(-1, 1, (math.prod(shape),))):
        learner = learner_of(SACConfig(**NETS, cql_alpha=3.0), (OBS, box))
        actions = torch.linspace(-0.9, 0.9, 16 * math.prod(shape)).view(16, *box.shape)
        data = prepared_batch(learner, batch(actions=actions))
        _, metrics = learner.compute_loss_for_module(ID, data, learner.module[ID].forward_train(data))
        losses.append(metrics["cql_loss"].detach())
    torch.testing.assert_close(*losses)


def test_the_conservative_loss_of_choices_is_exact_and_leaves_forbidden_ones_out() -> None:
    space = gym.spaces.Dict({"x": OBS, "action_mask": gym.spaces.MultiBinary(3)})
    learner = learner_of(SACConfig(**NETS, cql_alpha=1.0), (space, gym.spaces.Discrete(3)))
    module, plain = learner.module[ID], batch()
    mask = torch.ones(16, 3, dtype=torch.int8)
    mask[:8, 2] = 0
    seen = {"x": plain[Columns.OBS], "action_mask": mask}
    data = plain | {Columns.OBS: seen, Columns.NEXT_OBS: seen, Columns.ACTIONS: torch.arange(16) % 2}
    data = prepared_batch(learner, data)
    _, metrics = learner.compute_loss_for_module(ID, data, module.forward_train(data))
    values = module.compute_action_values(data, None).detach()
    taken = module.compute_action_values(data, data[Columns.ACTIONS]).detach()
    expected = [
        float(values[critic, row, : 2 if row < 8 else 3].exp().sum().log() - taken[critic, row])
        for critic in range(2)
        for row in range(16)
    ]
    assert float(metrics["cql_loss"].detach()) == pytest.approx(sum(expected) / 16, rel=1e-5)


def chain(num_episodes: int = 40) -> Dataset:
    """Return episodes of a chain of five states in which only the action to the right was ever taken."""
    states = np.tile(np.arange(5), num_episodes)
    ends = states == 4
    spaces = {"observation_space": gym.spaces.Discrete(5), "action_space": gym.spaces.Discrete(2)}
    return Dataset.from_arrays(
        states, np.ones_like(states), ends.astype(np.float32), terminals=ends, timeouts=None, **spaces
    )


def test_cql_lowers_the_value_of_an_action_that_the_data_lack() -> None:
    gaps = []
    for alpha in (0.0, 0.5):
        nets = {"model_config": {"fcnet_hiddens": [16]}}
        config = DQNConfig(data=chain(), **SMALL, **nets, cql_alpha=alpha, gamma=0.9, lr=5e-3, n_step=1)
        with config.training(target_network_update_freq=10).build() as algorithm:
            algorithm.learn(num_updates=600)
            module: Any = algorithm.get_module()
            with torch.no_grad():
                values = module.compute_q_values({Columns.OBS: torch.arange(5)})
        gaps.append(values[:, 1] - values[:, 0])
        if not alpha:
            expected = 0.9 ** torch.arange(4, -1, -1.0)
            torch.testing.assert_close(values[:, 1], expected, atol=0.05, rtol=0)
    assert gaps[1].min() > 1.0
    assert gaps[1].min() > gaps[0].max()


def test_values_learned_from_the_data_of_a_small_task_are_those_of_value_iteration() -> None:
    rng = np.random.default_rng(3)
    following, rewards = rng.integers(4, size=(4, 3)), rng.normal(size=(4, 3)).astype(np.float32)
    exact = np.zeros((4, 3))
    for _ in range(500):
        exact = rewards + 0.8 * exact.max(1)[following]
    states, actions = (grid.reshape(-1) for grid in np.meshgrid(np.arange(4), np.arange(3), indexing="ij"))
    data = Dataset.from_arrays(
        states,
        actions,
        rewards[states, actions],
        terminals=np.zeros(12, bool),
        timeouts=np.ones(12, bool),
        next_observations=following[states, actions],
        observation_space=gym.spaces.Discrete(4),
        action_space=gym.spaces.Discrete(3),
    )
    config = DQNConfig(data=data, **SMALL | {"train_batch_size_per_learner": 64}, gamma=0.8, n_step=1, lr=2e-2)
    config.training(num_steps_sampled_before_learning_starts=64).rl_module(model_config={"fcnet_hiddens": []})
    with config.training(target_network_update_freq=20, td_error_loss_fn="mse").build() as algorithm:
        algorithm.learn(num_updates=1500)
        module: Any = algorithm.get_module()
        with torch.no_grad():
            values = module.compute_q_values({Columns.OBS: torch.arange(4)})
    np.testing.assert_allclose(values.numpy(), exact, atol=0.02)


# --- mistakes ---------------------------------------------------------------------------------------------------------

CHOICES = data_of(gym.spaces.Discrete(3))
NUMBERS = data_of(gym.spaces.Box(-1, 1, (2,)))
MANY = data_of(gym.spaces.MultiDiscrete([20, 20]))
MISTAKES = {
    "TD3+BC for choices": (lambda: TD3Config.td3_bc(data=CHOICES), "of TD3 and DDPG: expected a Box of floats"),
    "DQN with CQL for a Box": (lambda: DQNConfig.cql(data=NUMBERS), "expected"),
    "expectile of 1": (lambda: IQLConfig(data=NUMBERS, expectile=1.0), r"expectile=\): expected"),
    "beta of 0": (lambda: IQLConfig(data=NUMBERS, beta=0.0), r"beta=\): expected"),
    "atoms": (lambda: IQLConfig(data=NUMBERS, num_atoms=11, v_min=-1.0, v_max=1.0), "num_atoms: expected 1"),
    "quantiles": (lambda: IQLConfig(data=NUMBERS, num_quantiles=5), "num_quantiles: expected 1"),
    "CQL for many choices": (lambda: SACConfig.cql(data=MANY), "cql_alpha: expected a bounded Box of actions"),
    "CQL for choices with atoms": (
        lambda: SACConfig.cql(data=CHOICES, num_atoms=5, v_min=-1.0, v_max=1.0),
        "joint choices without num_atoms and num_quantiles.* Leave num_atoms and num_quantiles out",
    ),
    "actions of CQL without it": (lambda: SACConfig(data=NUMBERS, cql_num_actions=4), "with cql_alpha=0"),
    "actions of CQL for choices": (lambda: SACConfig.cql(data=CHOICES, cql_num_actions=3), "cql_num_actions"),
    "normalize_q without cloning": (lambda: TD3Config(data=NUMBERS, normalize_q=True), "without bc_coeff"),
    "normalize_q with two learners": (lambda: TD3Config.td3_bc(data=NUMBERS, num_learners=2), "normalize_q: expected"),
    "no step has a next action": (
        lambda: TD3Config.rebrac(data=data_of(gym.spaces.Box(-1, 1, (2,)), episode_length=1)),
        "expected episodes of several steps",
    ),
    "no log-probability": (
        lambda: IQLConfig(data=NUMBERS, model_config={"custom_action_dist": "DeterministicAction"}),
        "expected one with log-probabilities",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_anything_is_learned(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make().build()


@pytest.mark.parametrize("autoregressive", [False, True])
def test_iql_refuses_a_part_of_an_action_without_log_probabilities(autoregressive: bool) -> None:
    space = gym.spaces.Dict(grip=gym.spaces.Discrete(2), push=BOX)
    nets = {"custom_action_dist": {"push": "DeterministicAction"}, "autoregressive_actions": autoregressive}
    with pytest.raises(ValueError, match=r"expected one with log-probabilities.*got DeterministicAction"):
        IQLCatalog(OBS, space, nets)


# --- presets of methods -----------------------------------------------------------------------------------------------


def test_rlpd_learns_from_data_and_env_steps_at_once() -> None:
    data = data_of(gym.spaces.Box(-2, 2, (1,)))
    nets = {"model_config": {"fcnet_hiddens": [8], "functions": {"value": {"fcnet_norm": "layer"}}}}
    config = SACConfig.rlpd(env="Pendulum-v1", data=data, seed=1, train_batch_size_per_learner=16, **nets)
    config.env_runners(num_envs_per_env_runner=1).reporting(num_env_steps_per_iteration=20)
    config.training(num_steps_sampled_before_learning_starts=16)
    with config.build() as algorithm:
        algorithm.train()
        assert algorithm.metrics.updates == 0  # none from data alone
        # 20 gradient steps for each env step after the first 16
        assert algorithm.learner_group.learner.num_updates == 20 * 20 - 20 * 15  # type: ignore[attr-defined]


def test_methods_can_be_changed_one_setting_at_a_time() -> None:
    config = TD3Config.rebrac(bc_coeff=0.3, critic_bc_coeff=0.1)
    assert (config.bc_coeff, config.critic_bc_coeff, config.normalize_q) == (0.3, 0.1, True)
    assert DDPGConfig.td3_bc().algo_class is DDPG
    assert SACConfig.cql(cql_alpha=1.0).cql_alpha == 1.0
    for method in (SACConfig.droq, SACConfig.rlpd, TD3Config.rebrac):
        assert method(model_config={"fcnet_hiddens": [8]}).model_config == {
            "fcnet_hiddens": [8],
            "functions": dict(method().model_config or {})["functions"],
        }
