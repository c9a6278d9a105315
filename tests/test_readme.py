"""What README, CONTRIBUTING, docs/ and examples/ show is true: snippets run, print what is shown, names exist.

How a page is read: the ```python blocks of one page run in order in one namespace, as one script would. A ```text block
right after one is what it prints, or, if ``<!-- raises -->`` stands before the block, the error it ends with; there
``...`` stands for anything. ``<!-- no-run -->`` before a block leaves it out. ```sh blocks are checked, not run. Those
that ask for processes share one Ray.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from algorithms import AlgorithmConfig
from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.cli import main as rlmodule
from algorithms.cli.compare import CompareFlags
from algorithms.cli.doctor import DoctorFlags
from algorithms.cli.evaluate import EvaluateFlags
from algorithms.cli.export import ExportFlags
from algorithms.cli.flags import parse
from algorithms.cli.inspect import InspectFlags
from algorithms.cli.main import COMMANDS as SUBCOMMANDS
from algorithms.cli.plot import PlotFlags
from algorithms.cli.push import PushFlags
from algorithms.cli.train import train_plan
from algorithms.cli.tune import tune_plan
from algorithms.dqn import DQNCatalog, DQNConfig, DQNModelConfig
from algorithms.impala import IMPALAConfig
from algorithms.loggers.jsonl import JsonlLogger
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from algorithms.registry import ALGORITHMS
from algorithms.run.callbacks import Callbacks
from algorithms.run.run_folder import flatten
from algorithms.tuning.search import check_search, parse_search
from catalog import (
    Catalog,
    DefaultModelConfig,
    RuleTable,
    action_converter_rules,
    action_distribution_rules,
    encoder_rules,
)
from catalog.registry import Registry, distributions, models
from catalog.settings import settings_of
from tests.rlmodule.agents.envs import CartPoles

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "tests/demands.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
COMMANDS = [run for path in EXAMPLES for run in re.findall(r"``python (examples/[^`]+)``", path.read_text("utf-8"))]
"""How the examples say they are run, without ``python``; one that does not is a part of another next to it."""
TABLES: tuple[RuleTable[Any], ...] = (encoder_rules, action_distribution_rules, action_converter_rules)
REGISTRIES: tuple[Registry[Any], ...] = (models, distributions)


@dataclass
class Block:
    """One fenced block: its language, its text, the line it starts at, and what stands right before it."""

    language: str
    text: str
    line: int
    mark: str
    follows_python: bool


def blocks_of(page: Path) -> list[Block]:
    lines, found, i = page.read_text(encoding="utf-8").splitlines(), [], 0
    while i < len(lines):
        if not (match := re.fullmatch(r"```(\w*)", lines[i])):
            i += 1
            continue
        end = lines.index("```", i + 1)
        before = [line for line in lines[:i] if line.strip()]
        mark = before[-1] if before and before[-1].startswith("<!--") else ""
        follows = bool(found) and bool(before) and before[-1] == "```" and found[-1].language == "python"
        found.append(Block(match[1], "\n".join(lines[i + 1 : end]), i + 1, mark, follows))
        i = end + 1
    return found


def prose_of(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


QUICK = {
    "rollout_fragment_length": None,
    "minibatch_size": None,
    "num_epochs": 1,
    "num_steps_sampled_before_learning_starts": 256,
    "num_env_steps_per_iteration": 448,
    "training_intensity": 4.0,
    "evaluation_duration": 2,
}
"""Settings, of those a config has, with which a snippet takes a moment."""


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A fresh ``__main__`` in a folder of its own, where every run is a tiny one; what it registers is undone."""
    real_build = AlgorithmConfig.build

    def tiny_build(config: Any) -> Any:
        config.validate()  # what the user wrote, before it is made small
        tiny = config.copy()
        num_envs = max(1, tiny.num_env_runners) * tiny.num_envs_per_env_runner
        quick = QUICK | {"train_batch_size_per_learner": 8 * num_envs}
        return real_build(
            tiny.update({name: value for name, value in quick.items() if name in settings_of(type(tiny))})
        )

    module = ModuleType("__main__")
    rules, registry, threads = [list(table._rules) for table in TABLES], dict(gym.registry), torch.get_num_threads()
    algorithms = dict(ALGORITHMS)
    named = [dict(known._known) for known in REGISTRIES]
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(AlgorithmConfig, "build", tiny_build)
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(tmp_path)
    yield module
    for table, saved in zip(TABLES, rules, strict=True):
        table._rules[:] = saved
    for known, saved in zip(REGISTRIES, named, strict=True):
        known._known = saved
    ALGORITHMS.clear()
    ALGORITHMS.update(algorithms)
    # what a library registers when it is imported stays: it is not imported again
    of_libraries = {name: spec for name, spec in gym.registry.items() if isinstance(spec.entry_point, str)}
    gym.registry.clear()
    gym.registry.update(of_libraries | registry)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, handler)  # Tune leaves its own


def asks_for_processes(*codes: str) -> bool:
    return any(re.search(r"\bnum_(env_runners|learners)=[^0]|^from ray import", code, re.M) for code in codes)


def page_asks_for_processes(page: Path) -> bool:
    return asks_for_processes(*[b.text for b in blocks_of(page) if b.language == "python" and not b.mark])


def example_asks_for_processes(command: str) -> bool:
    return asks_for_processes((ROOT / command.split()[0]).read_text(encoding="utf-8"))


PAGES_OF_RAY = [*filter(page_asks_for_processes, PAGES)]
PAGES_ALONE = [page for page in PAGES if page not in PAGES_OF_RAY]
COMMANDS_OF_RAY = [*filter(example_asks_for_processes, COMMANDS)]
COMMANDS_ALONE = [command for command in COMMANDS if command not in COMMANDS_OF_RAY]


def execute(code: str, path: Path, line: int, module: ModuleType) -> str:
    """Run ``code`` in ``module`` as if it stood at ``line`` of ``path``; returns what it printed."""
    code = re.sub(r"num_env_steps( ?)=( ?)[\d_]+", r"num_env_steps\1=\g<2>64", code)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\n" * line + code, str(path), "exec"), vars(module))
    return out.getvalue()


def assert_shown(shown: str, came: str, where: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(f"{shown}\n", f"{came}\n", flags), (
        f"{where} shows\n{shown}\nnot\n{came}"
    )


def run_snippets(page: Path, script: ModuleType) -> None:
    blocks = blocks_of(page)
    for block, following in zip_longest(blocks, blocks[1:]):
        if block.language != "python" or "no-run" in block.mark:
            continue
        shown = following.text if following and following.language == "text" and following.follows_python else None
        where = f"{page.name}:{block.line}"
        if "raises" in block.mark:
            with pytest.raises(Exception) as caught:  # noqa: PT011  # the message is compared
                execute(block.text, page, block.line, script)
            came = "".join(traceback.format_exception_only(caught.value))
            assert shown is not None, f"{where} raises: show the message in a text block"
        else:
            came = execute(block.text, page, block.line, script)
        if shown is not None:
            assert_shown(shown, came, where)


def run_example(command: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *arguments = command.split()
    example = ROOT / name
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(example.parent)  # as python does
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert execute(text, example, 0, script)  # each ends by telling something


@pytest.mark.parametrize("page", PAGES_ALONE, ids=names(PAGES_ALONE))
def test_snippets_run_and_print_what_is_shown(page: Path, script: ModuleType) -> None:
    run_snippets(page, script)


@pytest.mark.parametrize("command", COMMANDS_ALONE)
def test_examples_run(command: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run_example(command, script, monkeypatch)


@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize("page", PAGES_OF_RAY, ids=names(PAGES_OF_RAY))
def test_snippets_that_ask_for_processes_run_and_print_what_is_shown(page: Path, script: ModuleType) -> None:
    run_snippets(page, script)


@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize("command", COMMANDS_OF_RAY)
def test_examples_that_ask_for_processes_run(command: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run_example(command, script, monkeypatch)


def test_every_example_is_run_and_named_in_the_index() -> None:
    run, index = {ROOT / command.split()[0] for command in COMMANDS}, ROOT / "examples" / "README.md"
    listed = re.findall(r"^\| \[`[\w/]+\.py`\]\(([\w/]+\.py)\) \| \S", index.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(path.relative_to(index.parent).as_posix() for path in run)
    for part in set(EXAMPLES) - run:
        users = [path for path in run if path.parent == part.parent]
        assert any(f"\nfrom {part.stem} import " in path.read_text(encoding="utf-8") for path in users)


# --- looking up -------------------------------------------------------------------------------------------------------


def commands_of(page: Path) -> list[str]:
    lines = [line for block in blocks_of(page) if block.language == "sh" for line in block.text.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


STAND_INS: dict[str, Any] = {
    "MyConfig": DQNConfig,
    "MyCatalog": PPOCatalog,
    "MyModule": PPOModule,
    "MyLearner": PPOLearner,
    "MyLogger": JsonlLogger,
    "MyCallbacks": Callbacks,
    "MyEnv": CartPoleEnv,
    "make_env": lambda env_config: CartPoleEnv(),
    "CartPoles": CartPoles,
    "sides": lambda agent, episode: "left",
    "watch": lambda **arguments: None,
}
"""What shown commands name in modules of the user's, which are called ``my_...``."""


@pytest.fixture
def modules_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for page in PAGES:
        for name in re.findall(r"\b(my_\w+):\w", "\n".join(commands_of(page))):
            module = ModuleType(name)
            vars(module).update(STAND_INS)
            monkeypatch.setitem(sys.modules, name, module)


def check_command(command: str) -> None:
    """That a shown command line names things that exist."""
    words = shlex.split(command, comments=True)
    program = words[0].rpartition("/")[2]
    match program, words[1:]:
        case "make", targets:
            assert set(targets) <= make_targets(), command
        case "rlmodule", ["train", *args] if "--help" not in args:
            if "--load" in args:  # no such run: its flags are those of any other, but for what it is and may import
                for only in {"--load", "--allow"} & {*args}:
                    place = args.index(only)
                    values = takewhile(lambda word: not word.startswith("--"), args[place + 1 :])
                    del args[place : place + 1 + len([*values])]
                args = ["ppo", "CartPole-v1", *args]
            train_plan(args).config.validate()
        case "rlmodule", [
            ("evaluate" | "export" | "push" | "plot" | "compare" | "inspect" | "doctor") as name,
            *args,
        ] if "--help" not in args:
            known = {"evaluate": EvaluateFlags, "export": ExportFlags, "push": PushFlags}
            known |= {"plot": PlotFlags, "compare": CompareFlags, "inspect": InspectFlags, "doctor": DoctorFlags}
            flags = known[name]
            parse(flags, f"rlmodule {name}", "", args, count=range(1, len(args) + 1))
        case "rlmodule", ["tune", *args]:
            plan = tune_plan(args)
            check_search(plan.config, parse_search(plan.search))
        case "rlmodule", args:
            assert rlmodule(args) == 0, command
        case ".", [path]:
            assert path == ".venv/bin/activate", command
        case "python", ["-m", module, *args]:
            source = ROOT.joinpath(*module.split(".")).with_suffix(".py")
            assert all(flag in source.read_text() for flag in args if flag.startswith("--")), command
        case "python", [path, *_]:
            assert (ROOT / path).is_file(), command
        case "pip", ["install", *args]:
            listed = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
            extras = {extra for arg in args for found in re.findall(r"\[(.+)\]", arg) for extra in found.split(",")}
            assert extras <= set(re.findall(r"^(\w+) = \[", listed, re.M)), command
        case "tensorboard" | "wandb" | "ray" | "export", _:
            pass  # not ours
        case _:
            pytest.fail(f"no check for {command!r}")


@pytest.mark.usefixtures("modules_of_the_user")
@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_commands_exist(page: Path) -> None:
    for command in commands_of(page):
        check_command(command)
    assert set(re.findall(r"`make ([a-z-]+)`", prose_of(page))) <= make_targets()


def test_every_command_of_the_shell_is_listed() -> None:
    page = prose_of(ROOT / "docs" / "command-line.md")
    assert set(re.findall(r"^- \[?`([a-z]+)", page, re.M)) == SUBCOMMANDS.keys()


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    """Links to files and headings of ours; one that is called `a.b` and leads to code leads to a definition of b."""
    for text, target in re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", prose_of(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors_of(file), f"{page.name}: {target}"
        if file.suffix == ".py" and re.fullmatch(r"`[\w.]+\w(\(\))?`", text) and not text.endswith(".py`"):
            name = text.strip("`()").rpartition(".")[2]
            assert re.search(rf"(def|class) {name}\b|^ *{name}\b.*=", file.read_text(), re.M), f"{page.name}: {text}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_all_rows_of_a_table_have_as_many_cells(page: Path) -> None:
    """A bar in code splits a cell too, as GitHub reads tables."""
    for table in re.findall(r"(?:^\|.*\n)+", prose_of(page), re.M):
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1, f"{page.name}: {table[:80]}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_tests_that_are_named_exist(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
        assert re.search(rf"^(def|class) {name}\b", (ROOT / file).read_text(), re.M), f"{page.name}: {file}::{name}"


def test_the_first_screen_leads_to_the_loss_and_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](algorithms/ppo/learner.py)" in readme
    assert "](benchmarks/README.md)" in readme


def test_the_share_of_rllibs_code_is_that_of_the_table() -> None:
    readme, why = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/why.md"))
    ours, theirs = (
        int(re.findall(rf"^\| {library} \| ([\d,]+) \|", why, re.M)[0].replace(",", ""))
        for library in ("here", "RLlib")
    )
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    counted = int(re.findall(r"^\| lines of code, [^|]+\| ([\d,]+) \|", contributing, re.M)[0].replace(",", ""))
    assert ours == round(counted, -3)  # as the table of the same code says
    assert f"in {ours:,} code lines, not {theirs:,}" in readme


@pytest.mark.parametrize(
    ("page", "config", "model_config", "catalog_class"),
    [
        ("ppo.md", PPOConfig(), DefaultModelConfig(), PPOCatalog),
        ("dqn.md", DQNConfig(), DQNModelConfig(), DQNCatalog),
    ],
    ids=["PPO", "DQN"],
)
def test_defaults_that_are_shown_are_those_of_the_code(
    page: str, config: AlgorithmConfig, model_config: DefaultModelConfig, catalog_class: type[Catalog]
) -> None:
    settings = vars(model_config) | {name: getattr(config, name) for name in settings_of(type(config))}
    table = prose_of(ROOT / "docs" / page).partition("## Defaults, and RLlib's")[2]
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", table, re.M))
    assert len(shown) > 15
    for name, text in shown.items():
        if text == "by action space":  # None: PPOCatalog decides
            assert settings[name] is None
        elif name in ("vf_share_layers", "normalize_observations"):  # None: the catalog decides
            assert settings[name] is None
            decided = catalog_class(gym.spaces.Discrete(2), gym.spaces.Discrete(2)).model_config
            assert text == str(getattr(decided, name))
        elif text.isalpha() and text not in ("None", "True", "False"):
            assert settings[name] == text
        else:
            default = settings[name]
            assert (list(default) if isinstance(default, tuple) else default) == ast.literal_eval(text), name


# --- the loop ---------------------------------------------------------------------------------------------------------

LOOP = ROOT / "docs" / "the-loop.md"


METRICS = ROOT / "docs" / "metrics.md"


def described_metrics(algorithm: str) -> dict[str, str]:
    """Path → meaning of what metrics.md says that an algorithm reports."""
    found: dict[str, str] = {}
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", prose_of(METRICS), re.M | re.S):
        for path, meaning in re.findall(r"^\| `([\w/]+)` \| (.+) \|$", text, re.M):
            if path.startswith("workers/"):
                continue  # of whatever algorithm: see below
            of_another = title.startswith("Learning: ") and algorithm not in re.findall(r"\w+", title)
            of = {*meaning.partition(": ")[0].split(", ")} & ALGORITHMS.keys()
            if not of_another and (not of or algorithm in of):
                found[path] = meaning
    return found


def log_under_name(algorithm: Any, **event: Any) -> None:
    algorithm.metrics.log_value("NAME", 1.0)


@pytest.mark.parametrize(
    ("config", "asked_for"),
    [
        (PPOConfig(), {"use_kl_loss": True, "entropy_coeff": [[0, 0.1], [1000, 0]], "rnd_coeff": 0.5}),
        (A2CConfig(), {"entropy_coeff": [[0, 0.1], [1000, 0]]}),
        (IMPALAConfig(), {"entropy_coeff": [[0, 0.1], [1000, 0]]}),
        (APPOConfig(), {"entropy_coeff": [[0, 0.1], [1000, 0]]}),
        (DQNConfig(), {"prioritized_replay": True}),
    ],
    ids=["PPO", "A2C", "IMPALA", "APPO", "DQN"],
)
def test_every_metric_is_described_and_every_described_one_is_there(
    config: AlgorithmConfig, asked_for: dict[str, Any], script: ModuleType
) -> None:
    described = described_metrics(config.algo_class.__name__)
    described.pop("stopped_by")  # learn() alone returns it
    conditional = {path for path, meaning in described.items() if meaning.startswith("with `")}
    rare = {path for path, meaning in described.items() if meaning.startswith(("if any failed", "in a run from data"))}
    own = {path for path in described if path.endswith("/NAME")} | rare
    plain = config.copy().environment("CartPole-v1").evaluation(evaluation_interval=1).debugging(seed=1)
    with plain.build() as algorithm:
        reported = dict(flatten(algorithm.train()))
    assert sorted(reported) == sorted(described.keys() - conditional - own)
    # samples are those of training; that one of its episodes ends is not sure, but those of an evaluation do
    full = plain.copy().update(asked_for).callbacks(on_sample_end=log_under_name, on_episode_end=log_under_name)
    with full.build() as algorithm:
        reported = dict(flatten(algorithm.train()))
    assert sorted(reported) == sorted(described.keys() - rare)


@pytest.mark.usefixtures("ray_started")
def test_every_metric_of_workers_is_described_and_every_described_one_is_there(script: ModuleType) -> None:
    described = re.findall(r"^\| `(workers/[\w/]+)` \| ", prose_of(METRICS), re.M)
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=1).learners(num_learners=1)
    with config.build() as algorithm:
        algorithm.env_runner_group.num_env_steps_lost["CAUSE"] += 1
        reported = [path for path, _ in flatten(algorithm.train()) if path.startswith("workers/")]
    assert sorted(reported) == sorted(described)


def test_the_frames_are_those_that_are_listed(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[list[str]] = []
    real = torch.Tensor.backward

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        stacks.append([frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe(1))])
        real(loss, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    with PPOConfig().environment("CartPole-v1").build() as algorithm:
        algorithm.train()
    # a comprehension is a frame of its own up to Python 3.11, but none that a reader counts
    frames = [name for name in stacks[0][: stacks[0].index("train") + 1][::-1] if not name.startswith("<")]
    listed = re.findall(r"^\d\. \[`(?:\w+\.)+(\w+)`\]", prose_of(LOOP), re.M)
    assert listed == frames
    assert len(frames) <= 6
