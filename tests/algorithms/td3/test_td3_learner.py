"""TD3's targets, losses, delay and target nets, against numbers worked out by hand and against a plain loop."""

import copy
from typing import Any, ClassVar

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from algorithms.ddpg import DDPGConfig
from algorithms.td3 import TD3Config, TD3Learner
from algorithms.td3.learner import with_noise
from rlmodule import Columns
from rlmodule.testing.data import differences
from rlmodule.testing.learner_contract import LearnerContract
from tests.algorithms.td3.conftest import QUICK, SPACES, tiny

ID = "default_policy"


def make(run_seed: int = 1, config: TD3Config | None = None, **settings: Any) -> TD3Learner:
    config = tiny(**settings) if config is None else config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run_seed)
        return TD3Learner(config, config.get_rl_module_spec(*SPACES).as_multi(), run_seed=run_seed)


def batch(rows: int = 12, seed: int = 0, **columns: Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 4, (rows,), generator=generator)
    return {
        Columns.OBS: torch.rand(rows, 4, generator=generator),
        Columns.ACTIONS: torch.rand(rows, 2, generator=generator) * 2 - 1,
        Columns.REWARDS: torch.randn(rows, generator=generator),
        Columns.NEXT_OBS: torch.rand(rows, 4, generator=generator),
        Columns.DISCOUNTS: torch.where(steps > 0, 0.9**steps, 0.0),
    } | columns


class _Contract(LearnerContract):
    settings: ClassVar[dict[str, Any]] = {}

    def make(self) -> TD3Learner:
        return make(**self.settings)

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed)


class TestPlain(_Contract):
    pass


class TestOwnRatesAndBounds(_Contract):
    settings: ClassVar[dict[str, Any]] = {
        "actor_lr": [[0, 1e-3], [100, 1e-4]],
        "critic_lr": 2e-3,
        "grad_clip": 1.0,
        "policy_delay": 1,
        "model_config": {"fcnet_hiddens": [8, 8], "fcnet_blocks": "bro", "normalize_observations": True},
    }

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed, weights=torch.rand(16, generator=torch.Generator().manual_seed(seed)))


class TestDDPG(_Contract):
    def make(self) -> TD3Learner:
        return make(config=DDPGConfig(**QUICK).environment("Pendulum-v1"))


class PlainTD3:
    """Algorithm 1 of Fujimoto et al. 2018 as one class, with two separate critics and an optimizer for each net."""

    def __init__(self, actor: nn.Module, critics: list[nn.Module], config: TD3Config) -> None:
        self.config, self.steps, self.nets = config, 0, [*critics, actor]
        self.targets = copy.deepcopy(self.nets)
        lr = config.lr
        assert isinstance(lr, float)
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=lr) for net in self.nets]

    def step(self, data: dict[str, Tensor], noise: Tensor) -> None:
        config, obs, after = self.config, data["obs"], data["next_obs"]
        *critics, actor = self.nets
        *target_critics, target_actor = self.targets
        self.steps += 1
        with torch.no_grad():
            noise = (config.target_noise * noise).clamp(-config.target_noise_clip, config.target_noise_clip)
            following = torch.cat([after, (target_actor(after) + noise).clamp(-1, 1)], -1)
            least = torch.stack([critic(following).squeeze(-1) for critic in target_critics]).min(0).values
            aims = data["rewards"] + data["discounts"] * least
        # the policy's gradient is that of the critic before this step: both learn in one backward pass
        policy_loss = -critics[0](torch.cat([obs, actor(obs)], -1)).mean()
        policy_gradient = torch.autograd.grad(policy_loss, [*actor.parameters()])
        for critic, optimizer in zip(critics, self.optimizers, strict=False):
            optimizer.zero_grad()
            functional.mse_loss(critic(torch.cat([obs, data["actions"]], -1)).squeeze(-1), aims).backward()
            optimizer.step()
        if self.steps % config.policy_delay == 0:
            for p, gradient in zip(actor.parameters(), policy_gradient, strict=True):
                p.grad = gradient
            self.optimizers[-1].step()
            for net, target in zip(self.nets, self.targets, strict=True):
                for p, q in zip(net.parameters(), target.parameters(), strict=True):
                    q.data.lerp_(p.data, config.tau)


def plain_nets(module: Any, members: int = 2) -> tuple[nn.Module, list[nn.Module]]:
    """The policy and the critics of ``module`` as plain nets with the same weights."""

    def stack(weights: list[tuple[Tensor, Tensor]], last: nn.Module) -> nn.Module:
        layers: list[nn.Module] = []
        for weight, bias in weights:
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.weight.data, linear.bias.data = weight.detach().clone(), bias.detach().clone()
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1], last)

    of_actor = [*module.encoder.actor_encoder.linears, *module.pi_head.linears]
    of_critics = [*module.qf.body.linears, *module.qf.head.linears]
    actor = stack([(linear.weight, linear.bias) for linear in of_actor], nn.Tanh())
    critics = [[(linear.weight[i].T, linear.bias[i, 0]) for linear in of_critics] for i in range(members)]
    return actor, [stack(weights, nn.Identity()) for weights in critics]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy_delay": 3, "tau": 0.5},
        {"target_noise": 1.0, "target_noise_clip": 0.3},
        {"num_critics": 1, "policy_delay": 1, "target_noise": 0.0},
    ],
    ids=["defaults", "delay", "noise", "ddpg"],
)
def test_updates_equal_those_of_a_plain_loop(settings: dict[str, Any]) -> None:
    learner = make(**settings, lr=1e-2, model_config={"fcnet_hiddens": [16, 8]})
    module = learner.module[ID]
    plain = PlainTD3(*plain_nets(module, learner.settings.num_critics), learner.settings)
    drawn, draw = [torch.zeros(1, 32, 2)], learner.draw_noise
    learner.draw_noise = lambda *args, **more: drawn.append(draw(*args, **more)) or drawn[-1].clone()  # type: ignore
    for i in range(12):
        data = batch(32, seed=i)
        learner.step_on_batch(data, env_steps=i)
        plain.step(data, drawn[-1][0])
        for net, own in ((module, plain.nets), (learner.target[ID], plain.targets)):
            actor, critics = plain_nets(net, len(own) - 1)
            for mine, theirs in zip([*critics, actor], own, strict=True):
                for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
                    torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


def test_a_loss_of_ones_own_gets_the_outputs_in_each_step() -> None:
    class Mine(TD3Learner):
        def compute_loss_for_module(self, module_id: str, batch: Any, fwd_out: Any) -> Any:
            loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
            return loss + fwd_out["extra_outputs"]["aux"].square().mean(), metrics

    nets = {"fcnet_hiddens": [8], "functions": {"aux": {"output_dim": 2}}}
    config = tiny(model_config=nets, policy_delay=2)
    learner = Mine(config, config.get_rl_module_spec(*SPACES).as_multi(), run_seed=1)
    for i in range(4):
        learner.step_on_batch(batch(32, seed=i), env_steps=i)


def test_rows_for_a_net_with_a_memory_are_refused() -> None:
    learner = make(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
    with pytest.raises(ValueError, match=r"recurrent module 'default_policy': expected a batch of sequences"):
        learner.update_from_batch(batch(12))


def test_a_target_is_the_lesser_value_of_the_target_policy_s_action_with_bounded_noise() -> None:
    learner, data = make(target_noise=0.4, target_noise_clip=0.1), batch()
    target: Any = learner.target[ID]
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(3)
    noise = torch.randn(12, 2, generator=torch.Generator().manual_seed(3)).mul(0.4).clamp(-0.1, 0.1)
    got = learner.compute_targets(ID, data | {Columns.NEXT_NOISE: noise}).detach()
    for row in range(12):
        obs = {Columns.OBS: data[Columns.NEXT_OBS][row : row + 1]}
        action = target.forward_train(obs)[Columns.ACTION_DIST_INPUTS].tanh() + noise[row]
        first, second = target.compute_action_values(obs, action.clamp(-1, 1)).squeeze(-1).tolist()
        expected = float(data[Columns.REWARDS][row]) + float(data[Columns.DISCOUNTS][row]) * min(first, second)
        assert float(got[row]) == pytest.approx(expected, abs=1e-5)


def test_noise_is_drawn_clipped_and_keeps_actions_within_their_range() -> None:
    learner = make(target_noise=2.0, target_noise_clip=0.7)
    learner.before_gradient_step(ID)
    with torch.no_grad():
        noise = learner.prepare_batch(ID, batch(500))[Columns.NEXT_NOISE]
    assert noise.shape == (500, 2)
    assert noise.abs().max().item() == pytest.approx(0.7)
    assert 0.5 < noise.std().item() < 0.7  # most of it is clipped
    nested = {"b": torch.tensor([[0.5], [-0.9]]), "a": torch.tensor([0.0, 1.0])}
    noisy = with_noise(nested, torch.tensor([[0.25, 0.125], [0.1, -0.2]]))
    assert noisy["a"].tolist() == [0.25, 1.0]
    torch.testing.assert_close(noisy["b"], torch.tensor([[0.625], [-1.0]]))


def test_losses_by_hand_and_the_policy_leaves_the_critics_alone() -> None:
    learner = make(policy_delay=1, target_noise=0.0)
    module: Any = learner.module[ID]
    weights = torch.linspace(0.1, 1, 12)
    learner.trained[ID].stepping = ("critic", "actor")
    with torch.no_grad():
        data = learner.prepare_batch(ID, batch(weights=weights))
    loss, metrics = learner.compute_loss_for_module(ID, data, module.forward_train(data))
    values = module.compute_action_values(data, data[Columns.ACTIONS])
    errors = values - data[Columns.VALUE_TARGETS]
    torch.testing.assert_close(metrics["qf_loss"], (weights * (errors[0] ** 2 + errors[1] ** 2)).mean())
    actions = module.forward_train(data)[Columns.ACTION_DIST_INPUTS].tanh()
    torch.testing.assert_close(metrics["policy_loss"], -module.compute_action_values(data, actions)[0].mean())
    torch.testing.assert_close(loss, metrics["qf_loss"] + metrics["policy_loss"])
    torch.testing.assert_close(metrics["td_error"], errors.abs().mean(0))
    torch.testing.assert_close(metrics["qf"], values.mean(0))
    learner.parameters[ID].zero_grad()
    metrics["policy_loss"].backward()
    parts = learner.parameters[ID].parts
    assert not parts["critic"].grad.any()
    assert parts["actor"].grad.any()


def test_the_policy_and_all_target_nets_move_in_every_second_step_alone() -> None:
    learner = make()
    moved = []
    for i in range(6):
        kept = [clone.clone() for clone in _flat(learner)]
        learner.step_on_batch(batch(seed=i), env_steps=i)
        moved.append([not torch.equal(a, b) for a, b in zip(kept, _flat(learner), strict=True)])
    assert moved == [[True, False, False], [True, True, True]] * 3
    assert learner.targets.num_updates[ID] == 3


def _flat(learner: TD3Learner) -> list[Tensor]:
    """Weights of critics, policy and target nets."""
    parts = learner.parameters[ID].parts
    target = torch.cat([p.flatten() for p in learner.target[ID].parameters()])
    return [parts["critic"].tensor.detach(), parts["actor"].tensor.detach(), target.detach()]


def test_the_delay_goes_on_where_a_checkpoint_left_it() -> None:
    learner, other = make(policy_delay=3), make(run_seed=2, policy_delay=3)
    for i in range(4):
        learner.step_on_batch(batch(seed=i), env_steps=i)
    other.set_state(copy.deepcopy(learner.get_state()))
    for i in range(4, 10):
        for each in (learner, other):
            each.step_on_batch(batch(seed=i), env_steps=i)
        assert differences(learner.get_state(), other.get_state()) == []


def test_each_part_has_its_rate_and_steps_report_what_they_computed() -> None:
    learner = make(lr=1e-3, actor_lr=1e-4)
    first, second = (learner.step_on_batch(batch(seed=i), env_steps=i)[ID] for i in range(2))
    assert "policy_loss" not in first
    assert "policy_loss" in second
    results = learner.summarize_updates([{ID: first}, {ID: second}])[ID]
    assert results["policy_loss"] == pytest.approx(float(second["policy_loss"]))
    assert (results["learning_rate_actor"], results["learning_rate_critic"]) == (1e-4, 1e-3)
    assert {"qf_loss", "td_error_mean", "qf_mean", "num_target_updates", "gradient_norm_actor"} <= results.keys()


def test_a_space_of_any_rank_and_nesting_is_smoothed() -> None:
    space = spaces.Dict(arm=spaces.Box(-1, 1, (2, 2)), grip=spaces.Tuple([spaces.Box(0, 1, ())]))
    config = tiny()
    learner = TD3Learner(config, config.get_rl_module_spec(SPACES[0], space).as_multi(), run_seed=1)
    actions = {"arm": torch.rand(12, 2, 2), "grip": (torch.rand(12),)}
    for i in range(2):
        results = learner.update_from_batch(batch() | {Columns.ACTIONS: actions}, env_steps=i)
    assert results[ID]["policy_loss"] != 0
