"""TD3 by several learners: the weights of one, to rounding, and the same bits on each."""

from typing import Any

import pytest
import torch

from algorithms.td3 import TD3, TD3Config, TD3Learner
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Batch
from rlmodule.learning.sharding import shard_batch
from tests.algorithms.td3.conftest import tiny
from tests.together import Fleet, digest, weights

ID = "default_policy"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"model_config": {"fcnet_hiddens": [16], "normalize_observations": True}, "prioritized_replay": True},
    "recurrent": {
        "model_config": {"fcnet_hiddens": [16], "use_gru": True, "lstm_cell_size": 8, "max_seq_len": 4},
        "burn_in_len": 2,
        "train_batch_size_per_learner": 24,
    },
}


def learn(collective: Collective, config: TD3Config, spec: Any, batches: list[Batch | None]) -> dict[str, Any]:
    """Take an update with each of ``batches``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = TD3Learner(config, spec, run_seed=1)
    learner.connect(collective)
    for i, batch in enumerate(batches):
        learner.step_on_batch(batch, env_steps=8 * i)
    target = torch.cat([x.flatten() for x in learner.target[ID].parameters()]).detach()
    return {"weights": weights(learner), "target": target, "digest": digest(learner.get_state())}


@pytest.mark.parametrize("kind", list(KINDS))
def test_two_learners_reach_the_weights_of_one(fleet: Fleet, kind: str) -> None:
    config = tiny(**KINDS[kind] | {"tau": 0.5, "lr": 1e-3})
    with config.build() as algorithm:
        assert isinstance(algorithm, TD3)
        for _ in range(2):
            algorithm.train()
        module = algorithm.get_module()
        spec = config.get_rl_module_spec(module.observation_space, module.action_space).as_multi()
        batches = [algorithm.replay.sample(config.train_batch_size).batch for _ in range(8)]
    one = learn(SingleProcess(), config, spec, [*batches])
    shards = [shard_batch(batch, 2) for batch in batches]
    both = fleet.values(learn, *[(config, spec, [shard[rank] for shard in shards]) for rank in range(2)])
    assert len({each["digest"] for each in both}) == 1
    for each in both:
        assert float((each["weights"] - one["weights"]).abs().max()) <= 1e-6
        assert float((each["target"] - one["target"]).abs().max()) <= 1e-6
