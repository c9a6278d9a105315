"""Check the files of a wheel, install it into a fresh environment, and use it from a folder outside the project.

``python tests/release.py dist/catalog_rl-*.whl``; ``make release`` calls it.
"""

import email
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import catalog, rlmodule, algorithms
from algorithms import Algorithm
from algorithms.dqn import DQNConfig

assert all("site-packages" in package.__file__ for package in (catalog, rlmodule, algorithms))
config = DQNConfig().environment("CartPole-v1").training(num_steps_sampled_before_learning_starts=500)
with config.build() as algo:
    algo.train()
    algo.save("saved")
with Algorithm.from_checkpoint("saved") as algo:
    algo.evaluate()
"""


def check_files(wheel: Path) -> None:
    """Raise unless ``wheel`` holds every file of the library, its license and its readme, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        info = next(name.partition("/")[0] for name in packed if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    library = {"catalog_rl.py"}
    for package in ("catalog", "rlmodule", "algorithms"):
        files = [*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.txt"), ROOT / package / "py.typed"]
        library.update(path.relative_to(ROOT).as_posix() for path in files)
    code = {name for name in packed if not name.startswith(info)}
    assert code == library, f"missing: {sorted(library - code)}, too many: {sorted(code - library)}"
    assert f"{info}/licenses/LICENSE" in packed
    assert metadata.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    print(f"==> {wheel.name}: {metadata['Name']} {metadata['Version']}, {len(library)} files", flush=True)


def main(wheel: Path) -> None:
    check_files(wheel)
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        work, env = Path(folder, "work"), Path(folder, "env")
        work.mkdir()
        venv.create(env, with_pip=True)

        def run(program: str, *arguments: str) -> None:
            print("==>", Path(program).name, *arguments, flush=True)
            subprocess.run([env / "bin" / program, *arguments], cwd=work, check=True)

        run("python", "-m", "pip", "install", "--quiet", str(wheel), "-c", str(ROOT / "constraints.txt"))
        run("rlmodule", "list")
        run("rlmodule", "train", "ppo", "CartPole-v1", "--num-env-steps", "20000", "--run-dir", "run")
        run("rlmodule", "evaluate", "run", "--episodes", "2")
        run("rlmodule", "plot", "run", "--out", "curve.png")
        run("python", "-c", SCRIPT)
        run("python", str(ROOT / "examples" / "train_ppo.py"))
    print(f"{wheel.name} works in a fresh environment")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
