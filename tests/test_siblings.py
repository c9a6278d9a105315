"""A user's file or folder that hides one of our packages is named on import, in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

import catalog_rl

ROOT = Path(catalog_rl.__file__).resolve().parent
GUARD = "from catalog_rl import check_siblings\n\ncheck_siblings(__file__)\n"
# As `python script.py`, with `site` for site-packages; -I -S leaves out those that the tests themselves run in.
RUN = """
import runpy, sys
folder, site = sys.argv[1:]
sys.path[:0] = [folder, site]
runpy.run_path(folder + "/script.py", run_name="__main__")
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that stands for site-packages, with the guard module and three packages that hold nothing else."""
    site = tmp_path / "site"
    for name in catalog_rl.PACKAGES:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(GUARD)
    (site / "catalog_rl.py").write_text((ROOT / "catalog_rl.py").read_text())
    return site


def run(script: str, folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run `script` as a file in `folder`, which comes before `site` on its path, as a user's script does."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-I", "-S", "-c", RUN, str(folder), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_nothing_hidden(installed: Path, tmp_path: Path) -> None:
    done = run("import algorithms, rlmodule, catalog; print(catalog.__file__)", tmp_path / "user", installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed / "catalog" / "__init__.py")


@pytest.mark.parametrize("imported", ["algorithms", "rlmodule"])
def test_users_catalog_file(installed: Path, tmp_path: Path, imported: str) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "catalog.py").write_text("raise RuntimeError('the check must not import it')\n")
    done = run(f"import {imported}", user, installed)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: The package `catalog` of catalog-rl is hidden")
    for part in (str(installed / "catalog"), str(user / "catalog.py"), "Rename"):
        assert part in last


@pytest.mark.parametrize("script", ["import algorithms, catalog", "import catalog", "import rlmodule"])
def test_users_algorithms_folder(installed: Path, tmp_path: Path, script: str) -> None:
    user = tmp_path / "user"
    (user / "algorithms").mkdir(parents=True)
    (user / "algorithms" / "__init__.py").write_text("")
    done = run(script, user, installed)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"`import algorithms` finds {user / 'algorithms'}." in last
    assert f"ours is {installed / 'algorithms'}," in last


def test_folder_without_init_does_not_hide(installed: Path, tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / "algorithms").mkdir(parents=True)
    (user / "algorithms" / "notes.py").write_text("")
    done = run("import catalog, algorithms; print(algorithms.__file__)", user, installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed / "algorithms" / "__init__.py")


def test_folder_without_init_that_hides(installed: Path, tmp_path: Path) -> None:
    """Ours comes from a finder asked after the path, as in some editable installs: then even a bare folder hides it."""
    user = tmp_path / "user"
    (user / "algorithms").mkdir(parents=True)
    script = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "site = sys.path.pop(1)\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return PathFinder.find_spec(name, [site]) if path is None else None\n"
        "sys.meta_path.append(Finder)\n"
        "import catalog\n"
    )
    done = run(script, user, installed)
    assert done.returncode == 1
    assert f"`import algorithms` finds {user / 'algorithms'}." in done.stderr.strip().splitlines()[-1]


def test_missing_sibling_is_fine(installed: Path, tmp_path: Path) -> None:
    (installed / "algorithms" / "__init__.py").unlink()
    (installed / "algorithms").rmdir()
    done = run("import catalog", tmp_path / "user", installed)
    assert done.returncode == 0, done.stderr


def test_module_put_there_by_hand(installed: Path, tmp_path: Path) -> None:
    script = "import sys, types; sys.modules['catalog'] = types.ModuleType('catalog')\nimport rlmodule"
    done = run(script, tmp_path / "user", installed)
    assert "ImportError: The package `catalog` of catalog-rl is hidden" in done.stderr


def test_symlinked_root_is_ours(installed: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(installed, target_is_directory=True)
    done = run(
        f"import sys, catalog\nsys.path.insert(0, {str(link)!r})\nimport algorithms", tmp_path / "user", installed
    )
    assert done.returncode == 0, done.stderr
