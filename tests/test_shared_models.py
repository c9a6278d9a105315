"""Models that several algorithms share: typed abilities, one class under two learners, curiosity under both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

import rlmodule
from algorithms import AlgorithmConfig
from algorithms.dqn import DQNCatalog, DQNConfig, DQNLearner, DQNModule
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from algorithms.sac import SACConfig, SACModule
from algorithms.td3 import TD3Config, TD3Module
from catalog import Catalog
from examples.curiosity import icm
from rlmodule import Columns, QNetAPI, RLModule, RLModuleSpec, ValueFunctionAPI
from rlmodule.modules import apis
from rlmodule.testing.learner_contract import LearnerContract

ID = "default_policy"
SPACES = (spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3))
ROWS, NUM_FEATURES = 12, 5


def ppo(**values: Any) -> PPOConfig:
    quick: dict[str, Any] = {"train_batch_size_per_learner": 64, "minibatch_size": None, "num_epochs": 2}
    return PPOConfig(num_envs_per_env_runner=2, seed=1, **quick | values).environment("CartPole-v1")


def dqn(**values: Any) -> DQNConfig:
    quick: dict[str, Any] = {"train_batch_size_per_learner": 16, "num_steps_sampled_before_learning_starts": 32}
    quick |= {"num_env_steps_per_iteration": 64, "replay_capacity": 256, "n_step": 1}
    return DQNConfig(num_envs_per_env_runner=2, seed=1, **quick | values).environment("CartPole-v1")


# --- typed abilities --------------------------------------------------------------------------------------------------


def built(config: AlgorithmConfig) -> Any:
    return config.get_rl_module_spec(*SPACES).build()


def test_values_of_states_of_actions_and_of_atoms_are_methods_with_shapes() -> None:
    batch = {Columns.OBS: torch.rand(2, 6, 4)}
    policy, q_net = built(ppo()), built(dqn(dueling=True, num_atoms=7, v_min=-1.0, v_max=1.0))
    assert policy.compute_values(batch).shape == (2, 6)
    assert q_net.compute_q_values(batch).shape == (2, 6, 3)
    assert q_net.compute_q_outputs(batch).shape == (2, 6, 3, 7)
    means = q_net.compute_q_outputs(batch).softmax(-1) @ torch.linspace(-1.0, 1.0, 7)
    torch.testing.assert_close(q_net.compute_q_values(batch), means)


def test_abilities_build_on_one_another() -> None:
    assert QNetAPI.__abstractmethods__ == {"compute_q_values"}
    assert isinstance(built(dqn()), QNetAPI)
    assert not isinstance(built(dqn()), ValueFunctionAPI)
    assert not isinstance(built(ppo()), QNetAPI)
    for api in abilities():
        assert getattr(rlmodule, api.__name__) is api  # errors say to derive from it
        with pytest.raises(TypeError, match="abstract"):
            api()


def abilities() -> list[Any]:
    return [value for name, value in vars(apis).items() if name.endswith("API")]


def test_embeddings_of_the_training_pass_give_the_same_values() -> None:
    batch = {Columns.OBS: torch.rand(6, 4)}
    policy, q_net = built(ppo()), built(dqn(dueling=True))
    for module, method in ((policy, policy.compute_values), (q_net, q_net.compute_q_values)):
        embeddings = module.forward_train(batch)[Columns.EMBEDDINGS]
        torch.testing.assert_close(method(batch, embeddings), method(batch))


# --- one class under two learners -------------------------------------------------------------------------------------


class ActorOfValues(DQNModule, ValueFunctionAPI):
    """Values of actions, and of a state as their mean under the policy whose logits they are."""

    def _forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if self.epsilon > 0:
            return super()._forward_exploration(batch)
        return self._forward(batch)

    def _forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        out = super()._forward_train(batch)
        return out | {Columns.ACTION_DIST_INPUTS: self.compute_q_values(batch, out[Columns.EMBEDDINGS])}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        values = self.compute_q_values(batch, embeddings)
        return (values.softmax(-1) * values).sum(-1)


def trained(config: AlgorithmConfig) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """The module after one iteration, its parameters before, and what its learner reported."""
    with config.build() as algorithm:
        module = algorithm.get_module()
        before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        return module, before, algorithm.train()["learners"][ID]


@pytest.mark.parametrize("config", [ppo(), dqn()], ids=["PPO", "DQN"])
def test_one_class_with_both_abilities_trains_under_both_learners(config: AlgorithmConfig) -> None:
    spec = RLModuleSpec(module_class=ActorOfValues, catalog_class=DQNCatalog)
    module, before, learned = trained(config.copy().rl_module(rl_module_spec=spec))
    assert type(module) is ActorOfValues
    assert learned["vf_loss" if isinstance(config, PPOConfig) else "qf_loss"] > 0
    assert all(not torch.equal(before[name], parameter) for name, parameter in module.named_parameters())


@pytest.mark.parametrize(("config_class", "module_class"), [(SACConfig, SACModule), (TD3Config, TD3Module)])
def test_critics_read_rows_where_the_training_pass_returns_no_embeddings(config_class: Any, module_class: Any) -> None:
    class FromRows(module_class):
        def _forward_train(self, batch: Mapping[str, Any]) -> Any:
            return self._forward(batch)

    def learned(module: Any) -> dict[str, Any]:
        quick: dict[str, Any] = {"train_batch_size_per_learner": 16, "num_steps_sampled_before_learning_starts": 16}
        quick |= {"num_env_steps_per_iteration": 32, "replay_capacity": 64, "num_envs_per_env_runner": 2, "seed": 1}
        config = config_class(**quick, training_intensity=None).environment("Pendulum-v1")
        spec = RLModuleSpec(module_class=module, model_config={"fcnet_hiddens": [16]})
        return trained(config.rl_module(rl_module_spec=spec))[2]

    assert learned(FromRows) == pytest.approx(learned(module_class))


@pytest.mark.parametrize(
    ("config", "module_class", "catalog_class", "missing"),
    [
        (ppo(), DQNModule, DQNCatalog, r"PPOLearner .*ValueFunctionAPI \(compute_values\), got DQNModule"),
        (dqn(), PPOModule, PPOCatalog, r"DQNLearner .*QNetAPI \(compute_q_values\), ExplorationAPI .*got PPOModule"),
    ],
    ids=["PPO", "DQN"],
)
def test_a_module_without_what_the_learner_requires_is_refused_by_name_at_build(
    config: AlgorithmConfig, module_class: type[RLModule], catalog_class: type[Catalog], missing: str
) -> None:
    spec = RLModuleSpec(module_class=module_class, catalog_class=catalog_class)
    with pytest.raises(TypeError, match=missing):
        config.copy().rl_module(rl_module_spec=spec).build()


# --- curiosity --------------------------------------------------------------------------------------------------------

KINDS = {
    "PPO": (ppo, icm.CuriousPPOModule, icm.CuriousPPOLearner),
    "DQN": (dqn, icm.CuriousDQNModule, icm.CuriousDQNLearner),
}
kinds = pytest.mark.parametrize("kind", KINDS)
sharing = pytest.mark.parametrize("share", [True, False], ids=["shared", "own"])


def curious(kind: str, share: bool, model_config: dict[str, Any] | None = None, **values: Any) -> Any:
    make, module_class, learner_class = KINDS[kind]
    features: dict[str, Any] = {"output_dim": NUM_FEATURES} | ({} if share else {"trunk": "own"})
    model_config = {"fcnet_hiddens": [16], "functions": {icm.OUTPUT: features}} | (model_config or {})
    spec = RLModuleSpec(module_class=module_class, model_config=model_config)
    return make(learner_class=learner_class, **values).rl_module(rl_module_spec=spec)


def curious_learner(kind: str, share: bool, **values: Any) -> Any:
    config = curious(kind, share, **values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return config.learner_class(config, config.get_rl_module_spec(*SPACES).as_multi(), run_seed=1)


def steps(seed: int = 0) -> dict[str, Any]:
    """A batch as a replay gives it, every third row terminated."""
    generator = torch.Generator().manual_seed(seed)
    return {
        Columns.OBS: torch.rand(ROWS, 4, generator=generator),
        Columns.ACTIONS: torch.randint(0, 3, (ROWS,), generator=generator),
        Columns.REWARDS: torch.randn(ROWS, generator=generator),
        Columns.NEXT_OBS: torch.rand(ROWS, 4, generator=generator),
        Columns.DISCOUNTS: torch.tensor([0.9, 0.9, 0.0]).repeat(ROWS // 3),
    }


def with_ends(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {Columns.TERMINATEDS: batch[Columns.DISCOUNTS] == 0}


class Contract(LearnerContract):
    kind, share = "PPO", True

    def make(self) -> Any:
        return curious_learner(self.kind, self.share)

    def make_data(self, learner: Any, seed: int) -> Any:
        return super().make_data(learner, seed) if self.kind == "PPO" else steps(seed)


class TestCuriousPPO(Contract):
    pass


class TestCuriousPPOWithItsOwnEncoder(Contract):
    share = False


class TestCuriousDQN(Contract):
    kind = "DQN"


class TestCuriousDQNWithItsOwnEncoder(Contract):
    kind, share = "DQN", False


def test_errors_of_both_models_are_worked_by_hand() -> None:
    curiosity = icm.Curiosity(num_features=2, num_actions=3)
    for parameter in curiosity.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(curiosity.forward_model[-1].bias, 1.0)  # type: ignore[arg-type]
    logits = torch.tensor([2.0, 1.0, 1.0]).log()
    torch.nn.init.zeros_(curiosity.inverse_model[-1].bias).data += logits  # type: ignore[arg-type]
    features, following, actions = torch.rand(2, 2), torch.tensor([[4.0, 5.0], [1.0, 1.0]]), torch.tensor([0, 2])
    assert curiosity.forward_errors(features, following, actions).tolist() == [12.5, 0.0]  # (3² + 4²) / 2
    expected = torch.tensor([2.0, 4.0]).log()  # of 2, 1 and 1 parts in 4
    torch.testing.assert_close(curiosity.inverse_errors(features, following, actions), expected)


def test_each_model_reads_what_it_is_given() -> None:
    curiosity = icm.Curiosity(num_features=2, num_actions=3)
    features, following, actions = *torch.rand(2, 1, 2, requires_grad=True).unbind(), torch.tensor([1])
    by_action = curiosity.forward_errors(features.expand(3, 2), following.expand(3, 2), torch.arange(3))
    assert len(set(by_action.tolist())) == 3
    for errors in (curiosity.inverse_errors, curiosity.forward_errors):
        gradients = torch.autograd.grad(errors(features, following, actions).sum(), (features, following))
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


@kinds
@sharing
def test_the_same_curiosity_learns_under_both_algorithms(kind: str, share: bool) -> None:
    module, before, learned = trained(curious(kind, share))
    assert type(module.curiosity) is icm.Curiosity
    own = [name for name in before if name.startswith(("curiosity.", "extra_outputs."))]
    assert len(own) == 8 + 2 + (0 if share else 2)
    parameters = dict(module.named_parameters())
    assert all(not torch.equal(before[name], parameters[name]) for name in own)
    assert learned["inverse_model_loss"] > 0
    assert learned["forward_model_loss"] > 0


@kinds
def test_both_errors_fall_where_everything_can_be_foreseen(kind: str) -> None:
    """Three actions that move along one axis each."""
    learner = curious_learner(kind, share=False, lr=3e-3)
    module, losses = learner.module[ID], []
    for update in range(300):
        data = with_ends(steps(update))
        data[Columns.NEXT_OBS] = data[Columns.OBS] + functional.one_hot(data[Columns.ACTIONS], 4)
        fwd_out = module.forward_train(data)
        losses.append(module.compute_extra_losses(data, fwd_out))
        learner.parameters[ID].zero_grad()
        torch.stack([extra.weight * extra.value for extra in losses[-1].values()]).sum().backward()
        learner.optimizers[ID].step()
    assert losses[0]["inverse_model"].value > 0.9  # log 3 = 1.1
    assert losses[-1]["inverse_model"].value < 0.1
    assert losses[-1]["forward_model"].value < 0.05


@kinds
def test_a_shared_trunk_exists_once_and_an_own_one_beside_it(kind: str) -> None:
    shared, own = (set(dict(curious_learner(kind, share).module[ID].named_parameters())) for share in (True, False))
    plain = {name for name in shared if not name.startswith(("curiosity.", "extra_outputs."))}
    make = KINDS[kind][0]
    assert plain == set(dict(built(make(model_config={"fcnet_hiddens": [16]})).named_parameters()))
    assert own - shared == {name for name in own if name.startswith("extra_outputs.encoders.")}
    assert len(own - shared) == 2
    assert shared < own


@kinds
@sharing
def test_curiosity_reaches_the_trunk_exactly_if_it_is_shared(kind: str, share: bool) -> None:
    module, batch = curious_learner(kind, share).module[ID], with_ends(steps())
    fwd_out = module.forward_train(batch)
    losses = module.compute_extra_losses(batch, fwd_out)
    names, parameters = zip(*module.named_parameters(), strict=True)
    loss = torch.stack([extra.value for extra in losses.values()]).sum()
    features = fwd_out[Columns.EXTRA_OUTPUTS][icm.OUTPUT]
    by_features, *gradients = torch.autograd.grad(loss, (features, *parameters), allow_unused=True)
    assert torch.equal(by_features.abs().sum(-1) > 0, ~batch[Columns.TERMINATEDS])
    touched = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    trunk = {name for name in names if name.startswith("encoder.") and "critic" not in name}
    own = {name for name in names if name.startswith("extra_outputs.encoders.")}
    rest = {name for name in names if name.startswith(("curiosity.", "extra_outputs.heads."))}
    assert touched == rest | (trunk if share else own)
    assert len(trunk) == 2
    assert len(own) == (0 if share else 2)
    assert all(gradient is None or gradient.abs().sum() > 0 for gradient in gradients)


@kinds
def test_what_followed_a_terminated_step_counts_for_nothing(kind: str) -> None:
    module, batch = curious_learner(kind, share=True).module[ID], with_ends(steps())
    other = batch | {Columns.NEXT_OBS: batch[Columns.NEXT_OBS].clone()}
    other[Columns.NEXT_OBS][batch[Columns.TERMINATEDS]] += 5.0
    rewards = module.intrinsic_rewards(batch)
    assert torch.equal(rewards, module.intrinsic_rewards(other))
    assert torch.equal(rewards == 0, batch[Columns.TERMINATEDS])
    one, two = (module.compute_extra_losses(x, module.forward_train(x)) for x in (batch, other))
    assert all(torch.equal(one[name].value, two[name].value) for name in one)
    kept = {name: column[~batch[Columns.TERMINATEDS]] for name, column in batch.items()}
    rest = module.compute_extra_losses(kept, module.forward_train(kept))
    for name, extra in one.items():
        torch.testing.assert_close(extra.value, rest[name].value)


def test_a_batch_that_only_ends_has_losses_of_zero() -> None:
    module, batch = curious_learner("PPO", share=True).module[ID], with_ends(steps())
    batch[Columns.TERMINATEDS] = torch.ones(ROWS, dtype=torch.bool)
    losses = module.compute_extra_losses(batch, module.forward_train(batch))
    assert [extra.value.item() for extra in losses.values()] == [0.0, 0.0]


def intrinsic(module: Any, obs: Tensor, following: Tensor, action: Tensor) -> float:
    """η/2 · |φ̂(s') - φ(s')|² of one step, term by term."""
    features, after = module.features(obs), module.features(following)
    foreseen = module.curiosity.forward_model(torch.cat([features, functional.one_hot(action, 3).float()]))
    return icm.ETA / 2 * sum((a - b) ** 2 for a, b in zip(foreseen.tolist(), after.tolist(), strict=True))


@sharing
def test_ppo_is_rewarded_for_what_followed_each_step_of_a_rollout(share: bool) -> None:
    learner = curious_learner("PPO", share)
    module, rollout = learner.module[ID].eval(), Contract().make_data(learner, 3)
    with torch.no_grad():
        rewarded = learner.preprocess_train_data(rollout)
        finals = {tuple(place): obs for place, obs in zip(rollout.final_index.tolist(), rollout.final_obs, strict=True)}
        num_steps, slots = rollout.shape
        kinds_of_steps = set()
        for t in range(num_steps):
            for n in range(slots):
                following = rollout.last_obs[n] if t + 1 == num_steps else rollout[Columns.OBS][t + 1, n]
                following = finals.get((t, n), following)
                expected = float(rollout[Columns.REWARDS][t, n])
                ended = bool(rollout[Columns.TERMINATEDS][t, n])
                kinds_of_steps.add((ended, (t, n) in finals, t + 1 == num_steps))
                if rollout.valid[t, n] and not ended:
                    place = (t, n)
                    expected += intrinsic(module, rollout["obs"][place], following, rollout["actions"][place])
                if rollout.valid[t, n]:
                    assert float(rewarded[Columns.REWARDS][t, n]) == pytest.approx(expected, abs=1e-5)
        batch = learner.make_train_batch(ID, rewarded)[0]
    assert {(False, False, False), (True, False, False), (False, True, False)} <= kinds_of_steps
    assert batch[Columns.NEXT_OBS].shape == batch[Columns.OBS].shape


@sharing
def test_dqn_is_rewarded_for_what_followed_each_row_of_a_batch(share: bool) -> None:
    learner, batch = curious_learner("DQN", share, gamma=0.9), steps()
    module = learner.module[ID]
    with torch.no_grad():
        plain = DQNLearner.compute_targets(learner, ID, batch)
        prepared = learner.prepare_batch(ID, batch)
        for row in range(ROWS):
            expected = float(plain[row])
            if row % 3 < 2:
                expected += intrinsic(module, *(batch[name][row] for name in ("obs", "next_obs", "actions")))
            assert float(prepared[Columns.VALUE_TARGETS][row]) == pytest.approx(expected, abs=1e-5)


@kinds
def test_acting_does_without_curiosity(kind: str) -> None:
    spec = curious(kind, share=False).get_rl_module_spec(*SPACES)
    copy = spec.build(inference_only=True)
    assert not [name for name in copy.state_dict() if name.startswith(("curiosity.", "extra_outputs."))]
    copy.set_state(spec.build().get_state(inference_only=True))
    assert copy.forward_exploration({Columns.OBS: torch.rand(2, 4)})[Columns.ACTION_DIST_INPUTS].shape == (2, 3)


def test_what_curiosity_needs_is_named() -> None:
    box = spaces.Box(-1, 1, (2,))
    for config, action_space, message in (
        (curious("PPO", True, {"functions": {}}), SPACES[1], r"functions of CuriousPPOModule: .* called 'curiosity'"),
        (curious("PPO", True), box, "action_space of CuriousPPOModule: expected a Discrete space, got Box"),
        (curious("DQN", True, {"use_gru": True}), SPACES[1], "CuriousDQNModule: expected no recurrent net"),
    ):
        with pytest.raises(ValueError, match=message):
            config.get_rl_module_spec(SPACES[0], action_space).build()
    with pytest.raises(ValueError, match=r"DQNConfig.n_step: expected 1, got 3\. Set n_step=1"):
        curious("DQN", True, n_step=3).build()


@kinds
def test_a_curious_learner_requires_a_curious_module(kind: str) -> None:
    make, _, learner_class = KINDS[kind]
    with pytest.raises(TypeError, match=rf"{learner_class.__name__} .*CuriosityAPI \(intrinsic_rewards\)"):
        make(learner_class=learner_class).build()


@kinds
def test_observations_of_several_parts_are_foreseen_too(kind: str) -> None:
    """With an action mask, by features that take in all of it."""

    class Masked(gym.ObservationWrapper):
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"))
            mask = spaces.MultiBinary(2)
            self.observation_space = spaces.Dict({"obs": self.env.observation_space, "action_mask": mask})

        def observation(self, observation: Any) -> Any:
            return {"obs": observation, "action_mask": np.ones(2, np.int8)}

    config = curious(kind, share=True).environment(lambda env_config: Masked())
    assert trained(config)[2]["forward_model_loss"] > 0
