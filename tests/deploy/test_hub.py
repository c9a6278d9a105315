"""Policies on the Hub: pushed to and loaded from a server on this machine that speaks its endpoints."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from algorithms.cli import main
from rlmodule import Policy
from rlmodule.agents import MultiAgentPolicy
from rlmodule.testing.data import differences
from tests.deploy.hub_double import TOKEN, HubDouble, hub_double
from tests.deploy.test_agent_policies import team
from tests.deploy.test_policy_files import Own, policy_of

REPO = "user/name"
FILES = {"policy.json", "policy.safetensors", "manifest.json"}
EVALUATION = {
    "env_runners": {"episode_return_mean": 487.25, "episode_return_std": 20.5, "num_episodes": 20, "other": 1},
}
OBS = {"arm": np.ones(3, np.float32), "mode": 1}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    with hub_double() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def same(one: Policy, other: Policy) -> bool:
    return not differences(one.module.get_state(inference_only=True), other.module.get_state(inference_only=True))


def test_a_pushed_policy_is_loaded_with_its_weights(hub: HubDouble) -> None:
    policy = policy_of()
    assert policy.push_to_hub(REPO) == f"{hub.url}/{REPO}"
    hub.commit(REPO, hub.newest(REPO) | {"pickle.pkl": b"never read", "setup.py": b"never run"})
    loaded = Policy.from_pretrained(REPO)
    assert same(policy, loaded)
    assert np.array_equal(loaded.act(OBS)[0], policy.act(OBS)[0])
    downloaded = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert downloaded == FILES


def test_a_revision_stays_what_it_was(hub: HubDouble) -> None:
    first, second = policy_of(), policy_of(fcnet_hiddens=[4])
    first.push_to_hub(REPO)
    commit = next(iter(hub.repos[REPO]))
    second.push_to_hub(REPO)
    assert same(Policy.from_pretrained(REPO, revision=commit), first)
    assert same(Policy.from_pretrained(REPO), second)


def test_the_card_says_what_the_policy_is_and_reaches(hub: HubDouble, tmp_path: Path) -> None:
    film = tmp_path / "episode.mp4"
    film.write_bytes(b"film")
    about: dict[str, Any] = {"evaluation": EVALUATION, "env": "Arm-v0", "command": "rlmodule train ppo Arm-v0"}
    policy_of().push_to_hub(REPO, **about, film=film, private=True)
    files = hub.newest(REPO)
    assert files.keys() == FILES | {"README.md", "replay.mp4"}
    assert hub.private[REPO] is True
    card = huggingface_hub.ModelCard(files["README.md"].decode())
    assert card.data.library_name == "catalog-rl"  # type: ignore[attr-defined]
    assert "Arm-v0" in card.data.tags  # type: ignore[attr-defined]
    result = card.data.eval_results[0]  # type: ignore[attr-defined]
    assert (result.metric_type, result.metric_value) == ("mean_reward", "487.25 +/- 20.50")
    for text in ("over 20 episodes", "`rlmodule train ppo Arm-v0`", "torch 2", f'from_pretrained("{REPO}")'):
        assert text in card.text
    policy_of().push_to_hub(REPO)
    assert hub.newest(REPO).keys() == FILES | {"README.md"}  # no film of an earlier policy


@pytest.mark.parametrize("way", [".git", ".cache/huggingface"])
def test_a_copy_of_the_repository_is_a_policy(hub: HubDouble, tmp_path: Path, way: str) -> None:
    """Made by ``git clone``, or by ``hf download --local-dir``."""
    policy = policy_of()
    policy.push_to_hub(REPO)
    (tmp_path / "copy" / way).mkdir(parents=True)
    for name, content in hub.newest(REPO).items():
        (tmp_path / "copy" / name).write_bytes(content)
    assert same(Policy.load(tmp_path / "copy"), policy)


def test_what_a_stranger_pushed_is_verified_and_runs_nothing(hub: HubDouble) -> None:
    policy_of(Own).push_to_hub(REPO)
    with pytest.raises(ValueError, match=rf"got code of {Own.__module__}\. If you trust it"):
        Policy.from_pretrained(REPO)
    Policy.from_pretrained(REPO, allow=[Own.__module__])
    files = hub.newest(REPO)
    hub.commit(REPO, files | {"policy.safetensors": files["policy.safetensors"][:-1] + b"\x7f"})
    with pytest.raises(ValueError, match=r"user/name'\): expected a folder that policy\.save.*expected the SHA-256"):
        Policy.from_pretrained(REPO)
    hub.commit(REPO, {"README.md": b""})
    with pytest.raises(FileNotFoundError, match=r"user/name'\): expected a folder that policy\.save.*got none"):
        Policy.from_pretrained(REPO)


def test_several_agents_are_pushed_and_loaded(hub: HubDouble) -> None:
    policies = team()
    policies.push_to_hub(REPO, evaluation=EVALUATION)
    assert b"from rlmodule.agents import MultiAgentPolicy" in hub.newest(REPO)["README.md"]
    loaded = MultiAgentPolicy.from_pretrained(REPO)
    assert all(same(loaded[name], policies[name]) for name in policies)
    assert same(Policy.from_pretrained(REPO, module_id="late"), policies["late"])


def test_what_goes_wrong_is_explained(hub: HubDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"from_pretrained\('user/other'\): expected a repository .*Check the name"):
        Policy.from_pretrained("user/other")
    policy_of().push_to_hub(REPO)
    with pytest.raises(OSError, match=r"expected a repository that can be read, got RevisionNotFound"):
        Policy.from_pretrained(REPO, revision="v2")
    with pytest.raises(OSError, match=r"from_pretrained\('\.\./\.\./x'\): expected a repository"):
        Policy.from_pretrained("../../x")
    with pytest.raises(OSError, match=r"push_to_hub\('user/name'\): expected a repository that can be written to"):
        policy_of().push_to_hub(REPO, token="of-another")
    with pytest.raises(ValueError, match=r"the result of algo\.evaluate\(\), got one without episode_return_mean, "):
        policy_of().push_to_hub(REPO, evaluation={"env_runners": {"num_episodes": 1}})
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    with pytest.raises(OSError, match=r"a repository that can be written to, got ConnectError.*the network"):
        policy_of().push_to_hub(REPO)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"expected the package huggingface_hub, got none\. Run: pip install 'cata"):
        Policy.from_pretrained(REPO)


def test_the_shell_pushes(hub: HubDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, evaluation = str(policy_of().save(tmp_path / "policy")), tmp_path / "evaluation.json"
    evaluation.write_text('{"env_runners": {"episode_return_mean": 1, "episode_return_std": 2, "num_episodes": 3}}')
    assert main(["push", folder, REPO, "--evaluation", str(evaluation), "--env", "Arm-v0"]) == 0
    assert capsys.readouterr().out.strip() == f"{hub.url}/{REPO}"
    assert same(Policy.from_pretrained(REPO), Policy.load(folder))
    assert b"1.00 +/- 2.00 over 3 episodes" in hub.newest(REPO)["README.md"]
    assert main(["push", folder, REPO, "--evaluation", str(tmp_path / "none.json")]) == 2
    assert "--evaluation: expected a file with JSON" in capsys.readouterr().err
    for content, code, text in (
        ("null", 2, "--evaluation: expected a file with JSON of an evaluation"),
        ("[1]", 2, "--evaluation: expected a file with JSON of an evaluation"),
        ('{"env_runners": 5}', 1, "the result of algo.evaluate(), got one without episode_return_mean"),
    ):
        evaluation.write_text(content)
        assert main(["push", folder, REPO, "--evaluation", str(evaluation)]) == code
        assert text in capsys.readouterr().err
