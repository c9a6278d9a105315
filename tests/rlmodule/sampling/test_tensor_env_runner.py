"""A runner of tensors gives what a runner of arrays gives, and asks the device for nothing while it samples."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn

from algorithms.dqn import DQN, DQNConfig
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from catalog import Catalog
from rlmodule import Columns, EnvRunner, RLModule, Rollout
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.sampling import env_runner
from rlmodule.sampling.storage import RolloutStorage, TensorStorage
from rlmodule.testing.data import clone, differences
from tests.rlmodule.sampling.test_env_runner_actions import DICT, TUPLE, Echo, Forgiving, Linear, Masked
from tests.rlmodule.toys import Counter, NestedCounter, NoNets, Recurrent, Scripted, Settings, Small, counters
from tests.tensor_envs import InTensors, TensorCartPole

# A runner of arrays that is given tensors, which is what those of tensors are compared with.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]
Factory = Callable[..., VectorEnv]


def in_tensors(factory: Factory) -> Factory:
    return lambda config: InTensors(factory(config))


def cartpoles(mode: AutoresetMode = AutoresetMode.SAME_STEP, num: int = 3, max_steps: int = 9) -> Factory:
    return lambda config: TensorCartPole(num, autoreset_mode=mode, max_steps=max_steps)


def with_module(runner: Any, module_class: type[RLModule] = Small, **model: Any) -> Any:
    catalog: type[Catalog] = NoNets if module_class in (Scripted, Recurrent, Linear) else PPOCatalog
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        spaces_ = {"observation_space": runner.observation_space, "action_space": runner.action_space}
        runner.set_module(module_class(**spaces_, model_config=model, catalog_class=catalog))
    return runner


def tensor_runner(
    factory: Factory, module_class: type[RLModule] = Small, *, run_seed: int = 1, first: int = 0, **settings: Any
) -> EnvRunner:
    model = settings.pop("model", {})
    made = EnvRunner(Settings(env=factory, **settings), run_seed=run_seed, first_env_index=first)
    assert made._storage_class is TensorStorage
    return with_module(made, module_class, **model)


def both(
    arrays: Factory, tensors: Factory, module_class: type[RLModule] = Small, **settings: Any
) -> tuple[EnvRunner, EnvRunner]:
    """A runner of arrays and one of tensors, with equal modules."""
    model = settings.pop("model", {})
    array_env = arrays({})
    array_env.reset()  # as that of tensors was, to find out what it gives: counters count resets
    one = EnvRunner(Settings(env=lambda config: array_env, **settings), run_seed=1)
    two = EnvRunner(Settings(env=tensors, **settings), run_seed=1)
    return with_module(one, module_class, **model), with_module(two, module_class, **model)


def message(rollout: Rollout) -> dict[str, Any]:
    """All of a rollout but seconds."""
    fields = {field.name: getattr(rollout, field.name) for field in dataclasses.fields(rollout)}
    stats = {n: x for n, x in rollout.stats.items() if n not in ("env_step", "forward", "bookkeeping")}
    for name in ("episode_returns", "episode_lengths", "episode_slots"):
        stats[name] = stats[name].tolist()
    return fields | {"stats": stats}


def assert_alike(runners: tuple[EnvRunner, EnvRunner], fragments: list[int]) -> Rollout:
    rollout = None
    for steps in fragments:
        rollouts = [runner.sample(steps, explore=False, policy_version=steps) for runner in runners]
        first, rollout = rollouts
        assert differences(message(first), message(rollout)) == []
    assert rollout is not None
    return rollout


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragments", [[40], [1] * 25, [3, 8, 1, 8, 8]], ids=str)
@pytest.mark.parametrize("cls", [Counter, NestedCounter])
def test_rollouts_are_those_of_a_runner_of_arrays(
    mode: AutoresetMode, fragments: list[int], cls: type[Counter]
) -> None:
    factory = counters(mode, cls)
    assert_alike(both(factory, in_tensors(factory), Scripted), fragments)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragments", [[13, 3], [8, 8, 8], [1] * 12], ids=str)
@pytest.mark.parametrize("seen", [{}, {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}], ids=str)
def test_a_module_with_memory_is_given_the_same(mode: AutoresetMode, fragments: list[int], seen: Any) -> None:
    factory = counters(mode)
    runners = both(factory, in_tensors(factory), Recurrent, model={"max_seq_len": 4, "use_lstm": True, **seen})
    assert_alike(runners, fragments)


@pytest.mark.parametrize("mode", MODES)
def test_torch_envs_are_stepped_as_through_arrays(mode: AutoresetMode) -> None:
    """The env itself the same; one that hands out its own memory, which is overwritten by the next step."""
    rollout = assert_alike(both(cartpoles(mode), cartpoles(mode)), [20, 7, 1, 33])
    assert len(rollout.final_index) >= 5
    assert rollout.stats["episode_lengths"].max() == 9
    assert rollout.valid.all() == (mode is AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-2, 3, (2,), np.float32),
        spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        spaces.Box(0, 3, (2,), np.int16),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary(3),
        spaces.Discrete(3, start=-1),
        DICT,
        TUPLE,
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES)
def test_actions_of_all_kinds_reach_the_env_and_the_rollout(space: spaces.Space, mode: AutoresetMode) -> None:
    def make(config: Any) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Echo(space)] * 3, autoreset_mode=mode)

    assert_alike(both(make, in_tensors(make), Linear), [12, 3])


def test_a_step_that_resets_gives_no_reward() -> None:
    class Generous(TensorCartPole):
        def step(self, actions: Any) -> Any:
            obs, rewards, *rest = super().step(actions)
            return obs, rewards + 5, *rest

    make = lambda config: Generous(3, autoreset_mode=AutoresetMode.NEXT_STEP, max_steps=9)  # noqa: E731
    rollout = assert_alike(both(make, make), [20, 1, 1, 20])
    assert not rollout.valid.all()
    assert not rollout[Columns.REWARDS][~rollout.valid].any()


def test_each_reset_has_a_seed_of_its_own() -> None:
    runner, firsts = tensor_runner(cartpoles()), []
    for _ in range(2):
        runner.reset()
        firsts.append(runner.sample(1)[Columns.OBS])
    assert not torch.equal(*firsts)


def test_an_env_may_write_into_the_actions_it_is_given() -> None:
    class Spoils(TensorCartPole):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            actions.fill_(7)
            return result

    runner = tensor_runner(lambda config: Spoils(3))
    assert runner.sample(20)[Columns.ACTIONS].unique().tolist() == [0, 1]


def test_an_env_may_change_its_memory_between_calls() -> None:
    """What is made in inference mode could not be changed outside of it."""

    class Keeps(TensorCartPole):
        def step(self, actions: Any) -> Any:
            self.kept = actions
            return super().step(actions)

        def reset(self, **options: Any) -> Any:
            if options["seed"] is not None and self.age.any():
                self.kept.add_(1)
            return super().reset(**options)

    runner = tensor_runner(lambda config: Keeps(3))
    runner.sample(3)
    runner.reset()
    runner.sample(3)


def test_a_rollout_never_changes_afterwards() -> None:
    runner = tensor_runner(cartpoles())
    rollout = runner.sample(30)
    before = clone(message(rollout))
    runner.sample(30)
    runner.reset()
    assert differences(before, message(rollout)) == []


@pytest.mark.parametrize("mode", MODES)
def test_infos_of_episodes_are_told(mode: AutoresetMode) -> None:
    class Informed(TensorCartPole):
        def step(self, actions: Any) -> Any:
            age = self.age + 1
            *result, info = super().step(actions)
            of_step = {"age": age, "name": "cart"}
            message = {**of_step, "final_info": of_step} if mode is AutoresetMode.SAME_STEP else of_step
            return *result, info | message

    runner = tensor_runner(lambda config: Informed(3, autoreset_mode=mode, max_steps=9), records_episode_infos=True)
    stats = runner.sample(60).stats
    assert len(stats["episode_infos"]) == len(stats["episode_lengths"]) >= 10
    expected = [{"age": length, "name": "cart"} for length in stats["episode_lengths"].tolist()]
    assert stats["episode_infos"] == expected
    assert "episode_infos" not in runner.sample(1).stats or runner.sample(1).stats["episode_infos"]


# --- random actions ---------------------------------------------------------------------------------------------------


def test_random_actions_go_with_the_seed_and_not_with_the_length_of_fragments() -> None:
    whole = tensor_runner(cartpoles()).sample(24)
    runner = tensor_runner(cartpoles())
    parts = [runner.sample(n) for n in (8, 1, 15)]
    for name in whole.columns:
        joined = tree.map_structure(lambda *x: torch.cat(x), *[part[name] for part in parts])
        assert differences(whole[name], joined) == [], name
    for other in (tensor_runner(cartpoles(), run_seed=2), tensor_runner(cartpoles(), first=3)):
        assert not torch.equal(whole[Columns.ACTIONS], other.sample(24)[Columns.ACTIONS])


def test_random_actions_have_the_probabilities_recorded() -> None:
    runner = tensor_runner(cartpoles(num=50, max_steps=500), num_envs_per_env_runner=50)
    with torch.no_grad():
        runner.module.pi.bias += torch.tensor([1.0, 0.0])  # type: ignore[operator]
    rollout = runner.sample(100)
    dist = runner.module.action_dist_cls.from_logits(rollout[Columns.ACTION_DIST_INPUTS])
    assert torch.equal(dist.logp(rollout[Columns.ACTIONS]), rollout[Columns.ACTION_LOGP])
    probs = rollout[Columns.ACTION_DIST_INPUTS].softmax(-1)[..., 1]
    taken = rollout[Columns.ACTIONS].float()
    deviation = float((probs * (1 - probs)).sum().sqrt())
    assert abs(float((taken - probs).sum())) < 4 * deviation
    assert 0.2 < float(taken.mean()) < 0.35


def test_columns_may_enter_a_loss() -> None:
    rollout = tensor_runner(cartpoles()).sample(12)
    weight = torch.ones((), requires_grad=True)
    leaves = [x for x in tree.flatten(message(rollout)) if isinstance(x, Tensor) and x.is_floating_point()]
    torch.stack([(weight * x).sum() for x in leaves]).sum().backward()
    assert weight.grad is not None
    assert not any(x.requires_grad or x.is_inference() for x in leaves)


def test_noise_of_weights_is_drawn_for_exploration_alone() -> None:
    class Noisy(Small, NoisyNetAPI):
        draws: ClassVar[list[torch.Generator]] = []

        def resample_noise(self, generator: torch.Generator) -> None:
            self.draws.append(generator)

    runner = tensor_runner(cartpoles(), Noisy)
    runner.sample(5, explore=False)
    assert not Noisy.draws
    runner.sample(5)
    assert len(Noisy.draws) == 5


def test_state_round_trip_goes_on_with_the_same_stream() -> None:
    runner, other = tensor_runner(cartpoles()), tensor_runner(cartpoles())
    runner.sample(9)
    other.set_state(runner.get_state())
    assert differences(other.get_state(), runner.get_state()) == []
    runner.reset()  # as a runner does whose state was set
    assert differences(message(runner.sample(30)), message(other.sample(30))) == []


def test_the_state_of_another_kind_of_runner_is_refused() -> None:
    runner = tensor_runner(cartpoles())
    state = runner.get_state()
    state["0"]["generator"]["draws"] = "cuda"
    with pytest.raises(ValueError, match=r"expected random numbers for 'cpu', got those for 'cuda'\. Resume with"):
        runner.set_state(state)
    arrays = EnvRunner(Settings(), run_seed=1)
    with pytest.raises(ValueError, match=r"got those for .arrays.\."):
        runner.set_state(arrays.get_state())
    with pytest.raises(ValueError, match=r"for .arrays., got those for .cpu.\."):
        arrays.set_state(runner.get_state())


# --- the device is asked for nothing ----------------------------------------------------------------------------------

READS = ("numpy", "cpu", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero")


class Watch:
    """Counts what takes a number from the device, between the first step of the env and the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[str] = []
        self.on = False
        for name in READS:
            monkeypatch.setattr(Tensor, name, self._watched(name, getattr(Tensor, name)))

    def _watched(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.on:
                self.reads.append(name)
            return read(tensor, *args, **kwargs)

        return reading


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("recurrent", [False, True])
def test_nothing_is_read_between_the_first_step_and_the_last(
    mode: AutoresetMode, recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(TensorCartPole):
        steps = 0
        last = 0

        def step(self, actions: Any) -> Any:
            *result, info = super().step(actions)
            self.steps += 1
            watch.on = self.steps < self.last
            return *result, {**info, "log": {"reward": result[1]}}

    env = Watched(3, autoreset_mode=mode, max_steps=9)
    model = {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True, "max_seq_len": 4}
    runner = tensor_runner(lambda config: env, PPOModule, model=model if recurrent else {})
    watch = Watch(monkeypatch)
    runner.sample(24)
    runner.sample(24)  # all of whose steps are checked
    env.last = env.steps + 250
    rollout = runner.sample(250)
    assert not watch.on
    assert len(rollout.final_index) > 10
    assert watch.reads == []


@pytest.mark.parametrize("truncates", [False, True])
def test_the_end_of_a_fragment_copies_once(truncates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And if it truncated episodes, their final observations, which are checked."""
    runner = tensor_runner(cartpoles(max_steps=9 if truncates else 500))
    runner.sample(24)
    runner.sample(24)
    watch = Watch(monkeypatch)
    watch.on = True
    rollout = runner.sample(50)
    watch.on = False
    assert bool(len(rollout.final_index)) == truncates
    assert watch.reads == ["cpu", "numpy"] * (1 + truncates)


class Nowhere(VectorEnv):
    """Of tensors without numbers: code that asks for one, or mixes devices, gets an error."""

    def __init__(self, mode: AutoresetMode, action_space: spaces.Space) -> None:
        self.num_envs, self.metadata = 3, {"autoreset_mode": mode}
        self.single_action_space = action_space
        self.single_observation_space = spaces.Dict(
            {"x": spaces.Box(-np.inf, np.inf, (2,), np.float32), "k": spaces.Discrete(4)}
        )
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 3)
        if isinstance(action_space, spaces.Discrete):
            self.single_observation_space["action_mask"] = spaces.MultiBinary(int(action_space.n))

    def _obs(self) -> Any:
        made = {"x": torch.empty(3, 2, device="meta"), "k": torch.empty(3, dtype=torch.int64, device="meta")}
        if isinstance(self.single_action_space, spaces.Discrete):
            made["action_mask"] = torch.empty(3, int(self.single_action_space.n), dtype=torch.int8, device="meta")
        return made

    def reset(self, **options: Any) -> Any:
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        assert all(leaf.device.type == "meta" for leaf in tree.flatten(actions))
        flags = [torch.empty(3, dtype=torch.bool, device="meta") for _ in range(2)]
        return self._obs(), torch.empty(3, device="meta"), *flags, {"final_obs": self._obs()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), DICT], ids=str
)
def test_the_loop_needs_no_number_and_no_other_device(
    mode: AutoresetMode, recurrent: bool, space: spaces.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.Generator
    with monkeypatch.context() as patched:  # there is none for this device
        patched.setattr(torch, "Generator", lambda device: real())
        runner = EnvRunner(Settings(env=lambda config: Nowhere(mode, space)), run_seed=1)
    monkeypatch.setattr(runner, "_guard", Unguarded())
    seen = {"lstm_use_prev_reward": True, "lstm_use_prev_action": True, "use_lstm": True, "max_seq_len": 4}
    model = seen if recurrent else {}
    spaces_ = {"observation_space": runner.observation_space, "action_space": runner.action_space}
    runner.set_module(PPOModule(**spaces_, model_config=model, catalog_class=PPOCatalog).to("meta"))
    runner.reset()
    for _ in range(2):
        runner._begin(10)
        with torch.no_grad():
            runner._interact(10, explore=False)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):  # the one copy to the host
        runner._rollout_of(10, explore=False, policy_version=0)


class Unguarded:
    """Looks at nothing."""

    def check_reset(self, obs: Any, info: Any) -> None: ...

    def check_step(self, *result: Any) -> None: ...


# --- what it is not for, and what goes wrong --------------------------------------------------------------------------


def test_runners_of_arrays_are_made_for_all_other_envs() -> None:
    ready: list[Factory] = [counters(AutoresetMode.SAME_STEP), lambda config: RecordEpisodeStatistics(make_three())]
    for settings in (Settings(), *(Settings(env=factory) for factory in ready)):
        runner = EnvRunner(settings, run_seed=1)
        assert runner._storage_class is RolloutStorage
        runner.stop()
    seen: list[VectorEnv] = []
    runner = EnvRunner(Settings(env=cartpoles()), run_seed=1, role="evaluation_env", on_env=seen.append)
    assert seen == [runner.env]


def make_three() -> VectorEnv:
    return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)


class Closes(TensorCartPole):
    closed_envs = 0

    def close(self, **options: Any) -> None:
        Closes.closed_envs += 1


def refused(env: VectorEnv, match: str) -> None:
    Closes.closed_envs = 0
    with pytest.raises(ValueError, match=match):
        EnvRunner(Settings(env=lambda config: env), run_seed=1)
    assert Closes.closed_envs == 1


def test_an_env_that_does_not_reset_itself_is_refused_and_closed() -> None:
    refused(Closes(3, autoreset_mode=AutoresetMode.DISABLED), "expected SAME_STEP or NEXT_STEP, got AutoresetMode.DIS")


def test_arrays_among_tensors_are_refused() -> None:
    class Mixed(Closes):
        def reset(self, **options: Any) -> Any:
            obs, info = super().reset(**options)
            return {"a": obs.numpy(), "b": obs}, info

    refused(Mixed(3), r"Mixed\.reset\(\): expected tensors on cpu alone, got a ndarray among them")

    class ArrayRewards(TensorCartPole):
        def step(self, actions: Any) -> Any:
            obs, rewards, *rest = super().step(actions)
            return obs, rewards.numpy(), *rest

    with pytest.raises(ValueError, match=r"ArrayRewards\.step\(\): expected tensors on cpu alone, got a ndarray"):
        tensor_runner(lambda config: ArrayRewards(3)).sample(2)


def test_final_observations_that_are_missing_are_missed() -> None:
    class Forgets(TensorCartPole):
        def step(self, actions: Any) -> Any:
            return *super().step(actions)[:4], {}

    runner = tensor_runner(lambda config: Forgets(3, max_steps=9))
    with pytest.raises(ValueError, match=r"info of Forgets.step\(\): expected final_obs .* got \d+ truncated episodes"):
        runner.sample(40)
    assert tensor_runner(lambda config: Forgets(3)).sample(100).stats["episode_returns"].size  # where all terminate


@pytest.mark.parametrize("where", ["obs", "reward"])
def test_what_is_not_finite_is_named(where: str) -> None:
    class Breaks(TensorCartPole):
        steps = 0

        def step(self, actions: Any) -> Any:
            obs, rewards, *rest = super().step(actions)
            self.steps += 1
            if self.steps == 14:
                (obs[1, 2:3] if where == "obs" else rewards[1:2]).fill_(torch.nan)
            return obs, rewards, *rest

    runner = tensor_runner(lambda config: Breaks(3))
    runner.sample(10)
    with pytest.raises(ValueError, match=rf"env 1, step 14, {where}: expected finite numbers, got nan"):
        runner.sample(10)
    assert runner.sample(5)[Columns.STARTS][0].all()  # new episodes


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_use_prev_reward": True}], ids=str)
def test_a_final_observation_that_is_not_finite_is_named(model: dict[str, Any]) -> None:
    """Env 1 is truncated in its steps 6, 12 and so on; NaN in the entries of the others, which continue, is ignored."""

    class Cuts(TensorCartPole):
        steps, last_good = 0, 12

        def step(self, actions: Any) -> Any:
            obs, rewards, terminateds, truncateds, _ = super().step(actions)
            self.steps += 1
            terminateds[:], truncateds[:] = False, False
            truncateds[1] = self.steps % 6 == 0
            finals = torch.full_like(obs, torch.nan)
            finals[1] = self.steps
            finals[1, 2:3] *= torch.nan if self.steps > self.last_good else 1
            return obs, rewards, terminateds, truncateds, {"final_obs": finals}

    module_class = PPOModule if model else Small
    runner = tensor_runner(lambda config: Cuts(3), module_class, first=10, model=model)
    rollout = runner.sample(14)
    assert rollout.final_index.tolist() == [[5, 1], [11, 1]]
    final_obs = rollout.final_obs[Columns.OBS] if model else rollout.final_obs
    assert final_obs.tolist() == [[6.0] * 4, [12.0] * 4]
    with pytest.raises(ValueError, match=r"^env 11, step 18, obs: expected finite numbers, got nan at index \(2,\)"):
        runner.sample(5)
    assert runner.sample(4)[Columns.STARTS][0].all()  # new episodes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_use_prev_reward": True}], ids=str)
def test_an_env_with_nothing_to_choose_is_named(mode: AutoresetMode, model: dict[str, Any]) -> None:
    def runner_with(stuck: tuple[int, int, int]) -> EnvRunner:
        envs = [lambda i=i: Forgiving(i, stuck) for i in range(3)]
        env = InTensors(SyncVectorEnv(envs, autoreset_mode=mode))
        runner = EnvRunner(Settings(env=lambda config: env), run_seed=1, first_env_index=10)
        return with_module(runner, Linear, **model)

    step = 4 + 2 + (mode == AutoresetMode.NEXT_STEP)
    runner = runner_with((1, 2, 2))  # the first reset found out what the env gives
    runner.sample(3)
    with pytest.raises(ValueError, match=rf"env 11, step {step}, obs\['action_mask'\]: expected at least one action"):
        runner.sample(6)
    assert runner.sample(3).valid.all()
    assert len(runner_with((1, 2, 4)).sample(20).final_index) >= 9  # the last observation needs no choice


def test_masked_actions_are_never_taken() -> None:
    envs = [lambda i=i: Masked(i, None) for i in range(3)]
    rollout = tensor_runner(in_tensors(lambda config: SyncVectorEnv(envs, autoreset_mode=MODES[0])), Linear).sample(20)
    taken = nn.functional.one_hot(rollout[Columns.ACTIONS], 3)
    assert torch.equal(taken.bool(), rollout[Columns.OBS]["action_mask"].bool())


def test_after_an_env_that_raises_new_episodes_start() -> None:
    class Raises(TensorCartPole):
        steps = 0

        def step(self, actions: Any) -> Any:
            self.steps += 1
            if self.steps == 14:
                raise RuntimeError("broken")
            return super().step(actions)

    runner = tensor_runner(lambda config: Raises(3))
    runner.sample(10)
    with pytest.raises(RuntimeError, match="broken"):
        runner.sample(10)
    rollout = runner.sample(40)
    assert rollout[Columns.STARTS][0].all()
    ended = rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]
    first = int(ended[:, 0].nonzero()[0])
    slot = rollout.stats["episode_slots"].tolist().index(0)
    assert rollout.stats["episode_lengths"][slot] == first + 1 == rollout.stats["episode_returns"][slot]


# --- every step is accounted for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_step_is_accounted_for(mode: AutoresetMode) -> None:
    class Fails(TensorCartPole):
        steps, asked_for = 0, 0

        def step(self, actions: Any) -> Any:
            self.steps += 1
            resting = self.ended if mode is AutoresetMode.NEXT_STEP else torch.zeros_like(self.ended)
            self.asked_for += int((~resting).sum())
            if self.steps == 44:
                raise RuntimeError("broken")
            obs, rewards, *rest = super().step(actions)
            if self.steps == 86:
                rewards[0] = torch.nan
            return obs, rewards, *rest

    env, step_counter = Fails(3, autoreset_mode=mode, max_steps=9), SharedCounter()
    step_counter.cell[0] = 1000  # what an earlier runner counted
    runner = EnvRunner(Settings(env=lambda config: env), run_seed=1, step_counter=step_counter)
    with_module(runner)
    valid, failed = 0, 0
    for steps in [10] * 8 + [1] * 30 + [10] * 3:
        try:
            valid += runner.sample(steps).num_env_steps
        except (RuntimeError, ValueError):
            failed += 1
        counted = step_counter.count - 1000
        assert counted == env.asked_for == valid + sum(runner.num_env_steps_lost.values())
    assert failed == 2
    assert {*runner.num_env_steps_lost} == {"fragment"}
    assert runner.progress == env.steps - 1


def test_a_runner_that_is_made_again_repeats_nothing() -> None:
    settings = Settings(env=cartpoles())
    rollouts = []
    for incarnation in (0, 0, 1, 2):
        runner = with_module(EnvRunner(settings, run_seed=1, incarnation=incarnation))
        rollouts.append(runner.sample(8))
    first, again, *others = rollouts
    assert differences(message(first), message(again)) == []
    for name in (Columns.OBS, Columns.ACTIONS):
        different = {tuple(rollout[name].flatten().tolist()) for rollout in (first, *others)}
        assert len(different) == 3


def test_envs_of_tensors_cannot_be_mended_one_by_one() -> None:
    settings = Settings(env=lambda config: Closes(3), restart_failed_sub_environments=True)
    with pytest.raises(ValueError, match=r"expected single envs for .*, got a ready Closes"):
        EnvRunner(settings, run_seed=1)


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.end_to_end
def test_ppo_learns_from_it() -> None:
    config = (
        PPOConfig()
        .environment(lambda config: TensorCartPole(16))
        .env_runners(num_envs_per_env_runner=16)
        .training(train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=6, lr=1e-3)
        .debugging(seed=1)
    )
    with config.build() as algo:
        assert algo.env_runner_group.local_runner._storage_class is TensorStorage
        algo.learn(num_env_steps=60_000, target_return=150)
        assert algo.train()["env_runners"]["episode_return_mean"] > 120


def test_an_evaluation_on_another_device_acts_with_the_learned_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device ``cpu:0`` stands for that of a GPU, since it differs from ``cpu``."""
    monkeypatch.setattr(env_runner, "tensors_on", lambda *_: torch.device("cpu", 0))
    monkeypatch.setattr(env_runner, "check_device", lambda *_: None)
    config = PPOConfig().environment(lambda config: TensorCartPole(4)).env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    with config.build() as algo:
        for _ in range(2):
            algo.train()
            algo.evaluate(num_episodes=4)
            acting: Any = algo._evaluation.made
            assert differences(acting._runner.module.get_state(), acting.module.get_state()) == []


def test_an_algorithm_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def make(config: Any) -> VectorEnv:
        return TensorCartPole(4)

    config = DQNConfig().environment(make).env_runners(num_envs_per_env_runner=4).debugging(seed=1)
    config.training(num_steps_sampled_before_learning_starts=128).reporting(num_env_steps_per_iteration=200)
    with config.build() as algo:
        before = algo.train()
        algo.save(tmp_path / "checkpoint")
    with DQN.from_checkpoint(tmp_path / "checkpoint", env=make) as algo:
        after = algo.train()
    steps = [result["env_runners"]["num_env_steps_sampled_lifetime"] for result in (before, after)]
    assert steps == [200, 400]
    assert after["learners"]["default_policy"]["num_updates_skipped"] == 0
