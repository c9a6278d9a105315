"""Imports go one way, `algorithms → rlmodule → catalog`, and nothing heavy is loaded before it is used."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import catalog_rl

ROOT = Path(catalog_rl.__file__).resolve().parent
ABOVE = {"catalog": {"rlmodule", "algorithms"}, "rlmodule": {"algorithms"}, "algorithms": set()}
NOT_SHIPPED = {"tests", "benchmarks", "examples"}
RAY = "rlmodule/distributed/ray_"
MAY_IMPORT_RAY = {f"{RAY}cluster.py", f"{RAY}process.py", f"{RAY}workers.py", "algorithms/ray_tune.py"}
LATE = (
    *("ray", "rich", "matplotlib", "safetensors", "tensorboard", "wandb", "mlflow", "ale_py", "pettingzoo"),
    "rlmodule.agents",
)


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@functools.cache
def imports(source: str) -> list[tuple[int, str, bool]]:
    """(line, top-level name, run when the module is imported) of every absolute import, also by `import_module`."""
    return [*found(parsed(source), top=True)]


def found(tree: ast.AST, top: bool) -> Iterator[tuple[int, str, bool]]:
    for node in ast.iter_child_nodes(tree):
        later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or is_for_type_checkers(node)
        yield from found(node, top and not later)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names = [node.module]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names = [node.args[0].value]
        for name in names:
            yield node.lineno, name.split(".")[0], top


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_imports_finds_every_form() -> None:
    source = (
        "import a.b, c\n"
        "from d.e import f\n"
        "from . import g\n"
        "def h():\n"
        "    import i\n"
        "    importlib.import_module('j.k')\n"
        "if TYPE_CHECKING:\n"
        "    import l\n"
    )
    found = [(name, top) for _, name, top in imports(source)]
    assert sorted(found) == [("a", True), ("c", True), ("d", True), ("i", False), ("j", False), ("l", False)]


@pytest.mark.parametrize("package", sorted(ABOVE))
def test_no_upward_imports(package: str) -> None:
    files = sources(package)
    assert files
    banned = ABOVE[package] | NOT_SHIPPED
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files
        for line, name, _ in imports(file.read_text())
        if name in banned
    ]
    assert not wrong, "\n".join(wrong)


def test_four_files_import_ray_and_lazily() -> None:
    wrong = [
        f"{path}:{line}"
        for package in ABOVE
        for file in sources(package)
        for line, name, top in imports(file.read_text())
        if name == "ray" and ((path := file.relative_to(ROOT).as_posix()) not in MAY_IMPORT_RAY or top)
    ]
    assert not wrong, f"Ray is imported only in {MAY_IMPORT_RAY}, inside functions; found in:\n" + "\n".join(wrong)


STATEMENTS = ["import catalog", "import rlmodule", "import algorithms", "from algorithms.ppo import PPOConfig"]
LOADED = f"""
import sys
for statement in {STATEMENTS}:
    exec(statement)
    print(*[name for name in {[*ABOVE, *LATE]} if name in sys.modules])
"""


def test_imports_load_no_package_above_and_nothing_heavy() -> None:
    """One statement after another, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lowest_first = ["catalog", "rlmodule", "algorithms"]
    expected = [lowest_first[:1], lowest_first[:2], lowest_first, lowest_first]
    assert [line.split() for line in done.stdout.splitlines()] == expected, "after each of " + "; ".join(STATEMENTS)


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("--version", 0), ("trian", 2)])
def test_the_shell_answers_before_anything_heavy_is_imported(word: str, code: int) -> None:
    script = """
import sys
from algorithms.shell import shell
code = shell()
print(*{"torch", "numpy", "gymnasium"} & {*sys.modules}, file=sys.stderr)
sys.exit(code)
"""
    command = [sys.executable, "-c", script, word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == ""


ROOMS = (
    "catalog.activations catalog.hooks",
    "catalog.checks catalog.copies",
    "catalog.settings",
    "catalog.model_config catalog.return_heads",
    "catalog.past catalog.rules",
    "catalog.base",
    "catalog.functions catalog.registry catalog.spaces",
    "catalog.encoders",
    "catalog.distributions",
    "catalog.actions",
    "catalog.decision_tree catalog.explain",
    "catalog.catalog",
    "catalog.critics",
    "rlmodule.env_names rlmodule.sealed_folder",
    "rlmodule.checkpoint rlmodule.encoding rlmodule.seeding rlmodule.settings",
    "rlmodule.data",
    "rlmodule.modules",
    "rlmodule.collective rlmodule.envs",
    "rlmodule.sampling rlmodule.learning",
    "rlmodule.agents rlmodule.distributed",
    "rlmodule.groups",
    "rlmodule.testing",
    "algorithms.ops algorithms.presets algorithms.settings",
    "algorithms.loggers algorithms.registry algorithms.replay",
    "algorithms.run",
    "algorithms.sections",
    "algorithms.config",
    "algorithms.multi_agent_config",
    "algorithms.episode_config",
    "algorithms.algorithm",
    "algorithms.data_algorithm",
    "algorithms.actor_critic algorithms.stream",
    "algorithms.off_policy",
    "algorithms.dqn algorithms.ppo algorithms.sac algorithms.td3",
    "algorithms.a2c algorithms.ddpg algorithms.impala algorithms.iql algorithms.marwil",
    "algorithms.appo algorithms.bc algorithms.recording",
    "algorithms.doctor algorithms.tuning",
    "algorithms.cli algorithms.ray_tune",
    "algorithms.shell",
)
"""The rooms of the house, lowest first: a room imports from the rows above it and from itself."""


def rank_of(module: str) -> tuple[int, str]:
    """The row and the name of the room that ``module`` is in."""
    for rank, row in enumerate(ROOMS):
        for room in row.split():
            if f"{module}.".startswith(f"{room}."):
                return rank, room
    raise AssertionError(f"{module} is in no room: add it to ROOMS")


@functools.cache
def modules() -> dict[str, Path]:
    """File of each module of the three packages, by its dotted name; packages without their ``__init__``."""
    files = [file for package in ABOVE for file in sources(package) if file.stem != "__init__"]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}


def imported_at_run_time(file: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of each import in ``file``, also within functions; those for type checkers alone left out."""
    pending: list[ast.AST] = [parsed(file.read_text())]
    while pending:
        node = pending.pop()
        if is_for_type_checkers(node):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name if name in modules() else node.module) for name in names)
        pending += ast.iter_child_nodes(node)


def test_rooms_import_one_way() -> None:
    wrong = []
    for module, file in modules().items():
        rank, room = rank_of(module)
        for line, name in imported_at_run_time(file):
            if name.split(".")[0] in ABOVE and name in modules():
                other_rank, other = rank_of(name)
                if other != room and other_rank >= rank:
                    wrong.append(f"{module}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_module_reaches_another_through_an_init() -> None:
    wrong = [
        f"{module}:{line} imports from {name}"
        for module, file in modules().items()
        for line, name in imported_at_run_time(file)
        if name.split(".")[0] in ABOVE and name not in modules()
    ]
    assert not wrong, "import from the module that defines it:\n" + "\n".join(wrong)
