"""``rlmodule inspect``: what it shows of a checkpoint, and what it says where there is none that can be read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from algorithms import Algorithm
from algorithms.cli import main
from algorithms.cli.checkpoints import find_checkpoint
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.run.saved_settings import default_settings, learning_settings, plain_settings
from algorithms.run.text import return_text
from catalog import DefaultModelConfig
from rlmodule import RLModuleSpec
from rlmodule.checkpoint import save_checkpoint
from tests.checkpoints import replace, rewrite


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["inspect", *args]) == 0
    return capsys.readouterr().out


def table(text: str, heading: str) -> dict[str, list[str]]:
    """The rows below a heading: first column → the others."""
    rows = text.partition(f"{heading}\n")[2].partition("\n\n")[0].splitlines()
    return {cells[0]: cells[1:] for cells in (re.split(" {2,}", row.strip()) for row in rows)}


# --- what it shows ----------------------------------------------------------------------------------------------------


def test_it_tells_where_a_checkpoint_comes_from(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, str(trained))
    with Algorithm.from_checkpoint(trained / "checkpoint", on_train_result=None, run_dir=None) as algorithm:
        best, returns = algorithm.metrics.best_evaluation, algorithm.metrics.get_state()["returns"]
    facts = table(text, "PPO on CartPole-v1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", facts.pop("saved")[0])
    assert re.fullmatch(r"\d+\.\d s", facts.pop("time")[0])
    assert facts == {
        "checkpoint": [str(trained / "checkpoint")],
        "seed": ["1"],
        "env steps": ["128"],
        "iterations": ["2"],
        "updates": ["4"],
        "episodes": [str(len(returns))],
        "return": [f"{return_text(sum(returns) / len(returns))}, mean of the last {len(returns)} episodes"],
        "best evaluation": [return_text(best or 0.0)],
    }


def test_it_tells_the_settings_that_differ(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading = "Settings that differ from the defaults (--all shows all)"
    shown = table(printed(capsys, str(trained / "checkpoint")), heading)
    conftest = __name__.rpartition(".")[0] + ".conftest"
    assert shown == {
        "env": ["CartPole-v1"],
        "num_envs_per_env_runner": ["4"],
        "train_batch_size_per_learner": ["64"],
        "evaluation_interval": ["1"],
        "evaluation_duration": ["2"],
        "on_train_result": [f"{conftest}.trained.<locals>.<lambda> (not saved)"],
        "run_dir": [str(trained)],
        "seed": ["1"],
        "minibatch_size": ["32"],
        "num_epochs": ["1"],
        "model_config.fcnet_hiddens": ["[8]"],
    }
    everything = table(printed(capsys, str(trained / "checkpoint"), "--all"), "Settings")
    assert everything["gamma"] == ["0.99"]
    assert everything["model_config.fcnet_activation"] == ["tanh"]
    assert shown.items() <= everything.items()


def test_it_tells_the_nets_with_the_parameters_in_each_part(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, str(trained))
    module = text.partition("Module default_policy: PPOModule\n")[2].partition("\n\n")[0]
    assert module.splitlines() == [
        "  encoder.actor_encoder.linears.0.weight   8 × 4   32",
        "  encoder.actor_encoder.linears.0.bias     8        8",
        "  encoder.critic_encoder.linears.0.weight  8 × 4   32",
        "  encoder.critic_encoder.linears.0.bias    8        8",
        "  pi_head.linears.0.weight                 2 × 8   16",
        "  pi_head.linears.0.bias                   2        2",
        "  vf_head.linears.0.weight                 1 × 8    8",
        "  vf_head.linears.0.bias                   1        1",
        "  value_normalizer.mean                             0",
        "  value_normalizer.std                              0",
        "  value_normalizer.count                            0",
        "  parameters in all                               107",
    ]


def test_it_counts_the_parameters_that_the_module_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = DQNConfig(env="CartPole-v1", noisy=True, dueling=True).rl_module(model_config={"use_lstm": True})
    with config.build() as algorithm:
        algorithm.save(tmp_path / "dqn")
        counted = sum(parameter.numel() for parameter in algorithm.get_module().parameters())
    text = printed(capsys, str(tmp_path / "dqn"))
    assert table(text, "Module default_policy: DQNModule")["parameters in all"] == [f"{counted:,}"]
    facts = table(text, "DQN on CartPole-v1")
    assert (facts["return"], facts["best evaluation"]) == (["none yet"], ["none"])


def test_it_tells_the_sizes_of_the_files_and_of_what_is_in_them(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained / "checkpoint"
    files = table(printed(capsys, str(folder)), "Files, unchanged since they were written (verified by their SHA-256)")
    for name in ("checkpoint.json", "tensors.safetensors"):
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert files[name] == [f"{(folder / name).stat().st_size / 1e6:.3f} MB", digest]
    assert files["format"] == ["2"]
    assert files["torch"] == [version("torch")]


def test_it_imports_nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_mine.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "from algorithms.ppo import PPOCatalog\n"
        "class Env(CartPoleEnv): pass\n"
        "class Mine(PPOCatalog): pass\n"
    )
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        import nets_of_mine  # pyright: ignore[reportMissingImports]

        spec = RLModuleSpec(catalog_class=nets_of_mine.Mine, model_config={"fcnet_hiddens": [8]})
        with PPOConfig(env=nets_of_mine.Env).rl_module(rl_module_spec=spec).build() as algorithm:
            algorithm.save(tmp_path / "mine")
    monkeypatch.delitem(sys.modules, "nets_of_mine")
    found = find_checkpoint(str(tmp_path / "mine"))
    config = json.loads((found / "checkpoint.json").read_text())["config"]
    assert main(["inspect", str(found)]) == 0
    assert "nets_of_mine" not in sys.modules
    plain = plain_settings("PPO", config)
    assert plain["env"] == "nets_of_mine:Env"
    assert plain["rl_module_spec.catalog_class"] == "nets_of_mine:Mine"
    assert plain["model_config.fcnet_hiddens"] == [8]


def test_a_folder_of_runs_lists_them(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").symlink_to(trained)
    (tmp_path / "two").mkdir()
    (tmp_path / "two/run.json").touch()
    one, two = (re.split(" {2,}", line.strip()) for line in printed(capsys, str(tmp_path)).splitlines())
    assert one == [str(tmp_path / "one"), "PPO on CartPole-v1, seed 1, checkpoint, best_checkpoint", "128 steps"]
    assert two == [str(tmp_path / "two"), "not begun, no checkpoint", "no iteration yet"]


def test_what_a_spec_leaves_open_does_not_differ() -> None:
    spec = RLModuleSpec(inference_only=True)
    assert plain_settings("PPO", PPOConfig().rl_module(rl_module_spec=RLModuleSpec()).to_dict()) == default_settings(
        "PPO"
    )
    changed = PPOConfig().rl_module(rl_module_spec=spec).to_dict()
    assert learning_settings("PPO", changed) == learning_settings("PPO", PPOConfig().to_dict())


# --- settings as they were saved --------------------------------------------------------------------------------------


def test_defaults_are_plain_and_what_nobody_wrote_is_a_default() -> None:
    config = PPOConfig().rl_module(model_config={"use_gru": True})
    assert plain_settings("PPO", PPOConfig().to_dict()) == default_settings("PPO")
    changed = plain_settings("PPO", config.to_dict())
    assert {k for k, v in changed.items() if v != default_settings("PPO")[k]} == {"model_config.use_gru"}
    whole = PPOConfig().rl_module(model_config=DefaultModelConfig(use_gru=True))
    assert plain_settings("PPO", whole.to_dict()) == changed


def test_the_forms_of_saved_settings_become_plain() -> None:
    config = {
        "a": {"__tuple__": [1, {"__float__": "inf"}]},
        "b": {"__import__": "mine:Net"},
        "c": {"__items__": [[1, {"__tuple__": []}]]},
        "d": {"__pass_again__": "mine.<lambda>"},
        "e": {"__space__": "Box", "low": 0},
        "f": {"g": 1},
        "rl_module_spec": {"__pass_again__": "an instance of mine.Spec"},
        "model_config": {"__pass_again__": "an instance of mine.Config"},
    }
    assert plain_settings("Mine", config) == {
        "a": [1, "inf"],
        "b": "mine:Net",
        "c": {"1": []},
        "d": "mine.<lambda> (not saved)",
        "e": "Box",
        "f": {"g": 1},
        "rl_module_spec": "an instance of mine.Spec (not saved)",
        "model_config": "an instance of mine.Config (not saved)",
    }


def test_what_changes_what_is_learned_is_neither_the_seed_nor_what_is_told() -> None:
    one, two = PPOConfig(seed=1, run_dir="a", evaluation_interval=3), PPOConfig(seed=2, run_dir="b", loggers=["csv"])
    assert learning_settings("PPO", one.to_dict()) == learning_settings("PPO", two.to_dict())
    assert learning_settings("PPO", one.to_dict()) != learning_settings("PPO", PPOConfig(gamma=0.9).to_dict())


# --- mistakes ---------------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], path: Path | str) -> str:
    """The one line in which every command that takes a checkpoint refuses ``path``."""
    lines = []
    for command in ("inspect", "evaluate"):
        assert main([command, str(path)]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        (line,) = shown.err.splitlines()
        assert line.startswith("error: ")
        lines.append(line)
    assert lines[0] == lines[1]
    return lines[0]


def test_a_path_where_nothing_is_names_the_closest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cartpole").mkdir()
    line = refusal(capsys, tmp_path / "cartpol")
    assert "expected a checkpoint or a run with one, got none" in line
    assert line.endswith("Did you mean 'cartpole'?")


def test_a_folder_without_a_checkpoint_says_when_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, tmp_path).endswith(
        "It is written at the end of a run, or more often: --checkpoint-interval 10."
    )


def test_the_checkpoints_below_a_folder_are_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        (tmp_path / f"run-{seed}").mkdir()
        (tmp_path / f"run-{seed}/checkpoint").symlink_to(trained / "checkpoint")
    named = ", ".join(str(tmp_path / f"run-{seed}" / "checkpoint") for seed in (1, 2))
    assert refusal(capsys, tmp_path).endswith(f"Pass one of those below it: {named}.")


def test_a_checkpoint_without_its_tensors(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "tensors.safetensors").unlink()
    assert "expected a complete checkpoint of format 2, got one that cannot be read" in refusal(capsys, checkpoint)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_tensors_that_were_cut_off(checkpoint: Path, capsys: pytest.CaptureFixture[str], share: float) -> None:
    file = checkpoint / "tensors.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert "got one that cannot be read" in refusal(capsys, checkpoint)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '"x"', '{"format": 1}', '{"state": {}}', "\0\1", "{'a': 1}"]
)
def test_json_that_is_garbage(checkpoint: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (checkpoint / "checkpoint.json").write_text(content)
    assert "got one that cannot be read" in refusal(capsys, checkpoint)


def test_another_format(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkpoint / "manifest.json"
    file.write_text(file.read_text().replace('"format": 2', '"format": 99'))
    assert "it is of a checkpoint of format 99; this version reads a checkpoint of format 2" in refusal(
        capsys, checkpoint
    )


def test_a_checkpoint_of_format_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "checkpoint.json").write_text('{"format": 1, "state": {}}')
    save_file({"a": torch.zeros(2)}, tmp_path / "old" / "tensors.safetensors")
    assert "manifest.json: No such file or directory; checkpoints of format 1 have none, and cannot" in refusal(
        capsys, tmp_path / "old"
    )


def test_a_tensor_that_is_missing(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkpoint / "tensors.safetensors"
    tensors = load_file(file)
    tensors.popitem()
    replace(checkpoint, file.name, save(tensors))
    assert "got one that cannot be read" in refusal(capsys, checkpoint)


def test_a_checkpoint_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path / "other", {"weights": torch.zeros(2)})
    assert "got one without algorithm, config, modules, run_seed, state" in refusal(capsys, tmp_path / "other")


# --- files of others --------------------------------------------------------------------------------------------------


def test_texts_of_a_file_are_shown_and_do_nothing_to_the_terminal(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clear the screen, name the window, forge a line, write from right to left."""
    folder = shutil.copytree(trained / "checkpoint", tmp_path / "c")
    clear, title, forged, reverse = "\x1b[2J", "\x1b]0;owned\x07", "\nFiles, unchanged", "\u202e"

    def change(content: dict[str, Any]) -> None:
        content["config"]["env"] = f"CartPole{clear}{title}-v1"
        content["config"]["on_train_result"] = None
        content["config"]["env_config"] = {f"{clear}key": f"{reverse}value"}
        content["modules"]["default_policy"]["class"] = f"PPOModule{forged}"

    rewrite(folder, change)
    for command in (["inspect", str(folder), "--all"], ["evaluate", str(folder)], ["train", "--load", str(folder)]):
        main(command)
        shown = "".join(capsys.readouterr())
        assert not {character for character in shown if not character.isprintable()} - {"\n"}
        assert "\n" + forged.strip() + "\n" not in shown
        assert r"CartPole\x1b[2J\x1b]0;owned\x07-v1" in shown


def test_a_file_with_a_name_that_no_folder_has_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained / "checkpoint", tmp_path / "c")
    replace(folder, "more\x1b[2J", b"x")
    with pytest.raises(ValueError, match=r"manifest\.json: 'more\\x1b\[2J' is not a file of the folder"):
        Algorithm.from_checkpoint(folder)
