"""Data sets in runs: what is stored is what the file holds, draws keep their share, runs resume exactly, and what does
not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from algorithms import Algorithm, AlgorithmConfig, League
from algorithms.bc import BCConfig
from algorithms.cli import main
from algorithms.dqn import DQNConfig
from algorithms.iql import IQLConfig
from algorithms.marwil import MARWILConfig
from algorithms.ppo import PPOConfig
from algorithms.recording import record, record_replay
from algorithms.replay.join import join_batches
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Dataset
from rlmodule.agents.cartpoles import CartPoles
from rlmodule.data.columns import Columns
from tests.algorithms.offline.data import cartpole, noise
from tests.algorithms.run.test_clock import sha_of

ID = "default_policy"
SMALL: dict[str, Any] = {
    "model_config": {"fcnet_hiddens": [8]},
    "train_batch_size_per_learner": 16,
    "num_updates_per_iteration": 5,
    "torch_num_threads": 1,
    "seed": 1,
}
MEMORY = {"fcnet_hiddens": [8], "use_gru": True, "lstm_cell_size": 4, "max_seq_len": 4}
REPLAY = {
    "num_steps_sampled_before_learning_starts": 64,
    "num_env_steps_per_iteration": 32,
    "num_envs_per_env_runner": 4,
    "replay_capacity": 400,
    "training_intensity": 4.0,
}


# --- from the file to the batch ---------------------------------------------------------------------------------------


def test_batches_are_rows_of_the_file(tmp_path: Path) -> None:
    data = noise(80)
    data.save(tmp_path / "data")
    following = np.concatenate([data.observations[1:], data.observations[:1]])
    following[data.offsets[1:] - 1] = data.final_observations
    terminal = np.zeros(80, bool)
    terminal[data.offsets[1:] - 1] = data.terminated
    with DQNConfig(data=str(tmp_path / "data"), **SMALL).training(n_step=1).build() as algorithm:
        batch = algorithm.data[ID].sample(200).batch  # type: ignore[attr-defined]
    rows = [int(np.flatnonzero((data.observations == obs).all(1))[0]) for obs in batch[Columns.OBS].numpy()]
    assert len({*rows}) > 60
    np.testing.assert_array_equal(batch[Columns.ACTIONS], data.actions[rows])
    np.testing.assert_array_equal(batch[Columns.REWARDS], data.rewards[rows])
    np.testing.assert_array_equal(batch[Columns.DISCOUNTS], np.where(terminal[rows], 0.0, np.float32(0.99)))
    going = ~terminal[rows]
    np.testing.assert_array_equal(batch[Columns.NEXT_OBS][going], following[rows][going])


def test_actions_of_data_are_turned_into_those_that_policies_sample() -> None:
    rng = np.random.default_rng(0)
    actions = {"box": rng.uniform(-3, 1, (30, 2)).astype(np.float32), "choice": rng.integers(5, 8, 30)}
    space = gym.spaces.Dict({"box": gym.spaces.Box(-3.0, 1.0, (2,)), "choice": gym.spaces.Discrete(3, start=5)})
    data = Dataset.from_arrays(
        rng.normal(size=(30, 2)).astype(np.float32),
        actions,
        np.zeros(30),
        terminals=np.arange(30) % 10 == 9,
        timeouts=None,
        action_space=space,
    )
    with BCConfig(data=data, **SMALL).build() as algorithm:
        stored: Any = algorithm.data[ID].ring.actions.at(np.arange(30))  # type: ignore[attr-defined]
    np.testing.assert_allclose(stored["box"], (actions["box"] + 1) / 2, atol=1e-6)
    np.testing.assert_array_equal(stored["choice"], actions["choice"] - 5)


def test_memories_see_the_steps_before_as_in_an_env() -> None:
    data = noise(40)
    nets = MEMORY | {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    with BCConfig(data=data, **SMALL | {"model_config": nets}).build() as algorithm:
        obs: Any = algorithm.data[ID].ring.obs.at(np.arange(40))  # type: ignore[attr-defined]
        after: Any = algorithm.data[ID].ring.obs.following(data.offsets[1:] - 1)  # type: ignore[attr-defined]
    first = np.isin(np.arange(40), data.offsets[:-1])
    np.testing.assert_array_equal(obs["prev_action"], np.where(first, 0, np.roll(data.actions, 1)))
    np.testing.assert_array_equal(obs["prev_reward"], np.where(first, 0, np.roll(data.rewards, 1)))
    np.testing.assert_array_equal(after["prev_action"], data.actions[data.offsets[1:] - 1])


@pytest.mark.parametrize(("num_steps", "burn_in_len"), [(60, 0), (61, 0), (63, 0), (62, 3), (63, 5)])
def test_sequences_leave_no_step_out(num_steps: int, burn_in_len: int) -> None:
    data, learned = noise(num_steps), np.arange(burn_in_len, num_steps)  # the first steps of all only warm up the state
    rows_of: dict[str, Any] = {}
    for name, nets in (("rows", SMALL["model_config"]), ("sequences", MEMORY)):
        config = MARWILConfig(data=data, **SMALL | {"model_config": nets}).training(n_step=50)
        if name == "sequences":
            config.training(burn_in_len=burn_in_len)
        with config.build() as algorithm:
            buffer = algorithm.data[ID]  # type: ignore[attr-defined]
            batch = buffer.gather_rows(learned) if name == "rows" else buffer.sample(1000).batch
        rows = batch.get(Columns.VALID_ROWS, torch.arange(len(learned)))
        obs = batch[Columns.OBS].reshape(-1, 2)
        terms = torch.stack([batch[Columns.REWARDS], batch[Columns.DISCOUNTS]], -1).view(-1, 2)
        following = batch[Columns.NEXT_OBS] if name == "rows" else obs[batch[Columns.NEXT_ROWS]]
        rows_of[name] = {
            (*x.tolist(), *y.tolist(), *(z * y[1].sign()).tolist())
            for x, y, z in zip(obs[rows], terms[rows], following, strict=True)
        }
    assert len(rows_of["rows"]) == len(learned)
    assert rows_of["sequences"] == rows_of["rows"]


def test_data_stay_while_the_ring_of_env_steps_wraps_three_times() -> None:
    data = cartpole(2)
    config = DQNConfig(env="CartPole-v1", data=data, num_offline_updates=5, **SMALL | REPLAY)
    with config.build() as algorithm:
        ring = algorithm.data[ID].ring  # type: ignore[attr-defined]
        arrays = [*ring.obs.arrays, *ring.obs.finals.tables, *ring.actions.arrays, ring.rewards, ring.flags]
        before = [array.copy() for array in arrays]
        algorithm.learn(num_env_steps=1300)
        assert int(algorithm.replay.ring.written.min()) > 3 * 100  # type: ignore[attr-defined]
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_batches_from_data_alone_may_be_larger_than_what_env_runs_begin_with() -> None:
    large: dict[str, Any] = SMALL | {"train_batch_size_per_learner": 1500, "num_updates_per_iteration": 1}
    with IQLConfig(data=noise(), **large).build() as algorithm:
        assert algorithm.learn(num_updates=1)["learners"][ID]["weight"] > 0
    with pytest.raises(ValueError, match="num_steps_sampled_before_learning_starts: expected at least 1500"):
        IQLConfig(env="CartPole-v1", data=noise(), **large).build()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_batches_have_the_share_of_data(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DQNConfig(env="CartPole-v1", data=cartpole(2), data_share=share, **SMALL | REPLAY)
    with config.build() as algorithm:
        seen: list[Any] = []
        step = algorithm.learner_group.step_on_batch

        def noted(batch: Any, **kwargs: Any) -> Any:
            seen.append(batch[Columns.OBS])
            return step(batch, **kwargs)

        monkeypatch.setattr(algorithm.learner_group, "step_on_batch", noted)
        algorithm.learn(num_env_steps=96)
        data = algorithm.data[ID].ring.obs.arrays[0].reshape(-1, 4)  # type: ignore[attr-defined]
    assert seen
    for obs in seen:
        is_data = (obs.numpy()[:, None] == data[None]).all(-1).any(-1)
        assert is_data.sum() == round(share * 16)


@pytest.mark.parametrize("nets", [SMALL["model_config"], MEMORY], ids=["rows", "sequences"])
def test_joined_batches_hold_what_each_held(nets: dict[str, Any]) -> None:
    config = DQNConfig(data=noise(120), prioritized_replay=True, **SMALL | {"model_config": nets}).training(n_step=2)
    with config.build() as algorithm:
        samples = [algorithm.data[ID].sample(size) for size in (16, 12)]  # type: ignore[attr-defined]
    joined = join_batches([sample.batch for sample in samples])

    def trained(batch: Any) -> dict[str, Any]:
        if Columns.VALID_ROWS not in batch:
            return {name: batch[name] for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS)}
        rows, following = batch[Columns.VALID_ROWS], batch[Columns.NEXT_ROWS]
        named = {name: batch[name].flatten(0, 1)[rows] for name in (Columns.OBS, Columns.REWARDS, Columns.WEIGHTS)}
        return named | {Columns.NEXT_OBS: batch[Columns.OBS].flatten(0, 1)[following]}

    parts = [trained(sample.batch) for sample in samples]
    for name, column in trained(joined).items():
        assert torch.equal(column, torch.cat([part[name] for part in parts])), name
    assert sum(sample.num_rows for sample in samples) == len(next(iter(trained(joined).values())))


def test_priorities_go_back_to_the_buffer_that_a_row_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DQNConfig(env="CartPole-v1", data=cartpole(2), prioritized_replay=True, **SMALL | REPLAY)
    with config.build() as algorithm:
        algorithm.learn(num_env_steps=96)
        data, replay = algorithm.data[ID], algorithm.replay  # type: ignore[attr-defined]
        updated: dict[str, np.ndarray] = {}
        for name, buffer in (("data", data), ("replay", replay)):
            monkeypatch.setattr(
                buffer, "update_priorities", lambda sample, errors, name=name: updated.update({name: errors.numpy()})
            )
        step = algorithm.learner_group.step_on_batch
        learned: list[Any] = []
        monkeypatch.setattr(
            algorithm.learner_group,
            "step_on_batch",
            lambda *args, **kw: learned.append(step(*args, **kw)) or learned[-1],
        )
        algorithm._update(ID, {"update": 0.0})  # type: ignore[attr-defined]
    errors = learned[0][ID]["td_error"]
    np.testing.assert_array_equal(np.concatenate([updated["data"], updated["replay"]]), errors)
    assert len(updated["data"]) == len(updated["replay"]) == 8


# --- phases and resumes -----------------------------------------------------------------------------------------------

RUNS: dict[str, AlgorithmConfig] = {
    "BC": BCConfig(**SMALL),
    "MARWIL": MARWILConfig(**SMALL | {"n_step": 5}),
    "MARWIL with a memory": MARWILConfig(**SMALL | {"n_step": 5, "model_config": MEMORY, "burn_in_len": 2}),
    "DQN": DQNConfig(**SMALL, prioritized_replay=True),
    "SAC": SACConfig(**SMALL),
    "SAC with CQL": SACConfig.cql(**SMALL),
    "IQL": IQLConfig(**SMALL, prioritized_replay=True),
    "IQL with a memory": IQLConfig(**SMALL | {"n_step": 2, "model_config": MEMORY, "burn_in_len": 2}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_from_data_resumes_exactly(name: str, tmp_path: Path) -> None:
    data = noise(90)
    data.save(tmp_path / "data")
    with RUNS[name].copy().update({"data": str(tmp_path / "data")}).build() as algorithm:
        algorithm.learn(num_updates=10)
        algorithm.save(tmp_path / "saved")
        algorithm.learn(num_updates=10)
        expected = sha_of(algorithm)
    with Algorithm.from_checkpoint(tmp_path / "saved") as resumed:
        assert resumed.metrics.updates == 10
        resumed.learn(num_updates=10)
        assert sha_of(resumed) == expected


def test_a_run_goes_from_data_to_env_steps_and_resumes_exactly(tmp_path: Path) -> None:
    data = cartpole(2)
    config = DQNConfig(env="CartPole-v1", data=data, num_offline_updates=12, **SMALL | REPLAY)
    with config.build() as algorithm:
        clocks = []
        for _ in range(6):
            algorithm.train()
            clocks.append((algorithm.metrics.updates, algorithm.env_steps))
        assert clocks == [(5, 0), (10, 0), (12, 0), (12, 32), (12, 64), (12, 96)]
        assert algorithm.clock == 108
        algorithm.save(tmp_path / "saved")
        algorithm.train()
        expected = sha_of(algorithm)
    with Algorithm.from_checkpoint(tmp_path / "saved", data=data) as resumed:
        resumed.train()
        assert sha_of(resumed) == expected


def test_a_policy_from_data_goes_on_in_an_env_with_the_same_spaces_alone(tmp_path: Path) -> None:
    with IQLConfig(data=cartpole(2), **SMALL | REPLAY).build() as algorithm:
        algorithm.learn(num_updates=10)
        algorithm.save(tmp_path / "saved")
    with pytest.raises(
        ValueError, match=r"data of 'default_policy': expected steps with the spaces of the run's env, got"
    ):
        Algorithm.from_checkpoint(tmp_path / "saved", env="Acrobot-v1", data=cartpole(2))
    with Algorithm.from_checkpoint(tmp_path / "saved", env="CartPole-v1", data=cartpole(2)) as algorithm:
        algorithm.learn(num_env_steps=64)
        assert (algorithm.metrics.updates, algorithm.env_steps) == (10, 64)


def test_a_run_without_data_goes_on_with_some(tmp_path: Path) -> None:
    rows: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "num_updates_per_iteration"}
    rows |= REPLAY
    for config in (BCConfig(env="CartPole-v1", **SMALL), DQNConfig(env="CartPole-v1", **rows)):
        with config.build() as algorithm:
            algorithm.save(tmp_path / "saved")
        with Algorithm.from_checkpoint(tmp_path / "saved", data=cartpole(2)) as algorithm:
            algorithm.learn(num_updates=5)
            assert algorithm.metrics.updates >= 5


def test_priorities_of_data_follow_what_is_given_at_a_load(tmp_path: Path) -> None:
    def priorities(path: str, **given: Any) -> torch.Tensor:
        with Algorithm.from_checkpoint(tmp_path / path, data=noise(40), **given) as resumed:
            return resumed.data[ID].priorities.get_state()["values"]  # type: ignore[attr-defined]

    for path, is_prioritized in (("even", False), ("uneven", True)):
        with DQNConfig(data=noise(40), prioritized_replay=is_prioritized, **SMALL).build() as algorithm:
            algorithm.learn(num_updates=5)
            algorithm.save(tmp_path / path)
    before = priorities("uneven")
    assert len(before.unique()) > 10
    torch.testing.assert_close(priorities("uneven", prioritized_replay_alpha=0.3), before.sqrt())
    assert priorities("even", prioritized_replay=True).tolist() == [1.0] * 40


def test_learn_by_updates_then_by_env_steps() -> None:
    with DQNConfig(env="CartPole-v1", data=cartpole(2), **SMALL | REPLAY).build() as algorithm:
        assert algorithm.budgets == ("num_env_steps", "num_updates")
        algorithm.learn(num_updates=10)
        assert (algorithm.metrics.updates, algorithm.env_steps) == (10, 0)
        algorithm.learn(num_env_steps=64)
        assert (algorithm.metrics.updates, algorithm.env_steps) == (10, 64)


def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    noise(90).save(tmp_path / "data")
    words = ["train", "bc", "--data", str(tmp_path / "data"), "--num-updates", "60", "--seed", "1", "--quiet"]
    words += ["--num-updates-per-iteration", "5", "--checkpoint-interval", "1", "--resume", "auto"]
    command = [sys.executable, "-m", "algorithms.cli", *words]
    killed = "import os, sys; from algorithms.cli import main; from algorithms.bc import BC; train = BC.train\n"
    killed += "def dies(self):\n    self.metrics.iterations >= 7 and os.kill(os.getpid(), 9)\n    return train(self)\n"
    killed += f"BC.train = dies; sys.exit(main({[*words, '--run-dir', 'killed']!r}))"
    assert subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, check=False).returncode == -9
    for name in ("killed", "whole"):
        subprocess.run([*command, "--run-dir", name], cwd=tmp_path, check=True)
    shas = []
    for name in ("killed", "whole"):
        with Algorithm.from_checkpoint(tmp_path / name) as algorithm:
            assert algorithm.metrics.updates == 60
            shas.append(sha_of(algorithm))
    assert shas[0] == shas[1]


def test_ray_is_not_imported(tmp_path: Path) -> None:
    noise(40).save(tmp_path / "data")
    code = "import sys; from algorithms.bc import BCConfig\n"
    code += f"with BCConfig(data={str(tmp_path / 'data')!r}, num_updates_per_iteration=2).build() as algo:\n"
    code += "    algo.learn(num_updates=2)\nassert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what composes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BCConfig, MARWILConfig, DQNConfig, IQLConfig])
def test_agents_learn_each_from_its_own_data(config: type[Any]) -> None:
    data = {"cart_0": cartpole(2), "cart_1": cartpole(2, random=0.5, seed=1)}
    small = SMALL | {"env": CartPoles, "env_config": {"num_agents": 2}, "policies": "own", "n_step": 2}
    if config is BCConfig:
        del small["n_step"]
    with config(data=data, **small).build() as algorithm:
        result = algorithm.learn(num_updates=10)
        assert {*result["learners"]} == {"cart_0", "cart_1"}
        stored = {name: buffer.num_transitions for name, buffer in algorithm.data.items()}
        assert stored == {name: dataset.num_steps for name, dataset in data.items()}
        assert algorithm.evaluate(num_episodes=2)["env_runners"]["num_episodes"] == 2


def test_masks_of_data_are_obeyed() -> None:
    rng = np.random.default_rng(0)
    masks = np.ones((60, 3), np.int8)
    masks[:, 2] = 0
    space = gym.spaces.Dict(
        {"action_mask": gym.spaces.MultiBinary(3), "observations": gym.spaces.Box(-9, 9, (2,), np.float32)}
    )
    data = Dataset.from_arrays(
        {"action_mask": masks, "observations": rng.uniform(-1, 1, (60, 2)).astype(np.float32)},
        rng.integers(2, size=60),
        np.zeros(60),
        terminals=np.arange(60) % 10 == 9,
        timeouts=None,
        observation_space=space,
        action_space=gym.spaces.Discrete(3),
    )
    made = BCConfig, DQNConfig, DQNConfig.cql, SACConfig, SACConfig.cql, IQLConfig
    for config in made:
        with config(data=data, **SMALL).build() as algorithm:
            result = algorithm.learn(num_updates=5)["learners"][ID]
            assert np.isfinite(result["total_loss"])
            obs = {"action_mask": np.array([0, 1, 0], np.int8), "observations": np.zeros(2, np.float32)}
            assert algorithm.policy.act(obs)[0] == 1


def test_a_run_without_an_env_says_that_it_has_no_replay_buffer() -> None:
    message = r"DQN\.replay: expected a run that trains one policy, got one that stores no env steps"
    with DQNConfig(data=noise(), **SMALL).build() as algorithm, pytest.raises(AttributeError, match=message):
        algorithm.replay  # type: ignore[attr-defined]  # noqa: B018


# --- recording --------------------------------------------------------------------------------------------------------


def test_recorded_episodes_are_those_of_the_policy() -> None:
    with PPOConfig(env="CartPole-v1", seed=1, num_envs_per_env_runner=4).build() as algorithm:
        data = record(algorithm, num_episodes=7)[ID]
        assert (data.num_episodes, data.env) == (7, "CartPole-v1")
        for episode in data.episodes():
            actions, _ = algorithm.policy.act_batch(episode.get_observations(slice(-1)))
            np.testing.assert_array_equal(actions, episode.get_actions())
            assert len(episode) == episode.total_reward
        assert data.digest == record(algorithm, num_episodes=7)[ID].digest
        assert record(algorithm, num_env_steps=50)[ID].num_steps == 52
        for wrong in ({"num_episodes": 0}, {"num_env_steps": 0}, {"num_episodes": 2, "num_env_steps": 5}, {}):
            with pytest.raises(ValueError, match="expected one of num_episodes and num_env_steps, at least 1"):
                record(algorithm, **wrong)


@pytest.mark.parametrize("has_league", [False, True])
def test_agents_are_recorded_with_the_policies_of_evaluations(has_league: bool) -> None:
    settings: Any = {"policies": "shared", "league": League(every=1)} if has_league else {"policies": "own"}
    config = PPOConfig(env=CartPoles, env_config={"num_agents": 2}, seed=1, num_envs_per_env_runner=2, **settings)
    with config.build() as algorithm:
        if not has_league:
            algorithm.add_policy("unused", copy_of="cart_0")
        data = record(algorithm, num_episodes=6)
        assert {*data} == {*algorithm.policies} - {"unused"}
        assert sum(of_policy.num_episodes for of_policy in data.values()) == 6 * 2
        assert sum(of_policy.num_steps for of_policy in record(algorithm, num_env_steps=50).values()) >= 50


def test_recorded_actions_are_those_of_the_env() -> None:
    with TD3Config(env="Pendulum-v1", seed=1, model_config={"fcnet_hiddens": [8]}).build() as algorithm:
        data = record(algorithm, num_env_steps=60, explore=True)[ID]
    assert np.abs(data.actions).max() > 1.2
    env: Any = gym.make("Pendulum-v1").unwrapped
    env.reset()
    for begin in data.offsets[:-1]:  # the state is in the observation
        cos, sin, speed = data.observations[begin]
        env.state = np.array([np.arctan2(sin, cos), speed])
        obs, reward, *_ = env.step(data.actions[begin])
        np.testing.assert_allclose(obs, data.observations[begin + 1], atol=1e-4)
        assert reward == pytest.approx(data.rewards[begin], abs=1e-4)


def test_a_recorded_replay_buffer_holds_every_step() -> None:
    small = {name: value for name, value in SMALL.items() if name != "num_updates_per_iteration"}
    config = DQNConfig(env="CartPole-v1", **small | REPLAY | {"replay_capacity": 2000})
    with config.build() as algorithm:
        algorithm.learn(num_env_steps=640)
        data, replay = record_replay(algorithm)[ID], algorithm.replay  # type: ignore[attr-defined]
        steps = algorithm.env_steps
    assert data.num_steps == steps == replay.num_transitions
    assert data.terminated.sum() == algorithm.metrics.episodes
    # the ring has the first observation of the next episode there
    last = data.observations[data.offsets[1:] - 1]
    np.testing.assert_array_equal(data.final_observations[data.terminated], last[data.terminated])
    assert (data.final_observations != last)[~data.terminated].any(1).all()
    with BCConfig(data=data, **SMALL).build() as cloned:
        batch = cloned.data[ID].gather_rows(np.arange(data.num_steps))  # type: ignore[attr-defined]
    ring = replay.ring.obs.arrays[0]
    column = [ring[row, 0] for row in range(int(replay.ring.written[0]))]
    np.testing.assert_array_equal(batch[Columns.OBS][: len(column)], column)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bc", "out"], "expected a run with an env to play, got one that learned from data alone"),
        (["ppo", "file"], "DIR: expected a new folder, got 'file', which is a file"),
        (["ppo", "a.b-v0", "--format", "minari"], "DIR: expected a name such as cartpole/expert-v0 for Minari, got"),
    ],
)
def test_record_refuses_what_it_could_not_play_or_write(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with BCConfig(data=noise(), **SMALL).build() as algorithm:
        algorithm.save("bc")
    with PPOConfig(env="CartPole-v1", model_config=SMALL["model_config"]).build() as algorithm:
        algorithm.save("ppo")
    assert main(["record", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


# --- what is refused --------------------------------------------------------------------------------------------------


def wrong_spaces() -> Dataset:
    zeros = np.zeros((4, 3), np.float32)
    space = gym.spaces.Discrete(2)
    return Dataset.from_arrays(
        zeros, [0, 1, 0, 1], zeros[:, 0], terminals=[0, 0, 0, 1], timeouts=None, action_space=space
    )


MISTAKES: dict[str, tuple[Any, str]] = {
    "PPO": (lambda: PPOConfig().offline(data="x"), "offline"),
    "a folder that is missing": (lambda: BCConfig(data="missing").build(), "missing"),
    "other spaces than the env's": (lambda: BCConfig(env="CartPole-v1", data=wrong_spaces()).build(), "observations"),
    "neither env nor data": (lambda: DQNConfig().build(), "env"),
    "a dict for one agent": (lambda: BCConfig(data={"a": noise()}).build(), "data"),
    "one data set for several agents": (
        lambda: BCConfig(env=CartPoles, policies="own", data=noise()).build(),
        "a dict of data sets by policy id",
    ),
    "a policy without data": (
        lambda: BCConfig(
            env=CartPoles, env_config={"num_agents": 2}, policies="own", data={"cart_0": cartpole(1)}
        ).build(),
        "cart_1",
    ),
    "a policy that is unknown": (
        lambda: BCConfig(
            env=CartPoles,
            env_config={"num_agents": 2},
            policies="own",
            data=dict.fromkeys(("cart_0", "cart_1", "cart_9"), cartpole(1)),
        ).build(),
        "cart_9",
    ),
    "env steps for BC": (
        lambda: BCConfig(data=noise(), **SMALL).build().learn(10),
        r"BC learns from data alone. Call learn\(num_updates=10\)",
    ),
    "updates without data": (
        lambda: DQNConfig(env="CartPole-v1").build().learn(num_updates=10),
        "learns from env steps alone",
    ),
    "BC without data": (lambda: BCConfig(env="CartPole-v1", **SMALL).build().learn(num_updates=10), "data"),
    "a setting of data without data": (lambda: DQNConfig(env="CartPole-v1", data_share=0.1).build(), "data_share"),
    "scaled rewards": (
        lambda: SACConfig(env="CartPole-v1", data=cartpole(1), normalize_rewards=True).build(),
        "normalize_rewards",
    ),
    "rewards for BC": (lambda: BCConfig(data=noise(), gamma=0.5).build(), "gamma"),
    "rewards for a policy that is cloned": (
        lambda: MARWILConfig(
            env=CartPoles, policies="own", data={}, policy_overrides={"cart_0": {"beta": 0.0, "gamma": 0.5}}
        ).build(),
        "gamma: expected its default with beta=0, which reads no rewards, got 0.5",
    ),
    "env runners for BC": (
        lambda: BCConfig(env="CartPole-v1", data=noise(), num_env_runners=2).build(),
        "num_env_runners",
    ),
    "evaluations without an env": (
        lambda: BCConfig(data=noise(), evaluation_interval=1).build(),
        "evaluation_interval",
    ),
    "evaluate() without an env": (
        lambda: BCConfig(data=noise(), **SMALL).build().evaluate(),
        "expected a run with an env",
    ),
    "recording without an env": (
        lambda: record(BCConfig(data=noise(), **SMALL).build(), num_episodes=1),
        r"record\(\): expected a run with an env, got one that learns from data alone",
    ),
    "sampling without an env": (lambda: DQNConfig(data=noise(), **SMALL).build().sample(), "learns from data alone"),
    "hindsight without an env": (lambda: DQNConfig(data=noise(), her_ratio=0.5, n_step=1).build(), "her_reward_fn"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mistake, words = MISTAKES[name]
    with pytest.raises((ValueError, TypeError, FileNotFoundError, AttributeError, RuntimeError), match=words):
        mistake()
    assert not [*tmp_path.iterdir()]


def test_a_run_refuses_other_data(tmp_path: Path) -> None:
    with BCConfig(data=noise(40), **SMALL).build() as algorithm:
        algorithm.learn(num_updates=5)
        algorithm.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="data of 'default_policy'"):
        Algorithm.from_checkpoint(tmp_path / "saved", data=noise(40, seed=1))
    with pytest.raises(ValueError, match="data"):
        Algorithm.from_checkpoint(tmp_path / "saved")
    with Algorithm.from_checkpoint(tmp_path / "saved", data=noise(40)) as resumed:
        resumed.learn(num_updates=5)
