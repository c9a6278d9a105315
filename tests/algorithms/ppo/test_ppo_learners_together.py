"""PPO by several learners: what one would come to, to rounding, and the same bits on each."""

from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import strategies

from algorithms.ppo import PPOConfig, PPOLearner
from rlmodule import Episode, Rollout
from rlmodule.collective import Collective, SingleProcess
from rlmodule.learning.sharding import shard_rollout
from rlmodule.testing.data import random_rollout
from tests.together import Fleet, digest, weights

ID = "default_policy"
Part = Rollout | list[Episode] | None
OBS = spaces.Box(-1, 1, (4,), np.float32)

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"fcnet_hiddens": [16, 16], "normalize_observations": True, "normalize_values": True},
    "lstm": {"fcnet_hiddens": [16], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4},
    "attention": {"fcnet_hiddens": [16], "use_attention": True, "attention_memory": 5, "max_seq_len": 4},
}


def make(model: str, **settings: Any) -> PPOLearner:
    values = {"lr": 3e-4, "minibatch_size": 8, "num_epochs": 2, "use_kl_loss": True, "vf_clip_param": 1.0}
    config = PPOConfig(**values | settings).rl_module(model_config=MODELS[model])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PPOLearner(config, config.get_rl_module_spec(OBS, spaces.Discrete(3)).as_multi(), run_seed=1)


def learn(collective: Collective, model: str, parts: Sequence[Part], settings: dict[str, Any]) -> dict[str, Any]:
    """Take an update with each of ``parts``."""
    learner = make(model, **settings)
    learner.connect(collective)
    results = [learner.update_from_episodes(part, env_steps=64 * i)[ID] for i, part in enumerate(parts)]
    state = learner.get_state()
    return {
        "weights": weights(learner),
        "module": {name: value.clone() for name, value in state["module"][ID].items()},
        "digest": digest(state),
        "results": results,
        "num_updates": learner.num_updates,
        "kl_coeff": float(learner.kl_coeff[ID]),
    }


def rollouts(model: str, count: int, steps: int = 12, slots: int = 6) -> list[Rollout]:
    acting = make(model).module[ID]
    return [random_rollout(acting, steps, slots, seed=seed) for seed in range(count)]


def parts_of(rollout: Rollout, sizes: list[int]) -> list[Rollout | None]:
    """The slots of ``rollout`` in parts of these sizes."""
    slots = [slot for slot in shard_rollout(rollout, rollout.shape[1]) if slot is not None]
    ends = np.cumsum(sizes)
    return [Rollout.concat(slots[end - size : end]) if size else None for size, end in zip(sizes, ends, strict=True)]


def together(
    fleet: Fleet, model: str, data: list[Rollout], sizes: list[int], **settings: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result of one learner, and each of several whose slots are ``sizes``."""
    parts = [parts_of(rollout, sizes) for rollout in data]
    args = [(model, [part[rank] for part in parts], settings) for rank in range(len(sizes))]
    size = settings.get("minibatch_size", 8)  # of each learner
    alone = settings | {"minibatch_size": None if size is None else size * len(sizes)}
    return learn(SingleProcess(), model, list(data), alone), fleet.values(learn, *args)


def check_equal(one: dict[str, Any], several: list[dict[str, Any]], tolerance: float = 1e-6) -> None:
    assert len({each["digest"] for each in several}) == 1, "the learners' states differ"
    for each in several:
        assert each["num_updates"] == one["num_updates"]
        assert each["kl_coeff"] == one["kl_coeff"]
        assert float((each["weights"] - one["weights"]).abs().max()) <= tolerance
        for name, value in each["module"].items():
            torch.testing.assert_close(value, one["module"][name], rtol=1e-6, atol=tolerance)
        for mine, expected in zip(each["results"], one["results"], strict=True):
            assert mine == pytest.approx(expected, rel=1e-4, abs=2e-6)


# every model and every split once; test_shards_may_be_of_any_shape draws pairs of the two
@pytest.mark.parametrize(("model", "sizes"), [*zip(MODELS, ([3, 3], [2, 2, 2], [4, 1, 1]), strict=True)], ids=str)
def test_several_learners_come_to_what_one_does(fleet: Fleet, model: str, sizes: list[int]) -> None:
    one, several = together(fleet, model, rollouts(model, 5), sizes)
    assert one["num_updates"] >= 20
    assert one["kl_coeff"] != 0.2  # it was adapted
    check_equal(one, several)


@pytest.mark.parametrize(
    ("model", "sizes"), [*zip([*MODELS, "mlp"], ([6, 0], [0, 6], [0, 4, 2], [0, 0, 6]), strict=True)], ids=str
)
def test_a_learner_without_data_goes_along(fleet: Fleet, model: str, sizes: list[int]) -> None:
    one, several = together(fleet, model, rollouts(model, 3), sizes)
    check_equal(one, several)


@pytest.mark.parametrize("target_kl", [1e-4, 100.0])
def test_epochs_end_for_all_or_for_none(fleet: Fleet, target_kl: float) -> None:
    settings = {"num_epochs": 5, "lr": 1e-3, "target_kl": target_kl, "minibatch_size": None}
    one, several = together(fleet, "mlp", rollouts("mlp", 3), [2, 4], **settings)
    free = learn(SingleProcess(), "mlp", list(rollouts("mlp", 3)), settings | {"target_kl": None})
    assert (one["num_updates"] == free["num_updates"]) is (target_kl == 100.0)
    check_equal(one, several, 1e-5)


def test_shards_may_be_of_any_shape(fleet: Fleet) -> None:
    seen = []

    @hypothesis.settings(max_examples=8, deadline=None, derandomize=True, database=None)
    @hypothesis.example(model="mlp", first=0, minibatch_size=7, steps=5, seed=0)
    @hypothesis.example(model="lstm", first=5, minibatch_size=None, steps=10, seed=1)
    @hypothesis.given(
        model=strategies.sampled_from(sorted(MODELS)),
        first=strategies.integers(0, 5),
        minibatch_size=strategies.one_of(strategies.none(), strategies.integers(2, 60)),
        steps=strategies.integers(1, 10),
        seed=strategies.integers(0, 100),
    )
    def check(model: str, first: int, minibatch_size: int | None, steps: int, seed: int) -> None:
        acting = make(model).module[ID]
        data = [random_rollout(acting, steps, 5, seed)]
        one, several = together(fleet, model, data, [first, 5 - first], minibatch_size=minibatch_size, num_epochs=1)
        check_equal(one, several)
        seen.append(first)

    check()
    assert len(seen) >= 10


def test_episodes_of_other_lengths_on_each(fleet: Fleet) -> None:
    """The slots of one learner, though those of each are packed by the length of its own longest episode."""
    episodes = rollouts("mlp", 1)[0].to_episodes()
    episodes.sort(key=len)
    one = learn(SingleProcess(), "mlp", [Rollout.from_episodes(episodes)], {"minibatch_size": 16})
    half = len(episodes) // 2
    several = fleet.values(learn, *[("mlp", [part], {}) for part in (episodes[:half], episodes[half:])])
    check_equal(one, several)
