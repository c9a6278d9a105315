"""What the catalog is measured against must be the same net, and every measurement must run."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks import catalog
from benchmarks.catalog import (
    BUILT,
    MASKED,
    READ,
    SEEN,
    Reading,
    act,
    actor,
    building,
    masked_steps,
    masking,
    reading,
    same_net,
    timed_initialisers,
)


def test_only_the_start_of_weights_is_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(catalog, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(nn.init, "zeros_", lambda tensor: wait(5.0))
    untouched = nn.init.zeros_
    with timed_initialisers() as seconds:
        nn.Linear(3, 4)  # torch starts weight and bias
        assert len(seconds) == 2
        nn.init.zeros_(torch.ones(2))
        wait(1.0)
    assert seconds[2:] == [5.0]
    assert nn.init.zeros_ is untouched


def test_building_reports_each_case() -> None:
    results = building(repeats=1)
    assert results.keys() == BUILT.keys()
    for figures in results.values():
        assert figures["tree_ms"] > 0
        assert figures["module_ms"] > 0
        assert figures["weights_ms"] > 0


def test_reading_reports_each_case_on_nets_that_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "BATCH", 3)
    results = reading(repeats=0)
    assert results.keys() == READ.keys()
    for figures in results.values():
        assert figures["ours_ms"] > 0
        assert figures["plain_ms"] > 0


def test_another_net_is_not_compared() -> None:
    class Doubled(catalog.PlainOneHot):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(obs)

    case = READ["one-hot"]
    same_net(case, torch.arange(5))
    with pytest.raises(RuntimeError, match="by hand"):
        same_net(Reading(case.space, case.settings, Doubled, repeats=1), torch.arange(5))


def test_masked_actions_are_allowed_and_unmasked_ones_need_not_be() -> None:
    steps = masked_steps()
    masks = torch.stack([obs["action_mask"] for obs, _ in steps])
    assert masks[..., 0].all()
    assert 0.5 < masks.float().mean() < 0.65
    for space, always in ((MASKED, True), (SEEN, False)):
        actions = torch.stack(act(actor(space), steps))
        assert masks.gather(-1, actions.unsqueeze(-1)).all() == always


def test_masking_reports() -> None:
    assert all(figure > 0 for figure in masking(repeats=1).values())
