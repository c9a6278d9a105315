"""What a notebook shows: the example runs, runs show their settings, and names are completed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import catalog_rl
from algorithms.ppo import PPOConfig
from catalog.settings import settings_of

NOTEBOOK = Path(catalog_rl.__file__).resolve().parent / "examples" / "first_hour.ipynb"


def test_the_example_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_example_runs(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown, stopped_by = code[0].outputs
    assert "evaluation" in shown.data["text/plain"]
    assert stopped_by.data["text/plain"] == "'target'"
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell.outputs) == 2
    assert (tmp_path / "saved").is_dir()


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """The client of a kernel that has a config and a run."""
    manager = pytest.importorskip("jupyter_client.manager", exc_type=ImportError)
    pytest.importorskip("ipykernel")
    started, client = manager.start_new_kernel(kernel_name="python3")
    try:
        ready = "from algorithms.ppo import PPOConfig\nconfig = PPOConfig(env='CartPole-v1', seed=7).training(lr=0.001)"
        run(client, f"{ready}\nalgo = config.build()\nimport algorithms")
        yield client
    finally:
        client.stop_channels()
        started.shutdown_kernel(now=True)


def run(client: Any, code: str) -> list[str]:
    """Run ``code`` in a kernel and return the texts that it shows."""
    shown: list[str] = []

    def keep(message: Any) -> None:
        content = message["content"]
        shown.append(content["data"]["text/plain"] if "data" in content else content.get("text", ""))

    reply = client.execute_interactive(code, timeout=300, output_hook=keep)
    assert reply["content"]["status"] == "ok", reply["content"]
    return [text for text in shown if text]


def test_a_run_and_a_config_show_what_differs_from_the_defaults(kernel: Any) -> None:
    count = len(settings_of(PPOConfig))
    settings = f"PPOConfig(env='CartPole-v1', lr=0.001, seed=7)  # to_dict() has all {count} settings"
    assert run(kernel, "print(config)") == [f"{settings}\n"]
    assert run(kernel, "display(algo)") == [f"<PPO on CartPole-v1, seed 7, 0 env steps>\n{settings}"]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("config.train", "training"),
        ("config.training(minib", "minibatch_size="),
        ("config.training(lr=1e-3).env", "environment"),
        ("algo.le", "learn"),
        ("algo.learn(num", "num_env_steps="),
        ("algo.policy.a", "act"),
        ("algorithms.Alg", "AlgorithmConfig"),
    ],
)
def test_names_are_completed(kernel: Any, typed: str, completed: str) -> None:
    reply = kernel.complete(typed, len(typed), reply=True, timeout=300)
    assert completed in reply["content"]["matches"]
