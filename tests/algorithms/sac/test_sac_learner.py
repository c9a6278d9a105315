"""SAC's targets and losses, against numbers worked out one by one and a plain loop."""

import copy
import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from algorithms.sac import SACLearner
from catalog.distributions.gaussian import SquashedGaussian
from rlmodule import Columns, MultiRLModuleSpec, RLModuleSpec
from rlmodule.testing.data import differences
from rlmodule.testing.learner_contract import LearnerContract
from tests.algorithms.sac.conftest import ARM, BOX, OBS, tiny

ID = "default_policy"
THREE = gym.spaces.Discrete(3)
GRID = gym.spaces.MultiDiscrete([2, 3])
MASKED_OBS = gym.spaces.Dict({"x": OBS, "action_mask": gym.spaces.MultiBinary(3)})


def make(run_seed: int = 1, spaces: Any = (OBS, BOX), **settings: Any) -> SACLearner:
    config = tiny(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run_seed)
        return SACLearner(config, config.get_rl_module_spec(*spaces).as_multi(), run_seed=run_seed)


def online(learner: SACLearner) -> Any:
    return learner.module[ID]


def target(learner: SACLearner) -> Any:
    return learner.target[ID]


def actions_of(space: gym.Space, rows: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, gym.spaces.Discrete):
        return torch.randint(0, int(space.n), (rows,), generator=generator)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return torch.stack([torch.randint(0, int(n), (rows,), generator=generator) for n in space.nvec], -1)
    if isinstance(space, gym.spaces.Dict):
        return {key: actions_of(part, rows, seed) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(actions_of(part, rows, seed) for part in space.spaces)
    return torch.rand(rows, *(space.shape or ()), generator=generator) * 2 - 1


def batch(rows: int = 16, seed: int = 0, space: gym.Space = BOX, **columns: Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 4, (rows,), generator=generator)
    return {
        Columns.OBS: torch.rand(rows, 4, generator=generator),
        Columns.ACTIONS: actions_of(space, rows, seed),
        Columns.REWARDS: torch.randn(rows, generator=generator),
        Columns.NEXT_OBS: torch.rand(rows, 4, generator=generator),
        Columns.DISCOUNTS: torch.where(steps > 0, 0.9**steps, 0.0),
    } | columns


def stirred(learner: SACLearner, seed: int = 5) -> SACLearner:
    """``learner`` with target critics that differ from those in training, and values of visible size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for net in (online(learner), target(learner).qf):
            for parameter in net.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return learner


def loss_of(learner: SACLearner, data: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """The loss, what it reports and the prepared batch."""
    with torch.no_grad():
        learner.before_gradient_step(ID)
        prepared = learner.prepare_batch(ID, data)
    return *learner.compute_loss_for_module(ID, prepared, online(learner).forward_train(prepared)), prepared


def goal_of(learner: SACLearner, obs: Any) -> Tensor:
    """The target entropy for observations."""
    return learner._target_entropy[ID](obs)


class _Contract(LearnerContract):
    settings: ClassVar[dict[str, Any]] = {}
    space: ClassVar[gym.Space] = BOX

    def make(self) -> SACLearner:
        return make(spaces=(OBS, self.space), **self.settings)

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed, self.space)


class TestBox(_Contract):
    pass


class TestDiscrete(_Contract):
    space = THREE


class TestMixture(_Contract):
    space = ARM

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed, self.space, weights=torch.rand(16, generator=torch.Generator().manual_seed(seed)))


class TestOneCriticAndDropout(_Contract):
    settings: ClassVar[dict[str, Any]] = {"num_critics": 1, "model_config": {"fcnet_dropout": 0.3}, "tau": 0.3}


class TestQuantiles(_Contract):
    settings: ClassVar[dict[str, Any]] = {"num_critics": 3, "num_quantiles": 5, "drop_quantiles": 1}


class TestQuantilesOfChoices(_Contract):
    settings: ClassVar[dict[str, Any]] = {"num_quantiles": 5, "policy_value": "min"}
    space = GRID


class TestAtomsOfAFewOfManyCritics(_Contract):
    settings: ClassVar[dict[str, Any]] = {"num_critics": 4, "target_critics": 2, "policy_value": "mean"} | {
        "num_atoms": 5,
        "v_min": -3.0,
        "v_max": 3.0,
    }


class PlainLoop:
    """SAC as the papers write it, with nets one by one and a backward pass for each loss, next to ``learner``."""

    def __init__(self, learner: SACLearner) -> None:
        module, self.rng = online(learner), learner
        self.policy = copy.deepcopy(torch.nn.ModuleList([module.encoder.actor_encoder, module.pi_head]))
        self.critics, self.targets = copy.deepcopy(module.qf), copy.deepcopy(target(learner).qf)
        self.log_alpha = torch.nn.Parameter(module.temperature.log_alpha.detach().clone())
        groups = [*self.policy.parameters()], [*self.critics.parameters()], [self.log_alpha]
        self.optimizers = [torch.optim.Adam(group, lr=3e-4) for group in groups]

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        encoder, head = self.policy
        mean, log_std = head(encoder(obs).latent).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        before = mean + log_std.exp() * noise
        slope = (1 - before.double().tanh().square()).log().float()
        return before.tanh(), (normal.log_prob(before) - slope).sum(-1)

    def values(self, ensemble: Any, obs: Tensor, actions: Tensor) -> list[Tensor]:
        first, last = ensemble.body.linears[0], ensemble.head.linears[0]
        x = torch.cat([obs, actions], -1)
        hidden = [functional.relu(x @ first.weight[i] + first.bias[i]) for i in range(2)]
        return [(hidden[i] @ last.weight[i] + last.bias[i]).squeeze(-1) for i in range(2)]

    def step(self, data: dict[str, Any], noise: Tensor, next_noise: Tensor, tau: float) -> None:
        obs, alpha = data[Columns.OBS], self.log_alpha.detach().exp()
        with torch.no_grad():
            drawn, logp = self.draw(data[Columns.NEXT_OBS], next_noise)
            later = torch.minimum(*self.values(self.targets, data[Columns.NEXT_OBS], drawn)) - alpha * logp
            aims = data[Columns.REWARDS] + data[Columns.DISCOUNTS] * later
        drawn, logp = self.draw(obs, noise)
        policy_loss = (alpha * logp - torch.minimum(*self.values(self.critics, obs, drawn))).mean()
        critic_loss = sum(
            functional.mse_loss(q, aims) / 2 for q in self.values(self.critics, obs, data[Columns.ACTIONS])
        )
        alpha_loss = -(self.log_alpha * (logp.detach() - 2.0)).mean()  # target entropy: -2
        for optimizer, loss in zip(self.optimizers, (policy_loss, critic_loss, alpha_loss), strict=True):
            grads = torch.autograd.grad(loss, optimizer.param_groups[0]["params"], retain_graph=True)
            for parameter, grad in zip(optimizer.param_groups[0]["params"], grads, strict=True):
                parameter.grad = grad
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for theirs, mine in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                theirs.mul_(1 - tau).add_(tau * mine)


def test_updates_are_those_of_a_plain_loop() -> None:
    nets = {"fcnet_hiddens": [8], "normalize_observations": False}
    learner = stirred(make(tau=0.1, model_config=nets))
    plain = PlainLoop(learner)
    noises: list[torch.Tensor] = []
    draw = learner.draw_noise
    learner.draw_noise = lambda *args, **more: noises.append(draw(*args, **more)) or noises[-1]  # type: ignore
    for step in range(5):
        data = batch(seed=step)
        learner.step_on_batch(data, env_steps=0)
        plain.step(data, *noises[-1], 0.1)
    module = online(learner)
    theirs = [*plain.policy.parameters(), *plain.critics.parameters(), plain.log_alpha, *plain.targets.parameters()]
    mine = [*module.encoder.actor_encoder.parameters(), *module.pi_head.parameters(), *module.qf.parameters()]
    mine += [module.temperature.log_alpha, *target(learner).qf.parameters()]
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6)


def next_actions(learner: SACLearner, prepared: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The policy's actions for the next observations, α·log π of them, and the outputs of all target critics."""
    obs = {Columns.OBS: prepared[Columns.NEXT_OBS]}
    with torch.no_grad():
        inputs = online(learner).forward_train(obs)[Columns.ACTION_DIST_INPUTS]
        actions, logp = SquashedGaussian.from_logits(inputs).rsample_with_logp(prepared[Columns.NEXT_NOISE])
        penalty = online(learner).temperature.log_alpha.exp() * logp
        return actions, penalty, target(learner).compute_action_outputs(obs, actions)


def test_targets_of_quantiles_pool_all_critics_and_drop_the_largest() -> None:
    learner = stirred(make(num_critics=3, num_quantiles=5, drop_quantiles=2))
    *_, prepared = loss_of(learner, batch())
    _, penalty, outputs = next_actions(learner, prepared)
    for row in range(16):
        pool = sorted(outputs[:, row].flatten().tolist())[: 3 * 3]
        reward, discount = float(prepared[Columns.REWARDS][row]), float(prepared[Columns.DISCOUNTS][row])
        expected = [reward + discount * (value - float(penalty[row])) for value in pool]
        assert prepared[Columns.VALUE_TARGETS][row].tolist() == pytest.approx(expected, abs=1e-5)


def test_targets_of_atoms_are_those_of_the_critic_with_the_least_mean() -> None:
    learner = stirred(make(num_atoms=9, v_min=-4.0, v_max=4.0))
    *_, prepared = loss_of(learner, batch())
    _, penalty, outputs = next_actions(learner, prepared)
    probs, support = outputs.softmax(-1), torch.linspace(-4.0, 4.0, 9)
    least = (probs @ support).argmin(0)
    for row in range(16):
        reward, discount = float(prepared[Columns.REWARDS][row]), float(prepared[Columns.DISCOUNTS][row])
        moved = (reward + discount * (support - penalty[row])).clamp(-4, 4)
        near = (1 - (moved[:, None] - support).abs()).clamp_min(0)  # the atoms lie one apart
        expected = (probs[least[row], row, :, None] * near).sum(0)
        assert prepared[Columns.VALUE_TARGETS][row].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_targets_use_a_few_critics_that_change_from_step_to_step() -> None:
    learner = stirred(make(num_critics=4, target_critics=2))
    pairs = set()
    for _ in range(30):
        *_, prepared = loss_of(learner, batch())
        _, penalty, outputs = next_actions(learner, prepared)
        soft = (prepared[Columns.VALUE_TARGETS] - prepared[Columns.REWARDS]) / prepared[Columns.DISCOUNTS] + penalty
        going = prepared[Columns.DISCOUNTS] > 0
        fitting = [
            (first, second)
            for first in range(4)
            for second in range(first)
            if torch.allclose(torch.minimum(outputs[first], outputs[second])[going], soft[going], atol=1e-4)
        ]
        assert len(fitting) == 1
        pairs.update(fitting)
    assert len(pairs) > 3


@pytest.mark.parametrize(
    ("settings", "reads_mean"),
    [
        ({}, False),
        ({"policy_value": "mean"}, True),
        ({"num_quantiles": 3}, True),
        ({"num_quantiles": 3, "policy_value": "min"}, False),
    ],
)
def test_the_policy_maximises_the_least_value_or_the_mean(settings: dict[str, Any], reads_mean: bool) -> None:
    learner = stirred(make(**settings))
    _, metrics, prepared = loss_of(learner, batch())
    obs = {Columns.OBS: prepared[Columns.OBS]}
    inputs = online(learner).forward_train(obs)[Columns.ACTION_DIST_INPUTS]
    actions, logp = SquashedGaussian.from_logits(inputs).rsample_with_logp(prepared[Columns.NOISE])
    values = online(learner).compute_action_values(obs, actions)
    value = values.mean(0) if reads_mean else values.amin(0)
    expected = (online(learner).temperature.log_alpha.exp() * logp - value).mean()
    assert float(metrics["policy_loss"].detach()) == pytest.approx(float(expected.detach()), abs=1e-5)


def test_targets_are_those_worked_out_row_by_row() -> None:
    learner, data = stirred(make(initial_alpha=0.3)), batch()
    with torch.no_grad():
        learner.before_gradient_step(ID)
        prepared = learner.prepare_batch(ID, data)
        inputs = online(learner).forward_train({Columns.OBS: data[Columns.NEXT_OBS]})[Columns.ACTION_DIST_INPUTS]
        alpha = float(online(learner).temperature.log_alpha.exp())
        exact = SquashedGaussian.from_logits(inputs.double())
        actions = exact.sample_from(prepared[Columns.NEXT_NOISE].double())
        logp = exact.logp(actions)
        values = target(learner).compute_action_values({Columns.OBS: data[Columns.NEXT_OBS]}, actions.float())
    assert alpha != 0.3  # stirred
    for row in range(16):
        soft = min(float(values[0, row]), float(values[1, row])) - alpha * float(logp[row])
        expected = float(data[Columns.REWARDS][row]) + float(data[Columns.DISCOUNTS][row]) * soft
        assert float(prepared[Columns.VALUE_TARGETS][row]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("space", [THREE, GRID], ids=str)
def test_choices_are_summed_over_exactly(space: gym.Space) -> None:
    learner, data = stirred(make(spaces=(OBS, space))), batch(space=space)
    loss, metrics, prepared = loss_of(learner, data)
    assert Columns.NOISE not in prepared
    module, alpha = online(learner), float(online(learner).temperature.log_alpha.detach().exp())
    actions = [0, 1, 2] if space is THREE else [[a, b] for a in range(2) for b in range(3)]
    total = {"qf_loss": 0.0, "policy_loss": 0.0, "entropy": 0.0}

    def logps_of(obs: Tensor) -> list[float]:
        dist = module.action_dist_cls.from_logits(module.forward_train({Columns.OBS: obs})["action_dist_inputs"])
        return [float(dist.logp(torch.tensor([action]))) for action in actions]

    def least(net: Any, obs: Tensor, action: Any) -> float:
        return float(net.compute_action_values({Columns.OBS: obs}, torch.tensor([action])).amin(0))

    with torch.no_grad():
        for row in range(16):
            obs, after = data[Columns.OBS][row : row + 1], data[Columns.NEXT_OBS][row : row + 1]
            soft = [least(target(learner), after, a) - alpha * p for p, a in zip(logps_of(after), actions, strict=True)]
            later = sum(math.exp(p) * value for p, value in zip(logps_of(after), soft, strict=True))
            aim = float(data[Columns.REWARDS][row]) + float(data[Columns.DISCOUNTS][row]) * later
            assert float(prepared[Columns.VALUE_TARGETS][row]) == pytest.approx(aim, abs=1e-4)
            taken = data[Columns.ACTIONS][row : row + 1]
            both = module.compute_action_values({Columns.OBS: obs}, taken)[:, 0].tolist()
            total["qf_loss"] += sum(0.5 * (q - aim) ** 2 for q in both) / 16
            for p, action in zip(logps_of(obs), actions, strict=True):
                total["policy_loss"] += math.exp(p) * (alpha * p - least(module, obs, action)) / 16
                total["entropy"] -= math.exp(p) * p / 16
    goal = 0.98 * math.log(len(actions))
    expected = total | {"target_entropy": goal, "alpha_value": alpha}
    expected["alpha_loss"] = math.log(alpha) * (total["entropy"] - goal)
    for name, value in expected.items():
        assert float(metrics[name].detach()) == pytest.approx(value, abs=1e-4), name
    assert float(loss.detach()) == pytest.approx(
        sum(expected[f"{n}_loss"] for n in ("qf", "policy", "alpha")), abs=1e-4
    )


@pytest.mark.parametrize("space", [BOX, THREE, ARM], ids=["Box", "Discrete", "mixture"])
@pytest.mark.parametrize("share", [False, True])
def test_each_loss_moves_its_own_part_alone(space: gym.Space, share: bool) -> None:
    model = {"fcnet_hiddens": [16], "vf_share_layers": share}
    learner = stirred(make(spaces=(OBS, space), model_config=model))
    module = online(learner)
    parts = learner.parts_of(ID)
    expected = {"qf_loss": "critic", "policy_loss": "actor", "alpha_loss": "alpha"}
    for name, part in expected.items():
        _, metrics, _ = loss_of(learner, batch(space=space))
        learner.parameters[ID].zero_grad()
        metrics[name].backward()
        moved = {n for n, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}
        assert moved, name
        assert all(parts[part].covers(n) for n in moved), (name, moved)
        if part != "critic" or space is not THREE:
            assert moved == {n for n, _ in module.named_parameters() if parts[part].covers(n)}, name


def test_the_temperature_rises_while_the_entropy_is_below_its_target() -> None:
    for goal, sign in ((-100.0, -1), (1.0, 1)):
        learner = make(target_entropy=goal)
        with torch.no_grad():
            online(learner).pi_head.linears[0].bias[2:] = -2.0  # log-stds: an entropy of about -1
        before = float(online(learner).temperature.log_alpha.detach())
        learner.step_on_batch(batch(), env_steps=0)
        assert sign * (float(online(learner).temperature.log_alpha.detach()) - before) > 0


def test_alpha_lr_0_keeps_the_temperature() -> None:
    learner = make(alpha_lr=0, initial_alpha=0.2)
    for step in range(3):
        learner.step_on_batch(batch(seed=step), env_steps=0)
    assert float(online(learner).temperature.log_alpha.detach()) == pytest.approx(math.log(0.2))


def test_each_part_has_its_own_learning_rate() -> None:
    learner = make(lr=1e-3, actor_lr=[[0, 2e-3], [100, 0.0]], alpha_lr=5e-3)
    results = learner.update_from_batch(batch(), env_steps=50)[ID]
    found = {part: results[f"learning_rate_{part}"] for part in ("actor", "critic", "alpha")}
    assert found == pytest.approx({"actor": 1e-3, "critic": 1e-3, "alpha": 5e-3})


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (BOX, -2.0),
        (gym.spaces.Box(-1, 1, (2, 3), np.float32), -6.0),
        (THREE, 0.98 * math.log(3)),
        (gym.spaces.MultiBinary(4), 0.98 * 4 * math.log(2)),
        (ARM, 0.98 * math.log(3) - 2),
        (gym.spaces.MultiDiscrete([40, 40]), 0.98 * 2 * math.log(40)),
    ],
    ids=str,
)
def test_the_target_entropy_follows_from_the_action_space(space: gym.Space, expected: float) -> None:
    assert float(goal_of(make(spaces=(OBS, space)), torch.rand(3, 4))) == pytest.approx(expected)
    assert float(goal_of(make(spaces=(OBS, space), target_entropy=-9.5), None)) == -9.5


def test_the_target_entropy_counts_the_allowed_choices_of_each_row() -> None:
    masks = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]], dtype=torch.int8)
    obs = {"x": torch.rand(4, 4), "action_mask": masks}
    learner = make(spaces=(MASKED_OBS, THREE))
    goal = goal_of(learner, obs)
    torch.testing.assert_close(goal, 0.98 * torch.tensor([math.log(3), math.log(2), 0.0, 0.0]))
    arm = gym.spaces.Dict({"a": BOX, "b": THREE, "c": gym.spaces.MultiDiscrete([2, 2])})
    space = gym.spaces.Dict({"x": OBS, "action_mask": gym.spaces.Dict({"b": gym.spaces.MultiBinary(3)})})
    learner = make(spaces=(space, arm))
    goal = goal_of(learner, obs | {"action_mask": {"b": masks}})
    rest = 2 * math.log(2)
    torch.testing.assert_close(goal, 0.98 * (torch.tensor([math.log(3), math.log(2), 0.0, 0.0]) + rest) - 2)


@pytest.mark.parametrize("space", [THREE, gym.spaces.Dict({"a": BOX, "b": THREE})], ids=["Discrete", "mixture"])
def test_forbidden_actions_count_for_nothing(space: gym.Space) -> None:
    mask = gym.spaces.MultiBinary(3)
    whole = gym.spaces.Dict({"x": OBS, "action_mask": mask})
    learner = stirred(make(spaces=(whole, space)))
    masks = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.int8).repeat(4, 1)
    plain = batch(space=space)
    plain[Columns.DISCOUNTS] = torch.where((masks.sum(-1) == 0), 0.0, plain[Columns.DISCOUNTS])  # nothing follows
    data = plain | {name: {"x": plain[name], "action_mask": masks} for name in (Columns.OBS, Columns.NEXT_OBS)}
    loss, metrics, prepared = loss_of(learner, data)
    assert bool(loss.isfinite())
    assert bool(prepared[Columns.VALUE_TARGETS].isfinite().all())
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in online(learner).parameters() if p.grad is not None)
    if space is THREE:
        # values of forbidden actions change neither targets nor the loss of the policy
        forbidden = online(learner).qf, target(learner).qf
        before, kept = metrics["policy_loss"].detach(), prepared[Columns.VALUE_TARGETS]
        data[Columns.OBS]["action_mask"] = data[Columns.NEXT_OBS]["action_mask"] = masks * 0 + torch.tensor([1, 0, 1])
        first = loss_of(learner, data)
        with torch.no_grad():
            for critics in forbidden:
                critics.head.linears[0].bias[..., 1] += 100
        second = loss_of(learner, data)
        torch.testing.assert_close(first[1]["policy_loss"], second[1]["policy_loss"])
        torch.testing.assert_close(first[2][Columns.VALUE_TARGETS], second[2][Columns.VALUE_TARGETS])
        assert not torch.equal(before, first[1]["policy_loss"])
        assert not torch.equal(kept, first[2][Columns.VALUE_TARGETS])


@pytest.mark.parametrize("space", [THREE, gym.spaces.Dict({"a": BOX, "b": THREE})], ids=["Discrete", "mixture"])
def test_what_allows_nothing_any_more_is_worth_nothing(space: gym.Space) -> None:
    learner = stirred(make(spaces=(gym.spaces.Dict({"x": OBS, "action_mask": gym.spaces.MultiBinary(3)}), space)))
    plain, masks = batch(space=space), torch.ones(16, 3, dtype=torch.int8)
    plain[Columns.DISCOUNTS] = torch.full((16,), 0.5)  # a truncated episode may end so
    masks[1::2] = 0
    data = plain | {name: {"x": plain[name], "action_mask": masks} for name in (Columns.OBS, Columns.NEXT_OBS)}
    targets = loss_of(learner, data)[2][Columns.VALUE_TARGETS]
    torch.testing.assert_close(targets[1::2], data[Columns.REWARDS][1::2])
    assert not (targets[::2] == data[Columns.REWARDS][::2]).any()


def test_weights_of_rows_weigh_the_loss_of_the_critics() -> None:
    learner, data = stirred(make()), batch()
    weights = torch.linspace(0.1, 1, 16)
    data[Columns.DISCOUNTS] = torch.zeros(16)
    _, plain, prepared = loss_of(learner, data)
    _, weighed, _ = loss_of(learner, data | {Columns.WEIGHTS: weights})
    errors = online(learner).compute_action_values(prepared, data[Columns.ACTIONS]) - data[Columns.REWARDS]
    torch.testing.assert_close(weighed["qf_loss"], (0.5 * errors.square().sum(0) * weights).mean())
    torch.testing.assert_close(plain["td_error"], errors.abs().mean(0))


@pytest.mark.parametrize("share", [False, True])
def test_only_the_critics_have_target_nets(share: bool) -> None:
    """An encoder that they share with the policy is one of theirs."""
    learner = stirred(make(tau=0.25, model_config={"fcnet_hiddens": [16], "vf_share_layers": share}))
    followed = ("qf.", "encoder.") if share else ("qf.", "encoder.critic_encoder.")
    before = {name: x.clone() for name, x in target(learner).get_state().items()}
    learner.step_on_batch(batch(), env_steps=1)
    mine = online(learner).get_state()
    for name, value in target(learner).get_state().items():
        expected = 0.75 * before[name] + 0.25 * mine[name] if name.startswith(followed) else mine[name]
        torch.testing.assert_close(value, expected)


def test_a_module_comes_with_all_it_needs_and_goes_with_it() -> None:
    learner = make()
    learner.add_module("other", learner.settings.get_rl_module_spec(OBS, THREE))
    learner.step_on_batch(batch(space=THREE), env_steps=0, module_id="other")
    learner.step_on_batch(batch(), env_steps=0)
    first, second = (learner.module[name].get_state()["temperature.log_alpha"] for name in (ID, "other"))
    assert float(first) != float(second)
    learner.remove_module("other")
    learner.step_on_batch(batch(), env_steps=0)
    assert learner.get_state()["target"].keys() == {ID}


def test_numbers_to_report() -> None:
    learner = make()
    history = [learner.step_on_batch(batch(seed=seed), env_steps=seed) for seed in range(3)]
    results = learner.summarize_updates(history)[ID]
    assert results["td_error_mean"] == pytest.approx(float(torch.cat([m[ID]["td_error"] for m in history]).mean()))
    assert {
        "qf_loss", "policy_loss", "alpha_loss", "alpha_value", "entropy", "target_entropy", "qf_mean", "qf_min",
        "qf_max", "td_error_mean", "num_target_updates", "learning_rate_actor", "learning_rate_critic",
        "learning_rate_alpha", "total_loss", "gradient_norm", "gradient_norm_actor", "gradient_norm_critic",
        "gradient_norm_alpha",
        "num_updates_skipped",
    } == set(results)  # fmt: skip


def test_a_temperature_that_diverges_is_reported() -> None:
    learner = make()
    with torch.no_grad():
        online(learner).temperature.log_alpha.fill_(21.0)
    with pytest.raises(FloatingPointError, match=r"temperature of module 'default_policy': .* Lower target_entropy"):
        learner.update_from_batch(batch(), env_steps=0)


@pytest.mark.parametrize(
    ("space", "most"), [(THREE, 1.1), (BOX, 1.39), (ARM, 2.48)], ids=["Discrete", "Box", "mixture"]
)
def test_a_target_entropy_out_of_reach_is_refused(space: gym.Space, most: float) -> None:
    with pytest.raises(ValueError, match=rf"SACConfig\.target_entropy: expected less than {most}"):
        make(spaces=(OBS, space), target_entropy=most + 0.01)
    make(spaces=(OBS, space), target_entropy=most - 0.02)


def test_a_module_that_does_not_train_has_no_target_entropy_to_reach() -> None:
    config = tiny(target_entropy=1.2).multi_agent(policies_to_train=[ID])
    specs = {ID: config.get_rl_module_spec(OBS, BOX), "fixed": config.get_rl_module_spec(OBS, THREE)}
    learner = SACLearner(config.freeze(), MultiRLModuleSpec(specs), run_seed=1)
    learner.step_on_batch(batch(), env_steps=0)
    assert [*learner.target] == [ID]


def test_a_module_without_critics_is_refused() -> None:
    from tests.rlmodule.toys import Small

    spec = RLModuleSpec(module_class=Small)
    config = tiny(rl_module_spec=spec)
    with pytest.raises(
        TypeError, match=r"SACLearner.*implements ActionValueAPI \(compute_action_values, .*Temperature"
    ):
        SACLearner(config, config.get_rl_module_spec(OBS, BOX).as_multi(), run_seed=0)


def test_noise_is_drawn_from_the_stream_of_the_run() -> None:
    one, again, other = make(1), make(1), make(2)
    drawn = []
    for learner in (one, again, other):
        for _ in range(2):
            learner.before_gradient_step(ID)
            drawn.append(learner.prepare_batch(ID, batch())[Columns.NOISE])
    assert torch.equal(drawn[1], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[5])
    assert differences(one.get_state()["generator"], again.get_state()["generator"]) == []
