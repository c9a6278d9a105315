"""DQN by several learners: what one would come to, to rounding, and the same bits on each."""

from typing import Any

import pytest
import torch

from algorithms.dqn import DQN, DQNConfig, DQNLearner
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Batch
from rlmodule.learning.reports import merge_metrics
from rlmodule.learning.sharding import shard_batch
from tests.algorithms.dqn.conftest import tiny
from tests.together import Fleet, digest, weights

ID = "default_policy"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"model_config": {"fcnet_hiddens": [16], "normalize_observations": True}, "prioritized_replay": True},
    "atoms and noise": {"num_atoms": 11, "v_min": 0.0, "v_max": 50.0, "noisy": True, "n_step": 3},
    "recurrent": {
        "model_config": {"fcnet_hiddens": [16], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4},
        "prioritized_replay": True,
        "burn_in_len": 2,
        "n_step": 2,
        "train_batch_size_per_learner": 24,
    },
}


def config_of(kind: str) -> DQNConfig:
    return tiny(**KINDS[kind] | {"tau": 0.5, "lr": 1e-3})


def learn(collective: Collective, config: DQNConfig, spec: Any, batches: list[Batch | None]) -> dict[str, Any]:
    """Take an update with each of ``batches``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = DQNLearner(config, spec, run_seed=1)
    learner.connect(collective)
    history = [learner.step_on_batch(batch, env_steps=8 * i)[ID] for i, batch in enumerate(batches)]
    return {
        "weights": weights(learner),
        "target": torch.cat([x.flatten() for x in learner.target[ID].parameters()]).detach(),
        "digest": digest(learner.get_state()),
        "history": history,
        "moments": {n: x.clone() for n, x in learner.module[ID].named_buffers() if "moments" in n},
    }


@pytest.fixture(scope="module", params=list(KINDS))
def given(request: pytest.FixtureRequest) -> tuple[DQNConfig, Any, list[Batch]]:
    """Settings, spec and batches of a kind."""
    config = config_of(request.param)
    with config.build() as algorithm:
        assert isinstance(algorithm, DQN)
        for _ in range(3):
            algorithm.train()
        spec = algorithm.learner_group.learner.module[ID]
        spec = config.get_rl_module_spec(spec.observation_space, spec.action_space).as_multi()
        batches = [algorithm.replay.sample(config.train_batch_size_per_learner).batch for _ in range(10)]
    return config, spec, batches


def test_several_learners_come_to_what_one_does(fleet: Fleet, given: Any) -> None:
    config, spec, batches = given
    one = learn(SingleProcess(), config, spec, batches)
    shards = [shard_batch(batch, 3) for batch in batches]
    several = fleet.values(learn, *[(config, spec, [shard[rank] for shard in shards]) for rank in range(3)])
    assert len({each["digest"] for each in several}) == 1
    for each in several:
        assert float((each["weights"] - one["weights"]).abs().max()) <= 1e-6
        assert float((each["target"] - one["target"]).abs().max()) <= 1e-6
        for name, value in each["moments"].items():
            torch.testing.assert_close(value, one["moments"][name], rtol=1e-6, atol=1e-7)
    for i, expected in enumerate(one["history"]):
        merged = merge_metrics([each["history"][i] for each in several], batches[i])
        assert {"td_error", "qf", "qf_loss"} <= merged.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(merged[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("empty", [0, 1])
def test_a_learner_without_data_goes_along(fleet: Fleet, given: Any, empty: int) -> None:
    config, spec, batches = given
    one = learn(SingleProcess(), config, spec, batches)
    args = [(config, spec, [None] * 10 if rank == empty else batches) for rank in range(2)]
    several = fleet.values(learn, *args)
    assert several[0]["digest"] == several[1]["digest"]
    assert float((several[0]["weights"] - one["weights"]).abs().max()) <= 1e-6
    for i, expected in enumerate(one["history"]):
        merged = merge_metrics([each["history"][i] for each in several], batches[i])
        assert merged.keys() == expected.keys()
        torch.testing.assert_close(merged["td_error"], expected["td_error"], rtol=1e-4, atol=1e-5)
