"""Rows in the time of agents: equal to those of a slow sampler, on any schedule of starts, turns and ends."""

import zlib
from typing import Any

import numpy as np
import torch
import tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlmodule import MultiRLModule, RLModule, Rollout
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.sampling.random_streams import ActionNoise
from rlmodule.seeding import numpy_stream
from tests.rlmodule.agents.envs import ScriptedEnv, random_script
from tests.rlmodule.agents.reference import Reference
from tests.rlmodule.agents.test_agent_runner import module_for
from tests.rlmodule.toys import Forgetful, Recurrent, SeesPast, Settings

AGENTS = ["a", "b", "c"]
LENGTH = 3  # of sequences
MODULES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "gru": {"module_class": Recurrent, "use_lstm": True, "max_seq_len": LENGTH},
    "past": {"module_class": Forgetful},
    "gru, past": {"module_class": SeesPast, "use_lstm": True, "max_seq_len": LENGTH},
}
MAPPINGS: dict[str, Any] = {
    "shared": {"a": "p", "b": "p", "c": "p"},
    "two": {"a": "q", "b": "p", "c": "q"},
    "by episode": lambda agent, episode: "pq"[(episode.number + episode.env_index + AGENTS.index(agent)) % 2],
}


def assert_equal(expected: Rollout, got: Rollout) -> None:
    assert expected.columns.keys() == got.columns.keys()
    for name in ("columns", "last_obs", "final_index", "final_obs", "state_in"):
        one, other = vars(expected)[name], vars(got)[name]
        assert (one is None) == (other is None)
        if name == "state_in" and one is not None:  # only sequences with valid rows matter
            used = expected.valid[::LENGTH]
            one, other = (tree.map_structure(lambda x, rows=used: x[rows], states) for states in (one, other))
        tree.map_structure(lambda x, y: torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-6), one, other)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    fragments=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kind=st.sampled_from([*MODULES]),
    mapping=st.sampled_from([*MAPPINGS]),
)
def test_equal_to_the_slow_sampler(seed: int, fragments: list[int], kind: str, mapping: str) -> None:
    rng = np.random.default_rng(seed)
    scripts = [[random_script(rng) for _ in range(3)] for _ in range(2)]
    remaining = iter(scripts)
    runner = AgentRunner(
        Settings(env=lambda _: ScriptedEnv(next(remaining)), num_envs_per_env_runner=2), run_seed=3, first_env_index=4
    )
    ids = ["p"] if mapping == "shared" else ["p", "q"]
    spaces = runner.observation_spaces["a"], runner.action_spaces["a"]
    modules: dict[str, RLModule] = {module_id: module_for(*spaces, **MODULES[kind]).eval() for module_id in ids}
    static = None if mapping == "by episode" else MAPPINGS[mapping]
    runner.set_modules(MultiRLModule(modules), PolicyMap(AGENTS, ids, MAPPINGS[mapping]))

    def noise(module_id: str, slot: int) -> ActionNoise:
        more = () if static else (zlib.crc32(module_id.encode()),)
        return ActionNoise([numpy_stream(3, "action", 4 * 3 + slot, *more)])

    reference = Reference(
        [ScriptedEnv(of_env) for of_env in scripts],
        modules,
        lambda agent, e, number: static[agent] if static else "pq"[(number + e + 4 + AGENTS.index(agent)) % 2],
        noise,
    )
    for steps in fragments:
        rollouts, slots, stats = reference.sample(steps)
        got = runner.sample(steps)
        assert got.num_env_steps == 2 * steps
        assert rollouts.keys() == got.modules.keys()
        for module_id, expected in rollouts.items():
            assert_equal(expected, got.modules[module_id])
            assert got.slots[module_id].tolist() == [[4 + slot // 3, slot % 3] for slot in slots[module_id]]
        episodes = [got.stats[f"episode_{name}"].tolist() for name in ("returns", "lengths", "slots")]
        assert list(zip(*episodes, strict=True)) == stats.pop("episodes")
        for one in (got.stats, stats):  # agents that end in one step have no order
            one["module_returns"] = {name: sorted(totals) for name, totals in one.get("module_returns", {}).items()}
        for name in ("agent_returns", "agent_lengths", "module_returns", "module_steps", "rewards_before_acting"):
            assert got.stats[name] == stats.get(name, {}), name
