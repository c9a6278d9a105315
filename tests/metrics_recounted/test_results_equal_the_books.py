"""Returns, lengths, episodes and steps in results are those that the envs themselves have counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class
from catalog.settings import settings_of
from tests.metrics_recounted.books import Books, Crowd, Flock, Glide, Walk, WithResets
from tests.nothing_leaks.cases import env_of
from tests.settings_act.footprint import SMALL, Track

ITERATIONS = 3
SAMPLING = [name for name in ALGORITHMS if config_class(name).can_sample]
"""Algorithms that sample env steps."""


def config_of(algorithm: str, env: Any, folder: Path, **more: Any) -> AlgorithmConfig:
    """Return small settings of ``algorithm``, as far as it has them."""
    known = settings_of(config_class(algorithm))
    values = SMALL | {"num_env_steps_per_iteration": 40, "train_batch_size_per_learner": 32, "replay_capacity": 400}
    values |= {"model_config": {"fcnet_hiddens": [4]}, "env": env, "env_config": {"folder": str(folder)}, **more}
    return config_class(algorithm)(**{name: value for name, value in values.items() if name in known})


def acts_in(algorithm: str, discrete: Any, continuous: Any) -> Any:
    """Return the env whose actions suit ``algorithm``."""
    return discrete if env_of(algorithm) is Track else continuous


def check(result: Any, books: Books, window: int = 100) -> None:
    """Compare the section ``env_runners`` of a result with ``books``."""
    returns, lengths = books.returns[-window:], books.lengths[-window:]
    assert returns, "no episode has ended"
    assert result["num_env_steps_sampled_lifetime"] == books.steps
    assert result["num_episodes_lifetime"] == len(books.returns)
    assert result["episode_return_mean"] == pytest.approx(np.mean(returns), rel=1e-12)
    assert result["episode_return_min"] == min(returns)
    assert result["episode_return_max"] == max(returns)
    assert result["episode_len_mean"] == pytest.approx(np.mean(lengths), rel=1e-12)


def check_agents(result: Any, books: Books, policy_of: dict[str, str]) -> None:
    """Compare the numbers of agents and of policies."""
    steps = books.agent_steps
    assert result["num_agent_steps_sampled_lifetime"] == steps
    means = {agent: np.mean(returns) for agent, returns in books.agent_returns.items()}
    assert result["agent_episode_returns_mean"] == pytest.approx(means, rel=1e-12)
    for policy in set(policy_of.values()):
        agents = [agent for agent, played in policy_of.items() if played == policy]
        of_policy = [total for agent in agents for total in books.agent_returns[agent]]
        assert result["module_episode_returns_mean"][policy] == pytest.approx(np.mean(of_policy), rel=1e-12)
        assert result["num_module_steps_sampled_lifetime"][policy] == sum(steps[agent] for agent in agents)


@pytest.mark.parametrize("mode", ["same step", "next step"])
@pytest.mark.parametrize("algorithm", SAMPLING)
def test_results_of_one_agent_equal_the_books(algorithm: str, mode: str, tmp_path: Path) -> None:
    env = acts_in(algorithm, Walk, Glide)
    played = tmp_path / "evaluation"
    played.mkdir()
    more: dict[str, Any] = {"evaluation_env_config": {"folder": str(played)}, "evaluation_duration": 5}
    more["evaluation_num_envs"] = 1
    config = config_of(algorithm, env if mode == "same step" else WithResets(env, 2), tmp_path, **more)
    counted = 0
    with config.build() as algo:
        for _ in range(ITERATIONS):
            result, books = algo.train()["env_runners"], Books(tmp_path)
            check(result, books)
            assert result["num_env_steps_sampled"] == books.steps - counted
            counted = books.steps
        if mode == "same step":
            evaluated = algo.evaluate()["env_runners"]
            of_evaluation = Books(played)
            assert evaluated["num_episodes"] == 5
            assert evaluated["episode_return_mean"] == pytest.approx(np.mean(of_evaluation.returns[:5]), rel=1e-12)
            assert evaluated["episode_len_mean"] == pytest.approx(np.mean(of_evaluation.lengths[:5]), rel=1e-12)
            assert Books(tmp_path).steps == counted


@pytest.mark.parametrize("policies", ["shared", "own"])
@pytest.mark.parametrize("algorithm", SAMPLING)
def test_results_of_several_agents_equal_the_books(algorithm: str, policies: str, tmp_path: Path) -> None:
    config = config_of(algorithm, acts_in(algorithm, Crowd, Flock), tmp_path, policies=policies)
    with config.build() as algo:
        [*names] = algo.policies
        agents = Crowd.possible_agents
        policy_of = dict.fromkeys(agents, names[0]) if policies == "shared" else {agent: agent for agent in agents}
        for _ in range(ITERATIONS):
            result, books = algo.train()["env_runners"], Books(tmp_path)
            check(result, books)
            check_agents(result, books, policy_of)
    assert {len(of_agent) for of_agent in books.agent_returns.values()} > {len(books.returns)}


def test_lengths_of_agents_equal_the_books(tmp_path: Path) -> None:
    lives: list[Any] = []

    def listen(rollout: Any, **_: Any) -> None:
        lives.extend(rollout.stats["agent_episodes"])

    with config_of("PPO", Crowd, tmp_path, policies="shared", on_sample_end=listen).build() as algo:
        for _ in range(ITERATIONS):
            algo.train()
    books = Books(tmp_path)
    for agent in Crowd.possible_agents:
        own = [life for life in lives if life.agent == agent]
        assert [life.length for life in own] == books.agent_lengths[agent]
        assert [life.episode_return for life in own] == books.agent_returns[agent]


def test_the_window_of_averages_equals_the_last_episodes(tmp_path: Path) -> None:
    with config_of("PPO", Walk, tmp_path, metrics_num_episodes_for_smoothing=3).build() as algo:
        for _ in range(ITERATIONS):
            check(algo.train()["env_runners"], Books(tmp_path), window=3)


@pytest.mark.end_to_end
@pytest.mark.parametrize(("algorithm", "policies"), [("PPO", None), ("DQN", "shared")])
def test_results_of_envs_in_other_processes_equal_the_books(
    algorithm: str, policies: str | None, tmp_path: Path, ray_started: None
) -> None:
    env = Walk if policies is None else Crowd
    config = config_of(algorithm, env, tmp_path, num_env_runners=2, num_envs_per_env_runner=2, policies=policies)
    with config.build() as algo:
        for _ in range(ITERATIONS):
            result, books = algo.train()["env_runners"], Books(tmp_path)
            check(result, books)
            if policies is not None:
                check_agents(result, books, dict.fromkeys(Crowd.possible_agents, next(iter(algo.policies))))
