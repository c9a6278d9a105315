"""Makes feature-matrix.md, what PPO is tested with, from the cases that the tests run."""

import re
from collections.abc import Callable, Iterable

from tables import table_head, table_row

from catalog import (
    CNNEncoderConfig,
    ImpalaEncoderConfig,
    MLPEncoderConfig,
    SequenceEncoderConfig,
)
from catalog.explain.explain import short_space
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

NETS = {
    MLPEncoderConfig: "MLP",
    CNNEncoderConfig: "CNN",
    ImpalaEncoderConfig: "CNN",
    SequenceEncoderConfig: "rows",
}

INTRODUCTION = """\
# Feature matrix

<!-- Written by `python docs/generated.py` from tests/algorithms/ppo/matrix.py; do not edit. -->

What PPO is tested with, all of it together. A run of
[test_ppo_matrix.py](../tests/algorithms/ppo/test_ppo_matrix.py) builds the algorithm, samples two environments that
refuse an action outside their space or against their mask, updates, saves, loads, and compares: distribution inputs,
values, and what the policy does step by step, with its states. Log-probabilities that training computes before the
first update are those recorded when acting. {runs} runs hold every pair of features but those of two spaces.
{meetings} more updates, on made-up data, let every observation meet every action.

- ✓ is one of these runs, or updates, with both.
- – is refused where it is made; the footnote is what the error says.
- An empty cell: the tree takes another net for this space.
- *Rows* is a GRU over the rows of a matrix; it remembers nothing from step to step.
- *Previous* is the previous action and reward as inputs, of the LSTM, the GRU or the attention if there is one.
- *Shared* and *separate* are the encoders of policy and value function.

"""


def page() -> str:
    """The text of the page."""
    introduction = INTRODUCTION.format(runs=len(cases()), meetings=len(meetings()))
    return introduction + "\n".join([*_observations(), *_actions(), *_settings(), *_refused()])


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
