"""What sampling costs is measured on the same episodes."""

import pytest

from benchmarks import sampling


def test_plain_envs_go_through_the_episodes_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ROUNDS", 2)
    monkeypatch.setattr(sampling, "WARM_UP", 1)
    monkeypatch.setattr(sampling, "MOST_EPISODES", 100)
    found = sampling.sampling_ratio()  # raises if the last observations differ
    assert found["ratio"] == pytest.approx(found["runner_us"] / found["alone_us"], abs=0.01)
