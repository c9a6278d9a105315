"""Makes reference/configuration.md, every setting of every algorithm, from the fields of the configs."""

from collections.abc import Iterable, Iterator

from tables import table_head, table_row

from algorithms import AlgorithmConfig
from algorithms.cli.exits import kebab
from algorithms.cli.flags import SpecFlags
from algorithms.registry import ALGORITHMS, config_class
from catalog.checks import type_text
from catalog.settings import Setting, section_docs, settings_of

INTRODUCTION = """\
# Settings of the algorithms

<!-- Written by `python docs/generated.py` from the fields of the configs; do not edit. -->

Every setting of a config, by section. A section is a method of the config:

```python
from algorithms.ppo import PPOConfig

config = PPOConfig().environment("CartPole-v1").training(lr=1e-3)
config.lr = 1e-3  # does the same
```

A value of another type, or out of range, is refused where it is set. How configs are used:
[configuration](../configuration.md).

A *schedule* is a number, or points `[[0, value], [env_step, value], ...]`: straight lines between them,
and the last value afterwards. The flag is that of [`rlmodule train`](../command-line.md); classes and functions are
`my_module:Name`.
"""

SECTIONS = {
    "environment": "[environments](../environments.md)",
    "env_runners": "[from a laptop to a cluster](../laptop-to-cluster.md)",
    "learners": "[from a laptop to a cluster](../laptop-to-cluster.md) and [GPUs](../gpu.md)",
    "rl_module": "[the catalog](../catalog.md), and [the settings of the nets](../model-settings.md)",
    "evaluation": "[evaluate and resume](../evaluate-and-deploy.md)",
    "callbacks": "[callbacks](../callbacks.md)",
    "reporting": "[loggers](../loggers.md) and [metrics](../metrics.md)",
    "fault_tolerance": "[the guide](../laptop-to-cluster.md#when-something-fails) and [reliability](../reliability.md)",
    "debugging": "[reproducibility](../reproducibility.md)",
    "replay": "[off-policy algorithms](../off-policy.md)",
}
"""Section → where more is told."""

GUIDES = {
    "PPO": "ppo.md",
    "A2C": "a2c.md",
    "IMPALA": "streams.md",
    "APPO": "streams.md",
    "DQN": "dqn.md",
    "SAC": "sac.md",
    "TD3": "td3.md",
    "DDPG": "td3.md",
    "BC": "data.md",
    "IQL": "offline.md",
    "MARWIL": "data.md",
}
_SCHEDULE = "float | [[0, value], [env_step, value], ...]"


def page() -> str:
    """The text of the page."""
    algorithms = {name: config_class(name) for name in reversed(ALGORITHMS)}
    shared = settings_of(AlgorithmConfig)
    lines = [INTRODUCTION, "## Every algorithm", ""]
    for section, items in _by_section(shared.values()):
        lines += [f"### {section}", "", *_section(AlgorithmConfig, section, items, algorithms)]
    for name, config in algorithms.items():
        lines += [f"## {name}", "", f"In addition to the settings above. Guide: [{name}](../{GUIDES[name]}).", ""]
        own = [item for item in settings_of(config).values() if item.name not in shared]
        for section, items in _by_section(own):
            lines += [f"### {name}: {section}", "", *_section(config, section, items, {name: config})]
    return "\n".join(lines)


def _by_section(items: Iterable[Setting]) -> Iterator[tuple[str, list[Setting]]]:
    items = [*items]
    for section in dict.fromkeys(item.section for item in items):
        yield section, [item for item in items if item.section == section]


def _section(
    config: type[AlgorithmConfig], section: str, items: list[Setting], algorithms: dict[str, type[AlgorithmConfig]]
) -> list[str]:
    more = f" See {SECTIONS[section]}." if section in SECTIONS else ""
    lines = [
        f"{section_docs(config)[section]}{more}",
        "",
        *table_head("Setting and flag", "Type", "Range", "Default", "What it is"),
    ]
    for item in items:
        kind = type_text(item.hint).replace(_SCHEDULE, "schedule")
        lines.append(
            table_row(
                f"`{item.name}`<br>{_flag(item)}",
                f"`{kind}`",
                str(item.bounds),
                _defaults(item.name, algorithms),
                item.doc,
            )
        )
    return [*lines, ""]


def _defaults(name: str, algorithms: dict[str, type[AlgorithmConfig]]) -> str:
    """The default, or those of each algorithm where they differ."""
    values = {algorithm: f"`{getattr(config(), name)!r}`" for algorithm, config in algorithms.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{algorithm} {value}" for algorithm, value in values.items())


def _flag(item: Setting) -> str:
    """Return what to type for a setting in a shell."""
    if item.name == "env":
        return "`ENV`"
    if item.name == "model_config":
        return "[a flag for each](../model-settings.md)"
    names = settings_of(SpecFlags) if item.name == "rl_module_spec" else [item.name]
    return " ".join(f"`--{kebab(name)}`" for name in names)
