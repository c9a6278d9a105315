"""PPO with every kind of space, net and setting together: the cases of the feature matrix, run from end to end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from torch import Tensor

from algorithms import Algorithm
from algorithms.ppo import PPOLearner, PPOModule
from rlmodule import Columns, Rollout
from rlmodule.data.columns import Batch
from rlmodule.learning.reports import Metrics
from rlmodule.modules.policy import Policy
from rlmodule.modules.recurrent import values_along
from rlmodule.testing.data import differences, random_rollout
from tests.algorithms.ppo import matrix
from tests.algorithms.ppo.matrix import ACTIONS, FACTORS, OBSERVATIONS, Case, SpacesEnv
from tests.turns import dealt, in_turn, levels_of, marks_of

CASES = matrix.cases()


class Recording(PPOLearner):
    """Keeps the largest log-ratio of each minibatch, and the last rollout."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log_ratios: list[float] = []
        self.rollout: Rollout | None = None

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        self.rollout = rollout
        return rollout

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        self.log_ratios.append(metrics["log_ratio"].abs().max().item())
        return loss, metrics


def outputs(algorithm: Algorithm, rollout: Rollout) -> dict[str, Any]:
    """What the learner's module says of a rollout, and what the policy does in an env of its own."""
    module = algorithm.get_module().eval()
    assert isinstance(module, PPOModule)
    said: dict[str, Any] = {}
    with torch.no_grad():
        batch: dict[str, Any] = {Columns.OBS: rollout[Columns.OBS]}
        if module.is_stateful():
            said["values"] = values_along(module, rollout)
            batch |= {Columns.STARTS: rollout[Columns.STARTS], Columns.STATE_IN: first_states(rollout)}
        else:
            said["values"] = module.compute_values(batch)
        said["inputs"] = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
    said["acts"] = list(play(algorithm.policy, algorithm.config.env_config))
    return said


def repeat(policy: Policy, rollout: Rollout, inputs: Tensor) -> None:
    """One step after another, the policy does what ``inputs`` of the whole rollout, ``[T, N, D]``, make most likely."""
    module, state = policy.module, None
    greedy = module.action_converter(module.action_dist_cls.from_logits(inputs).to_deterministic().sample())
    for t in range(len(inputs)):
        obs, expected = (tree.map_structure(lambda x, t=t: x[t, 0].numpy(), x) for x in (rollout[Columns.OBS], greedy))
        if module.is_stateful() and rollout[Columns.STARTS][t, 0]:
            state = None
        action, state = policy.act(obs, state)
        tree.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), action, expected)


def first_states(rollout: Rollout) -> Any:
    return tree.map_structure(lambda x: x[0], rollout.state_in)


def play(policy: Policy, env_config: Mapping[str, str]) -> Any:
    """Actions and states over two episodes in an env that refuses what it does not know, explored and greedy."""
    env, state, reward = SpacesEnv(**env_config), None, None
    obs, _ = env.reset(seed=5)
    for step in range(8):
        action, state = policy.act(obs, state, reward=reward, explore=step % 2 == 0)
        yield action, state
        obs, reward, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
            state = reward = None


@pytest.mark.parametrize("case", in_turn(CASES))
def test_a_run_samples_updates_saves_loads_and_acts_the_same(case: Case, tmp_path: Path) -> None:
    with case.config().learners(learner_class=Recording).build() as algorithm:
        learner = algorithm.learner_group.learner
        assert isinstance(learner, Recording)
        before = {name: x.clone() for name, x in algorithm.get_module().named_parameters()}
        result = algorithm.train()["learners"]["default_policy"]
        assert all(torch.tensor(value).isfinite() for value in result.values()), result
        # what was recorded at acting time is what training sees, until the first update
        assert learner.log_ratios[0] < 1e-5 < learner.log_ratios[1]
        still = [n for n, x in algorithm.get_module().named_parameters() if torch.equal(x, before[n])]
        assert not still, "these parameters are not trained"
        rollout = learner.rollout
        assert rollout is not None
        assert (rollout.state_in is None) is case.memory.startswith("no memory")
        assert rollout[Columns.TERMINATEDS].any()
        assert rollout[Columns.TRUNCATEDS].any()
        path = algorithm.save(tmp_path / "run")
        with Algorithm.from_checkpoint(path, allow=["tests"]) as loaded:
            assert differences(algorithm.get_module().get_state(), loaded.get_module().get_state()) == []
            said = outputs(algorithm, rollout)
            assert differences(said, outputs(loaded, rollout)) == []
            if "previous" not in case.memory:  # what the policy itself did before is not what the rollout holds
                repeat(loaded.policy, rollout, said["inputs"])


def test_the_cases_hold_every_pair_of_features() -> None:
    assert len({*CASES}) == len(CASES)
    assert all(levels_of(part) == levels_of(CASES) for part in dealt(CASES))
    met = {pair for case in CASES for pair in matrix.pairs_of(vars(case))}
    for first, second in itertools.combinations(FACTORS, 2):
        for a, b in itertools.product(FACTORS[first], FACTORS[second]):
            pair = frozenset({(first, a), (second, b)})
            two_spaces = {first, second} == {"observation", "action"}
            without_choice = b == "mask" and first == "action" and not matrix.choices(ACTIONS[a].space)
            assert (pair in met) is not (two_spaces or without_choice), pair
    nets = {(case.memory, case.sharing, case.mask) for case in CASES}
    assert len(nets) == len(matrix.MEMORIES) * len(matrix.SHARING) * len(matrix.MASKS)


@pytest.mark.parametrize("share", [pytest.param(share, marks=marks_of(share, 4)) for share in range(4)])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_observation_space_goes_with_every_action_space(observation: str, share: int) -> None:
    """One update on a made-up rollout; the nets of the two spaces meet in the latent alone, so no env is needed, and a
    quarter of the pairs, in which each space is several times, is enough for a commit."""
    met = [case for case in matrix.meetings() if case.observation == observation]
    assert {case.action for case in met} == {*ACTIONS}
    for case in met[([*OBSERVATIONS].index(observation) + share) % 4 :: 4]:
        config = case.config()
        learner = Recording(config.freeze(), config.get_rl_module_spec(*case.spaces).as_multi(), run_seed=0)
        module = learner.module["default_policy"]
        rollout = random_rollout(module, 6, 2)
        learner.update_from_episodes(rollout, env_steps=12)
        assert learner.log_ratios[0] < 1e-5 < learner.log_ratios[1], case
        fitted = module.action_converter(rollout[Columns.ACTIONS])
        for t, n in itertools.product(range(6), range(2)):
            action = tree.map_structure(lambda x, t=t, n=n: x[t, n].numpy(), fitted)
            assert case.spaces[1].contains(action), case


EXPLAINED = re.compile(r"(observation_space|action_space|model_config)\S*: expected .+, got .+\. [A-Z].+\.", re.DOTALL)
"""Where, what was expected, what came, what to do."""


@pytest.mark.parametrize("name", matrix.REFUSED)
def test_what_is_refused_is_explained(name: str) -> None:
    assert EXPLAINED.fullmatch(matrix.REFUSED[name].message())


@pytest.mark.parametrize("name", [name for name, row in ACTIONS.items() if not matrix.choices(row.space)])
def test_a_mask_for_an_action_without_choices_is_explained(name: str) -> None:
    message = matrix.refused_mask(name).message()
    assert EXPLAINED.fullmatch(message)
    assert message.startswith("observation_space['action_mask']: expected an action space with choices to forbid")
