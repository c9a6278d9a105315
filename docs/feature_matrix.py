"""Make feature-matrix.md, the spaces and settings that are tested together, from the cases that the tests run."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from tables import table_head, table_row

from catalog import (
    CNNEncoderConfig,
    ImpalaEncoderConfig,
    MLPEncoderConfig,
    SequenceEncoderConfig,
)
from catalog.explain.explain import short_space
from tests.algorithms import compatibility
from tests.algorithms.dqn import matrix as dqn
from tests.algorithms.ppo.matrix import (
    ACTIONS,
    MASKS,
    MEMORIES,
    OBSERVATIONS,
    REFUSED,
    SHARING,
    Case,
    Row,
    cases,
    choices,
    meetings,
    refused_mask,
)
from tests.algorithms.sac import matrix as sac
from tests.algorithms.td3 import matrix as td3

NETS = {
    MLPEncoderConfig: "MLP",
    CNNEncoderConfig: "CNN",
    ImpalaEncoderConfig: "CNN",
    SequenceEncoderConfig: "rows",
}

INTRODUCTION = """\
# Feature matrix

<!-- Written by `python docs/generated.py` from matrix.py of tests/algorithms/ppo, dqn, sac and td3; do not edit. -->

The spaces and settings that the tests run together. ✓ means that a run has both. – means that the combination is
refused; the footnote shows the error. An empty cell means that the catalog chooses another net for this space.

```sh
make test-matrix
```

![Algorithms against action spaces and features: green runs, red is refused.](pictures/feature-matrix.png)

**PPO**: {runs} runs hold every pair of features except two spaces, and {meetings} more updates let every observation
meet every action ([test_ppo_matrix.py](../tests/algorithms/ppo/test_ppo_matrix.py)). **[DQN](#dqn)**: {dqn_runs} runs
hold every pair ([test_dqn_matrix.py](../tests/algorithms/dqn/test_dqn_matrix.py)). **[SAC](#sac)**: {sac_runs} runs do
([test_sac_matrix.py](../tests/algorithms/sac/test_sac_matrix.py)), and **[TD3](#td3)**: {td3_runs} runs
([test_td3_matrix.py](../tests/algorithms/td3/test_td3_matrix.py)). Each run samples two envs that refuse an action
outside their space or against their mask, updates, saves, loads, and compares what the policy does step by step. For
PPO, log-probabilities before the first update also equal those recorded when acting. `make test` runs a part of these
cases, the next part after each commit; `make test-matrix` and `make check` run all.

**A2C, IMPALA and APPO** have PPO's nets. Each runs a fifth of PPO's cases, with every space, net and mask, and finds
the log-probabilities that were recorded when acting
([test_actor_critic_matrix.py](../tests/algorithms/test_actor_critic_matrix.py)).

- *Rows* is a GRU over the rows of a matrix; it remembers nothing from step to step.
- *Previous* is the previous action and reward as inputs, of the LSTM, the GRU or the attention if there is one.
- *Shared* and *separate* are the encoders of policy and value function.
- *Described by vectors*: [the observation has a vector for each action](parametric-actions.md).

[Several agents](several-agents.md): PPO, with memory or without, equals its run of one agent, and so do DQN
with prioritized replay, Rainbow and an LSTM, SAC and TD3
([test_multi_agent.py](../tests/algorithms/test_multi_agent.py),
[test_multi_agent_replay.py](../tests/algorithms/test_multi_agent_replay.py)).

"""

ALGORITHMS_NOTE = """\
What each algorithm takes; – is refused at build, by the error in the footnote. Several agents, memory and masks are
tried with the simplest actions that the algorithm takes, `Dict or Tuple` and autoregressive actions with two of these
([test_compatibility.py](../tests/algorithms/test_compatibility.py)). SAC, TD3 and DDPG need finite bounds of a `Box`;
SAC takes others with `custom_action_dist="DiagGaussian"`."""


def page() -> str:
    """The text of the page."""
    counts = {
        "runs": len(cases()),
        "meetings": len(meetings()),
        "dqn_runs": len(dqn.cases()),
        "sac_runs": len(sac.cases()),
        "td3_runs": len(td3.cases()),
    }
    introduction = INTRODUCTION.format(**counts)
    dqn_note = "*All* is double, dueling, distributional and noisy at once."
    replayed = [*_replayed("DQN", dqn, ("net",), dqn_note), *_replayed("SAC", sac, ("sharing",), "")]
    replayed += _replayed("TD3", td3, ("sharing",), "DDPG has the same.")
    return introduction + "\n".join(
        [*_algorithms(), *_observations(), *_actions(), *_settings(), *replayed, *_refused()]
    )


def _algorithms() -> list[str]:
    """The table of algorithms and features. Its notes have letters, those of the other tables numbers."""
    notes = dict[str, str]()
    heads = [f"[{name}]({feature.page})" for name, feature in compatibility.FEATURES.items()]
    lines = ["## Algorithms", "", ALGORITHMS_NOTE, "", *table_head("", *heads)]
    for algorithm, refused in compatibility.REFUSED.items():
        cells = [
            f"–[^{notes.setdefault(refused[name], 'abcdefghij'[len(notes)])}]" if name in refused else "✓"
            for name in compatibility.FEATURES
        ]
        lines.append(table_row(algorithm, *cells))
    return [*lines, "", *(f"[^{letter}]: {words} …" for words, letter in notes.items()), ""]


def _nets_of(observation: str) -> set[str]:
    """The nets that the tree takes for the parts of an observation."""
    catalog = Case(observation, "Discrete", "no memory", "shared", "no mask").catalog()
    configs = [type(node.result) for node in catalog.encoder_node.walk()]
    return {NETS[config] for config in configs if config in NETS}


def _columns() -> dict[str, Callable[[Case], bool]]:
    """Heading → whether a case counts for it."""
    nets = {observation: _nets_of(observation) for observation in OBSERVATIONS}
    columns: dict[str, Callable[[Case], bool]] = {
        net: lambda case, net=net: net in nets[case.observation] for net in dict.fromkeys(NETS.values())
    }
    memories = ("no memory", "LSTM", "GRU", "attention")
    columns |= {name: lambda case, name=name: case.memory.split(",")[0] == name for name in memories}
    columns |= {"previous": lambda case: "previous" in case.memory}
    columns |= {name: lambda case, name=name: case.sharing == name for name in SHARING}
    return columns | {"mask": lambda case: MASKS[case.mask]}


def _ticks(ran: Iterable[Case], columns: dict[str, Callable[[Case], bool]]) -> list[str]:
    ran = [*ran]
    return ["✓" if any(counts(case) for case in ran) else "" for counts in columns.values()]


def _observations() -> list[str]:
    columns = _columns()
    lines = ["## Observations", "", *table_head("Observation", "Space", *columns)]
    for name, row in OBSERVATIONS.items():
        ran = [case for case in (*cases(), *meetings()) if case.observation == name]
        lines.append(table_row(_titled(name, row), f"`{short_space(row.space)}`", *_ticks(ran, columns)))
    return [*lines, ""]


def _actions() -> list[str]:
    columns, notes = _columns(), dict[str, int]()
    lines = ["## Actions", "", *table_head("Action", "Space", *columns)]
    for name, row in ACTIONS.items():
        cells = _ticks([case for case in (*cases(), *meetings()) if case.action == name], columns)
        if not choices(row.space):
            text = refused_mask(name).message().replace(str(row.space), "this space")
            cells[-1] = f"–[^{notes.setdefault(text, len(notes) + 1)}]"
        lines.append(table_row(_titled(name, row), f"`{short_space(row.space)}`", *cells))
    return [*lines, "", *(f"[^{number}]: {text}" for text, number in notes.items()), ""]


def _settings() -> list[str]:
    both = [(sharing, mask) for sharing in SHARING for mask in MASKS]
    lines = ["## Nets", "", *table_head("Memory", *(f"{sharing}, {mask}" for sharing, mask in both))]
    ran = {(case.memory, case.sharing, case.mask) for case in cases()}
    lines += [table_row(memory, *("✓" if (memory, *pair) in ran else "" for pair in both)) for memory in MEMORIES]
    return [*lines, ""]


def _replayed(title: str, matrix: Any, own: tuple[str, ...], note: str) -> list[str]:
    """The tables of an algorithm with replay, from the cases of its ``matrix``; ``own`` names factors of its own."""
    columns = [(factor, level) for factor in ("memory", *own, "replay", "mask") for level in matrix.FACTORS[factor]]
    columns = [column for column in columns if column != ("mask", "no mask")]
    heads = [level.replace(", previous action and reward", ", previous") for _, level in columns]
    lines = [f"## {title}", "", f"{note} Memories are trained on sequences from replay.".strip(), ""]
    for factor in ("observation", "action"):
        lines += table_head(factor.title(), *heads)
        for name in matrix.FACTORS[factor]:
            ran = [vars(case) for case in matrix.cases() if vars(case)[factor] == name]
            ticks = ["✓" if any(case[other] == level for case in ran) else "" for other, level in columns]
            row = (OBSERVATIONS if factor == "observation" else ACTIONS)[name]
            lines.append(table_row(_titled(name, row), *ticks))
        lines.append("")
    return lines


def _refused() -> list[str]:
    lines = [
        "## Refused",
        "",
        "Where the catalog is made, before anything is built.",
        "",
        *table_head("What", "The error"),
    ]
    for name, refused in REFUSED.items():
        text = re.sub(r"(branch in the .* table) \(.*?\), got", r"\1 (…), got", refused.message())
        lines.append(table_row(name, text))
    return [*lines, ""]


def _titled(name: str, row: Row) -> str:
    settings = ", ".join(f"`{key}={value!r}`" for key, value in row.settings.items())
    return f"{name}: {settings}" if settings else name
