"""What a module sees of earlier steps: the same in runners, policies and training, whatever it remembers."""

from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from catalog import Catalog, PastView
from catalog.past import input_space
from rlmodule import Columns, EnvRunner, RLModule
from rlmodule.modules.policy import Policy
from rlmodule.testing.data import differences
from tests.rlmodule.sampling.test_env_runner_memory import runner_for, trained_and_recorded
from tests.rlmodule.sampling.test_tensor_env_runner import assert_alike, both, in_tensors
from tests.rlmodule.toys import Counter, Forgetful, NestedCounter, SeesPast, counters

MODES = list(AutoresetMode)


def last(entries: list[Any], steps: int) -> Any:
    """The last ``steps`` entries, zeros before the first; without a dim for a single step."""
    zeros = tree.map_structure(np.zeros_like, entries[0])
    padded = [zeros] * steps + entries[1:]
    stacked = tree.map_structure(lambda *x: np.stack(x), *padded[-steps:])
    return tree.map_structure(lambda x: np.asarray(x[0]), stacked) if steps == 1 else stacked


def at(column: Any, *index: int) -> Any:
    return tree.map_structure(lambda x: x[index].numpy(), column)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragment", [1, 4, 40])
@pytest.mark.parametrize(("cls", "module"), [(Counter, SeesPast), (NestedCounter, Forgetful)])
def test_the_past_is_that_of_the_episode_in_every_row(
    mode: AutoresetMode, fragment: int, cls: type[Counter], module: type[RLModule]
) -> None:
    runner = runner_for(counters(mode, cls), module)
    view = runner.module.past_view
    before: list[dict[str, list[Any]]] = [{} for _ in range(3)]

    def check(seen: Any, slot: int) -> None:
        expected = {name: last(before[slot][name], steps) for name, steps in view.steps.items()}
        assert differences(expected, {name: seen[name] for name in expected}) == []

    finals = 0
    for _ in range(40 // fragment):
        rollout = runner.sample(fragment)
        cut = {tuple(index): k for k, index in enumerate(rollout.final_index.tolist())}
        for row in range(fragment):
            for slot in range(3):
                seen = at(rollout[Columns.OBS], row, slot)
                done = at(rollout[Columns.ACTIONS], row, slot), at(rollout[Columns.REWARDS], row, slot)
                if rollout[Columns.STARTS][row, slot]:  # entry 0 only gives the structure
                    before[slot] = {"prev_obs": [seen["obs"]], "prev_action": [done[0]], "prev_reward": [done[1]]}
                check(seen, slot)
                for name, value in zip(("prev_obs", "prev_action", "prev_reward"), (seen["obs"], *done), strict=True):
                    before[slot][name].append(value)
                if (row, slot) in cut:
                    check(at(rollout.final_obs, cut[row, slot]), slot)
                    finals += 1
        ended = (rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS])[-1]
        for slot in range(3):
            if not (~rollout.valid[-1] if mode == AutoresetMode.NEXT_STEP else ended)[slot]:
                check(at(rollout.last_obs, slot), slot)
    assert finals > 5


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize(("cls", "module"), [(Counter, SeesPast), (NestedCounter, Forgetful)])
def test_a_runner_of_tensors_shows_the_same_past(
    mode: AutoresetMode, cls: type[Counter], module: type[RLModule]
) -> None:
    factory = counters(mode, cls)
    assert_alike(both(factory, in_tensors(factory), module, model={"max_seq_len": 4}), [13, 1, 1, 3])


@pytest.mark.parametrize("mode", MODES)
def test_training_sees_the_past_that_acting_saw(mode: AutoresetMode) -> None:
    runner = runner_for(counters(mode), SeesPast)
    for steps in (13, 8):
        trained, recorded = trained_and_recorded(runner, runner.sample(steps))
        torch.testing.assert_close(trained, recorded, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("module", [SeesPast, Forgetful])
def test_a_policy_sees_the_past_that_the_runner_sees(module: type[RLModule]) -> None:
    runner: EnvRunner = runner_for(counters(AutoresetMode.SAME_STEP, NestedCounter), module)
    policy, rollout = Policy(runner.module), runner.sample(20, explore=False)
    for slot in range(3):
        env, taken = NestedCounter(slot), []
        obs, _ = env.reset()
        state, reward = None, None
        for _ in range(20):
            action, state = policy.act(obs, state, reward=reward)
            obs, reward, terminated, truncated, _ = env.step(action)
            taken.append(action)
            if terminated or truncated:
                obs, _ = env.reset()
                state, reward = None, None
        assert taken == rollout[Columns.ACTIONS][:, slot].tolist()


def test_a_policy_keeps_the_observation_that_an_env_overwrites() -> None:
    runner = runner_for(counters(AutoresetMode.SAME_STEP), Forgetful)
    obs = np.ones(3, np.float32)
    _, state = Policy(runner.module).act(obs)
    obs[:] = 7
    assert state is not None
    assert state["prev_obs"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 8}], ids=str)
def test_the_nets_of_a_catalog_read_a_past_of_every_kind(model: dict[str, Any]) -> None:
    mask = spaces.MultiBinary(3)
    eye = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    space = spaces.Dict({"eye": eye, "legs": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3), "action_mask": mask})
    settings = {"fcnet_hiddens": [4], "conv_filters": [[2, 4, 4]], "conv_dense_dim": 4, **model}
    for past in (PastView(observations=1, actions=4, rewards=2), PastView(observations=3), PastView(rewards=1)):
        catalog = Catalog(space, spaces.Discrete(3), settings, past_view=past)
        encoder = catalog.build_trunk()  # which is tried on it
        assert any(p.requires_grad for p in encoder.parameters())
        assert "the previous" in catalog.explain()


def test_a_past_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PastView\.actions: expected an int >= 0, got -1"):
        PastView(actions=-1)
    with pytest.raises(ValueError, match="past observations: expected choices from 0 on"):
        input_space(spaces.Discrete(3, start=1), spaces.Discrete(2), PastView(observations=1))
