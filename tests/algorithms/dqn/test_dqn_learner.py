"""DQN's targets, losses and target network, against numbers worked out one by one."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from algorithms.dqn import DQNConfig, DQNLearner
from algorithms.dqn.module import FORBIDDEN
from rlmodule import Columns, MultiRLModuleSpec, RLModuleSpec
from rlmodule.testing.data import differences
from rlmodule.testing.learner_contract import LearnerContract
from tests.algorithms.dqn.conftest import SPACES, tiny

ID = "default_policy"
NUM_ACTIONS = int(SPACES[1].n)


def make(run_seed: int = 1, **settings: Any) -> DQNLearner:
    config = tiny(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run_seed)
        return DQNLearner(config, config.get_rl_module_spec(*SPACES).as_multi(), run_seed=run_seed)


def online(learner: DQNLearner) -> Any:
    return learner.module[ID]


def target(learner: DQNLearner) -> Any:
    return learner.target[ID]


def choosing(learner: DQNLearner) -> Any:
    return learner.choosing[ID]


def batch(rows: int = 12, seed: int = 0, **columns: Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 4, (rows,), generator=generator)
    return {
        Columns.OBS: torch.rand(rows, 4, generator=generator),
        Columns.ACTIONS: torch.randint(0, NUM_ACTIONS, (rows,), generator=generator),
        Columns.REWARDS: torch.randn(rows, generator=generator),
        Columns.NEXT_OBS: torch.rand(rows, 4, generator=generator),
        Columns.DISCOUNTS: torch.where(steps > 0, 0.9**steps, 0.0),
    } | columns


def stirred(learner: DQNLearner, seed: int = 5) -> DQNLearner:
    """``learner`` with a target net that differs from its online net, and values of visible size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for net in (online(learner), target(learner)):
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    return learner


class _Contract(LearnerContract):
    settings: ClassVar[dict[str, Any]] = {}

    def make(self) -> DQNLearner:
        return make(**self.settings)

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed)


class TestPlain(_Contract):
    pass


class TestRainbow(_Contract):
    settings: ClassVar[dict[str, Any]] = {"noisy": True, "dueling": True, "num_atoms": 7, "v_min": -2.0, "v_max": 2.0}

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed, weights=torch.rand(16, generator=torch.Generator().manual_seed(seed)))


class TestDropoutAndPolyak(_Contract):
    settings: ClassVar[dict[str, Any]] = {
        "tau": 0.3,
        "target_network_update_freq": 1,
        "model_config": {"fcnet_dropout": 0.3},
    }


class TestQuantiles(_Contract):
    settings: ClassVar[dict[str, Any]] = {"num_quantiles": 7, "dueling": True, "prioritized_replay": True}

    def make_data(self, learner: Any, seed: int) -> dict[str, Any]:
        return batch(16, seed, weights=torch.rand(16, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("double_q", [True, False])
def test_targets_are_those_worked_out_row_by_row(double_q: bool) -> None:
    learner, data = stirred(make(double_q=double_q)), batch()
    got = learner.compute_targets(ID, data).detach()
    for row in range(len(got)):
        following = {Columns.OBS: data[Columns.NEXT_OBS][row : row + 1]}
        theirs = target(learner).compute_q_values(following)[0].tolist()
        mine = online(learner).compute_q_values(following)[0].tolist()
        best = int(np.argmax(mine if double_q else theirs))
        expected = float(data[Columns.REWARDS][row]) + float(data[Columns.DISCOUNTS][row]) * theirs[best]
        assert float(got[row]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("atoms", [{}, {"num_atoms": 5, "v_min": -4.0, "v_max": 4.0}], ids=["mean", "atoms"])
@pytest.mark.parametrize("double_q", [True, False])
def test_what_allows_nothing_any_more_is_worth_nothing(double_q: bool, atoms: dict[str, Any]) -> None:
    space = spaces.Dict(x=SPACES[0], action_mask=spaces.MultiBinary(NUM_ACTIONS))
    config = tiny(double_q=double_q, **atoms)
    learner = DQNLearner(config, config.get_rl_module_spec(space, SPACES[1]).as_multi(), run_seed=1)
    stirred(learner)
    data = batch(2)
    allowed = torch.ones(2, NUM_ACTIONS, dtype=torch.int8)
    data |= {name: {"x": data[name], "action_mask": allowed} for name in (Columns.OBS, Columns.NEXT_OBS)}
    data[Columns.DISCOUNTS] = torch.full((2,), 0.5)
    free = learner.compute_targets(ID, data)
    data[Columns.NEXT_OBS] = data[Columns.NEXT_OBS] | {"action_mask": allowed * torch.tensor([[1], [0]])}
    targets = learner.compute_targets(ID, data).detach()
    assert torch.equal(targets[0], free[0])
    value = targets[1] @ torch.linspace(-4.0, 4.0, 5) if atoms else targets[1]  # the atoms lie two apart
    assert float(value) == pytest.approx(float(data[Columns.REWARDS][1]), abs=1e-6)


def test_double_and_plain_targets_differ_where_the_nets_do() -> None:
    double, plain = (stirred(make(double_q=choice)) for choice in (True, False))
    data = batch(64)
    a, b = (learner.compute_targets(ID, data) for learner in (double, plain))
    ended = data[Columns.DISCOUNTS] == 0
    assert torch.equal(a[ended], data[Columns.REWARDS][ended])
    assert torch.equal(a[ended], b[ended])
    assert bool((a <= b + 1e-5).all())  # the target net's own greatest value is the greatest
    assert bool((a < b - 1e-3).any())


@pytest.mark.parametrize("name", ["huber", "mse"])
def test_the_loss_weighs_the_distance_of_each_row(name: str) -> None:
    learner = stirred(make(td_error_loss_fn=name))
    weights = torch.linspace(0.1, 1.0, 12)
    with torch.no_grad():
        data = learner.prepare_batch(ID, batch(weights=weights))
        loss, metrics = learner.compute_loss_for_module(ID, data, online(learner).forward_train(data))
    q = online(learner).compute_q_values({Columns.OBS: data[Columns.OBS]}).detach()
    total = 0.0
    for row in range(12):
        error = float(q[row, data[Columns.ACTIONS][row]]) - float(data[Columns.VALUE_TARGETS][row])
        assert float(metrics["td_error"][row]) == pytest.approx(error, abs=1e-5)
        huber = 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
        total += float(weights[row]) * (huber if name == "huber" else error**2)
    assert float(loss) == pytest.approx(total / 12, rel=1e-5)
    assert max(abs(metrics["td_error"])) > 1  # so that the two differ


@pytest.mark.parametrize("double_q", [True, False])
def test_the_loss_of_quantiles_is_that_of_all_pairs(double_q: bool) -> None:
    learner = stirred(make(num_quantiles=4, double_q=double_q))
    module, data = online(learner), learner.prepare_batch(ID, batch())
    with torch.no_grad():
        loss, metrics = learner.compute_loss_for_module(ID, data, module.forward_train(data))
    following = {Columns.OBS: data[Columns.NEXT_OBS]}
    mine = module.compute_q_outputs({Columns.OBS: data[Columns.OBS]}).tolist()
    theirs = target(learner).compute_q_outputs(following)
    chooser = module if double_q else target(learner)
    best = chooser.compute_q_outputs(following).mean(-1).argmax(-1)
    total = 0.0
    for row in range(12):
        reward, discount = float(data[Columns.REWARDS][row]), float(data[Columns.DISCOUNTS][row])
        aims = [reward + discount * value for value in theirs[row, best[row]].tolist()]
        taken = mine[row][int(data[Columns.ACTIONS][row])]
        for place, quantile in enumerate(taken):
            for aim in aims:
                error = abs(aim - quantile)
                huber = 0.5 * error**2 if error <= 1 else error - 0.5
                total += abs((place + 0.5) / 4 - (aim < quantile)) * huber / 16
        assert float(metrics["qf"][row]) == pytest.approx(np.mean(taken), abs=1e-5)
        assert float(metrics["td_error"][row]) == pytest.approx(np.mean(taken) - np.mean(aims), abs=1e-5)
    assert float(loss) == pytest.approx(total / 12, rel=1e-5)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("double_q", [True, False])
def test_the_loss_of_atoms_is_the_divergence_from_projected_targets(double_q: bool, dueling: bool) -> None:
    learner = stirred(make(num_atoms=5, v_min=-1.0, v_max=1.0, double_q=double_q, dueling=dueling))
    module, data = online(learner), learner.prepare_batch(ID, batch())
    with torch.no_grad():
        loss, metrics = learner.compute_loss_for_module(ID, data, module.forward_train(data))
    atoms, total = np.linspace(-1, 1, 5), 0.0
    logits = module.compute_q_outputs({Columns.OBS: data[Columns.OBS]}).detach()
    following = {Columns.OBS: data[Columns.NEXT_OBS]}
    theirs = target(learner).compute_q_outputs(following).detach().softmax(-1).numpy()
    chooser = online(learner) if double_q else target(learner)
    best = (chooser.compute_q_outputs(following).detach().softmax(-1).numpy() @ atoms).argmax(-1)
    for row in range(12):
        projected = np.zeros(5)
        for atom, probability in zip(atoms, theirs[row, best[row]], strict=True):
            place = np.clip(float(data[Columns.REWARDS][row]) + float(data[Columns.DISCOUNTS][row]) * atom, -1, 1)
            at = (place + 1) / 0.5
            low, high = int(np.floor(at)), int(np.ceil(at))
            projected[low] += probability * (1.0 if low == high else high - at)
            projected[high] += probability * (0.0 if low == high else at - low)
        mine = logits[row, data[Columns.ACTIONS][row]].softmax(-1).numpy()
        divergence = sum(t * np.log(t / m) for t, m in zip(projected, mine, strict=True) if t > 1e-12)
        assert float(metrics["td_error"][row]) == pytest.approx(divergence, abs=1e-4)
        assert float(metrics["qf"][row]) == pytest.approx(float(mine @ atoms), abs=1e-5)
        total += divergence
    assert float(loss) == pytest.approx(total / 12, abs=1e-4)


def test_both_streams_of_a_dueling_net_of_atoms_learn() -> None:
    learner = stirred(make(num_atoms=5, v_min=-1.0, v_max=1.0, dueling=True))
    before = {name: p.detach().clone() for name, p in online(learner).named_parameters()}
    learner.step_on_batch(batch(), env_steps=0)
    moved = {name for name, p in online(learner).named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)


def test_the_target_net_is_copied_after_so_many_env_steps() -> None:
    learner = make(target_network_update_freq=100)
    counts = []
    for env_steps in (40, 99, 100, 150, 199, 200, 210):
        learner.step_on_batch(batch(seed=env_steps), env_steps=env_steps)
        same = differences(target(learner).get_state(), online(learner).get_state()) == []
        counts.append((learner.targets.num_updates[ID], same))
    assert counts == [(0, False), (0, False), (1, True), (1, False), (1, False), (2, True), (2, False)]


def test_the_target_net_follows_by_tau() -> None:
    learner = stirred(make(tau=0.25, target_network_update_freq=1))
    before = target(learner).get_state()
    before = {name: value.clone() for name, value in before.items()}
    learner.step_on_batch(batch(), env_steps=1)
    for name, parameter in online(learner).named_parameters():
        expected = 0.75 * before[name] + 0.25 * parameter
        assert torch.allclose(target(learner).get_state()[name], expected, atol=1e-6)


def test_buffers_move_with_the_target_net() -> None:
    learner = make(target_network_update_freq=10)
    online(learner).set_exploration(0.125)
    learner.step_on_batch(batch(), env_steps=5)
    assert differences(dict(target(learner).named_buffers()), dict(online(learner).named_buffers()))
    learner.step_on_batch(batch(), env_steps=10)
    assert differences(dict(target(learner).named_buffers()), dict(online(learner).named_buffers())) == []


def test_neither_copy_has_a_gradient_nor_moves_by_itself() -> None:
    learner = make(target_network_update_freq=1000)
    before = {name: value.clone() for name, value in target(learner).get_state().items()}
    learner.step_on_batch(batch(), env_steps=5)
    assert differences(before, target(learner).get_state()) == []
    assert all(float(p.grad.abs().sum()) == 0 for p in target(learner).parameters() if p.grad is not None)
    mine, theirs = dict(online(learner).named_parameters()), dict(choosing(learner).named_parameters())
    assert all(theirs[name] is mine[name] for name in mine)
    assert not learner.target.training
    assert not learner.choosing.training


def test_an_update_is_the_gradient_step_of_a_plain_loop() -> None:
    learner, net = make(grad_clip=None), make()
    optimizer = torch.optim.Adam(online(net).parameters(), lr=5e-4, eps=1e-5)
    for step in range(5):
        data = batch(seed=step)
        following = {Columns.OBS: data[Columns.NEXT_OBS]}
        with torch.no_grad():
            best = online(net).compute_q_values(following).argmax(-1)
            later = target(net).compute_q_values(following)[torch.arange(12), best]
        targets = data[Columns.REWARDS] + data[Columns.DISCOUNTS] * later
        q = online(net).compute_q_values(data)[torch.arange(12), data[Columns.ACTIONS]]
        optimizer.zero_grad()
        functional.smooth_l1_loss(q, targets).backward()
        optimizer.step()
        learner.step_on_batch(data, env_steps=0)
    for name, parameter in online(net).named_parameters():
        assert torch.allclose(parameter, online(learner).get_state()[name], atol=1e-6)


def test_noise_is_drawn_anew_for_each_update_and_each_net() -> None:
    learner = make(noisy=True)
    data = batch()
    targets = []
    for _ in range(2):
        learner.before_gradient_step(ID)
        targets.append(learner.prepare_batch(ID, data)[Columns.VALUE_TARGETS])
    assert not torch.equal(*targets)
    following = {Columns.OBS: data[Columns.NEXT_OBS]}
    assert not torch.equal(online(learner).compute_q_values(following), choosing(learner).compute_q_values(following))


def test_a_module_comes_with_its_target_net_and_goes_with_it() -> None:
    learner = make()
    spec = learner.settings.get_rl_module_spec(*SPACES)
    learner.add_module("other", spec)
    assert differences(learner.target["other"].get_state(), learner.module["other"].get_state()) == []
    learner.step_on_batch(batch(), env_steps=0, module_id="other")
    assert differences(learner.target["other"].get_state(), learner.module["other"].get_state())
    assert differences(learner.choosing["other"].get_state(), learner.module["other"].get_state()) == []
    state = {name: value * 0 for name, value in learner.module["other"].get_state().items()}
    learner.load_module_state("other", state)
    for nets in (learner.module, learner.target, learner.choosing):
        assert differences(nets["other"].get_state(), state) == []
    learner.remove_module("other")
    assert learner.get_state()["target"].keys() == {ID}
    learner.step_on_batch(batch(), env_steps=0)


def test_each_module_has_a_clock_of_its_own() -> None:
    learner, again = make(target_network_update_freq=100), make(target_network_update_freq=100)
    for each in (learner, again):
        each.add_module("other", each.settings.get_rl_module_spec(*SPACES))
    for env_steps in (50, 100, 150):
        for module_id in (ID, "other"):
            results = learner.update_from_batch(batch(), env_steps=env_steps, module_id=module_id)
            moved = differences(learner.target[module_id].get_state(), learner.module[module_id].get_state()) == []
            assert moved is (env_steps == 100), module_id
    assert results["other"]["num_target_updates"] == 1
    learner.update_from_batch(batch(), env_steps=200, module_id="other")
    again.set_state(learner.get_state())
    assert again.targets.last_update == {ID: 100, "other": 200}
    assert again.targets.num_updates == {ID: 1, "other": 2}
    learner.remove_module("other")
    assert learner.get_state()["num_target_updates"] == {ID: 1}


def test_numbers_to_report() -> None:
    learner = make()
    history = [learner.step_on_batch(batch(seed=seed), env_steps=30 * seed) for seed in range(3)]
    results = learner.summarize_updates(history)[ID]
    values = torch.cat([metrics[ID]["qf"] for metrics in history])
    errors = torch.cat([metrics[ID]["td_error"] for metrics in history])
    assert results["qf_mean"] == pytest.approx(float(values.mean()))
    assert (results["qf_min"], results["qf_max"]) == (float(values.min()), float(values.max()))
    assert results["td_error_mean"] == pytest.approx(float(errors.abs().mean()))
    assert results["num_target_updates"] == learner.targets.num_updates[ID] == 2
    assert set(results) == {
        "qf_loss", "qf_mean", "qf_min", "qf_max", "td_error_mean", "num_target_updates", "learning_rate", "total_loss",
        "gradient_norm", "num_updates_skipped",
    }  # fmt: skip


def test_a_module_without_values_of_actions_is_refused() -> None:
    from tests.rlmodule.toys import Small

    spec = RLModuleSpec(module_class=Small)
    with pytest.raises(TypeError, match=r"DQNLearner.*implements QNetAPI \(compute_q_values\), ExplorationAPI"):
        DQNLearner(DQNConfig(), tiny(rl_module_spec=spec).get_rl_module_spec(*SPACES).as_multi(), run_seed=0)


def test_a_module_that_does_not_train_needs_no_values_atoms_or_noise() -> None:
    from tests.rlmodule.toys import Small

    config = tiny(num_atoms=5, v_min=-4.0, v_max=4.0, noisy=True).multi_agent(policies_to_train=[ID])
    fixed = RLModuleSpec(Small, *SPACES, {"fcnet_hiddens": [8]})
    specs = MultiRLModuleSpec({ID: config.get_rl_module_spec(*SPACES), "fixed": fixed})
    learner = DQNLearner(config.freeze(), specs, run_seed=1)
    learner.add_module("later", fixed, train=False)
    learner.step_on_batch(batch(), env_steps=0)
    learner.remove_module("later")
    assert [*learner.choosing] == [*learner.target] == [ID]
    with pytest.raises(TypeError, match=r"'later': expected a module that implements QNetAPI"):
        learner.add_module("later", fixed)
    assert [*learner.module] == [ID, "fixed"]


@pytest.mark.parametrize("below", [0.0, 1e10])
def test_forbidden_actions_are_never_the_best_that_follows(below: float) -> None:
    space = gym.spaces.Dict({"obs": SPACES[0], "action_mask": gym.spaces.MultiBinary(NUM_ACTIONS)})
    config = tiny()
    learner = stirred(DQNLearner(config, config.get_rl_module_spec(space, SPACES[1]).as_multi(), run_seed=1))
    for net in (online(learner), target(learner)):
        with torch.no_grad():
            [*net.af_head.parameters()][-1].sub_(below)
    masks = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 1]], dtype=torch.int8).repeat(3, 1)
    plain = batch()
    data = plain | {name: {"obs": plain[name], "action_mask": masks} for name in (Columns.OBS, Columns.NEXT_OBS)}
    got = learner.compute_targets(ID, data).detach()
    values = target(learner).compute_q_values({Columns.OBS: data[Columns.NEXT_OBS]}).detach()
    mine = online(learner).compute_q_values({Columns.OBS: data[Columns.NEXT_OBS]}).detach()
    assert bool((values[masks == 0] == FORBIDDEN).all())
    for row in range(12):
        allowed = [a for a in range(NUM_ACTIONS) if masks[row, a]]
        best = max(allowed, key=lambda a, row=row: float(mine[row, a]))
        later = float(values[row, best])
        expected = float(plain[Columns.REWARDS][row]) + float(plain[Columns.DISCOUNTS][row]) * later
        assert float(got[row]) == pytest.approx(expected, rel=1e-6, abs=1e-5)
