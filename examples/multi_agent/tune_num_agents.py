"""Ray Tune searches the number of agents: each trial has an env with that many CartPoles and a policy for each of them.

Run it as ``python examples/multi_agent/tune_num_agents.py``.
"""

from pathlib import Path
from typing import Any

from ray import tune

from algorithms import Algorithm
from algorithms.ppo import PPOConfig
from algorithms.ray_tune import tuner
from rlmodule.agents import MultiAgentPolicy


def check(algorithm: Algorithm, result: dict[str, Any]) -> None:
    """Called in the trial after each iteration."""
    assert len(algorithm.policies) == algorithm.config.env_config["num_agents"]


config = PPOConfig().environment("rlmodule.agents.cartpoles").multi_agent(policies="own")
config.callbacks(on_train_result=check).debugging(seed=1)
results = tuner(
    config,
    {"env_config.num_agents": tune.grid_search([2, 4]), "lr": 1e-3},
    num_env_steps=20_000,
    tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),  # in one process: it starts faster
    run_config=tune.RunConfig(storage_path=str(Path("runs").resolve()), verbose=0),
).fit()
for result in results:
    policies = MultiAgentPolicy.load(result.checkpoint.path)
    assert len(policies) == result.config["env_config.num_agents"]
    mean = result.metrics["env_runners/episode_return_mean"] / len(policies)
    print(f"{len(policies)} agents and policies: {mean:.0f} per agent")
