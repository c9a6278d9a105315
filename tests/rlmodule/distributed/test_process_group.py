"""Peers: sums, gathers, what is shared, and that nobody waits for one who is gone."""

import copy
import json
import os
import pickle
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import strategies

from catalog import RunningMoments
from rlmodule.collective import Collective, CollectiveError, SingleProcess, _packed, _unpacked
from rlmodule.distributed.process_group import ProcessGroupCollective, Rendezvous
from rlmodule.testing.data import differences
from tests.together import LOOPBACK, Fleet, fleet_of, listening
from tests.waiting import PATIENCE_S, wait_for

# --- what they tell each other ----------------------------------------------------------------------------------------


def exchange(collective: Collective, here: dict[str, Any]) -> dict[str, Any]:
    tensor = here["sum"]
    summed = collective.all_reduce(tensor)
    assert summed is tensor
    return {
        "rank": (collective.rank, collective.size),
        "sum": tensor,
        "gather": collective.all_gather(here["rows"]),
        "share": collective.all_gather_object({"of": (collective.rank, [here["rows"]])}),
        "mean": collective.all_reduce_mean(here["value"], here["count"]),
    }


def test_each_learns_of_all(fleet: Fleet) -> None:
    given = [
        {
            "sum": torch.tensor([[1.0 + rank, 10.0]], dtype=torch.float64),
            "rows": torch.arange(6.0).view(3, 2)[:rank] + rank,  # none of rank 0, one of 1, two of 2
            "value": torch.tensor(float("nan") if rank == 0 else 3.0 * rank),
            "count": rank,
        }
        for rank in range(3)
    ]
    answers = fleet.values(exchange, *[(each,) for each in given])
    rows = [each["rows"] for each in given]
    for rank, answer in enumerate(answers):
        assert answer["rank"] == (rank, 3)
        assert answer["sum"].tolist() == [[6.0, 30.0]]
        assert differences(answer["gather"], rows) == []
        assert differences(answer["share"], [{"of": (i, (x,))} for i, x in enumerate(rows)]) == []
        assert float(answer["mean"]) == 5.0  # (1 · 3 + 2 · 6) / 3; what comes of no rows may be NaN
        assert answer["mean"].dtype == torch.float32


def test_one_alone_is_all() -> None:
    rows, value = torch.arange(3.0), torch.tensor(2.0)
    collective = SingleProcess()
    assert (collective.rank, collective.size) == (0, 1)
    assert collective.all_reduce(rows) is rows
    assert collective.all_gather(rows) == [rows]
    assert collective.all_reduce_mean(value, 0) is value
    assert collective.all_gather_object(value) == [value]
    collective.close()


PLAIN = strategies.none() | strategies.booleans() | strategies.integers(-9, 9) | strategies.text(max_size=3)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
TENSORS = strategies.builds(
    lambda dtype, shape: torch.arange(int(np.prod(shape))).view(shape).to(dtype),
    strategies.sampled_from(DTYPES),
    strategies.lists(strategies.integers(0, 3), max_size=3),
)


@hypothesis.given(
    strategies.recursive(
        PLAIN | TENSORS,
        lambda inner: (
            strategies.lists(inner, max_size=3)
            | strategies.lists(inner, max_size=3).map(tuple)
            | strategies.dictionaries(strategies.text(max_size=3), inner, max_size=3)
        ),
    )
)
def test_values_cross_as_bytes_that_run_no_code(value: Any) -> None:
    data = _packed(value)
    assert data.dtype == torch.uint8
    json.loads(safetensors.torch.load(data.numpy().tobytes())["plain"].numpy().tobytes())
    unpacked = _unpacked(data)
    assert differences([with_tuples(value)], [unpacked]) == []


def with_tuples(value: Any) -> Any:
    """``value`` with a tuple for each list."""
    if isinstance(value, dict):
        return {key: with_tuples(child) for key, child in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list | tuple) else value


def random_numbers(seed: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) * 10.0**i for i in range(8)]


def sum_often(collective: Collective, seed: int, size: int) -> list[torch.Tensor]:
    return [collective.all_reduce(numbers) for numbers in random_numbers(seed, size)]


@pytest.mark.parametrize("size", [1001, 200_001], ids=["few", "many"])  # sent to all, and passed on in turn
def test_sums_are_the_same_bits_on_all(fleet: Fleet, size: int) -> None:
    first, *others = fleet.values(sum_often, (0, size), (1, size), (2, size))
    assert differences(first, others[0]) == differences(first, others[1]) == []
    for i, (total, *parts) in enumerate(zip(first, *(random_numbers(seed, size) for seed in range(3)), strict=True)):
        exact = sum(part.double() for part in parts)
        torch.testing.assert_close(total.double(), exact, rtol=1e-6, atol=1e-6 * 10**i)


def test_the_meeting_place_listens_where_it_is_told_alone() -> None:
    place = Rendezvous()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", place.port), timeout=1)
    socket.create_connection((place.host, place.port), timeout=1).close()


def told_where_it_listens(collective: Collective) -> set[str]:
    collective.all_reduce(torch.ones(1))
    return listening(os.getpid())


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="the system does not tell who listens")
def test_learners_of_one_machine_listen_there_alone(fleet: Fleet) -> None:
    for places in fleet.values(told_where_it_listens, (), (), ()):
        assert places
        assert places <= LOOPBACK


class NoNCCL:
    """Stands for NCCL's process group, which needs a GPU, and notes which interface NCCL would listen on."""

    interface: str | None = None
    Options = SimpleNamespace

    def __init__(self, *args: Any) -> None:
        NoNCCL.interface = os.environ.get("NCCL_SOCKET_IFNAME")

    def abort(self) -> None:
        pass


@pytest.mark.parametrize(
    ("host", "of_the_user", "interface"),
    [("127.0.0.1", None, "lo"), ("127.0.0.1", "eth0", "eth0"), ("127.0.0.2", None, None)],
)
def test_nccl_stays_on_the_loopback_of_one_machine(
    host: str, of_the_user: str | None, interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", of_the_user or "")
    if of_the_user is None:
        monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", NoNCCL, raising=False)
    place = Rendezvous(host)
    ProcessGroupCollective(0, 1, place.host, place.port, device="cuda").close()
    assert NoNCCL.interface == interface


# --- statistics of all ------------------------------------------------------------------------------------------------


def update_moments(collective: Collective, decay: float | None, parts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    moments = RunningMoments(parts[0].shape[1:], decay)
    moments.pool = collective.all_reduce
    for part in parts:
        moments.update(part)
    return moments.state_dict()


@pytest.mark.parametrize("decay", [None, 0.9])
def test_moments_are_those_of_the_rows_of_all(fleet: Fleet, decay: float | None) -> None:
    @hypothesis.settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @hypothesis.given(
        counts=strategies.lists(strategies.tuples(*[strategies.integers(0, 5)] * 2), min_size=1, max_size=5),
        offset=strategies.sampled_from([0.0, 1e4]),
    )
    def check(counts: list[tuple[int, int]], offset: float) -> None:
        generator = torch.Generator().manual_seed(len(counts))
        batches = [torch.randn(sum(count), 2, generator=generator) * 5 + offset for count in counts]
        parts = [batch.split(list(count)) for batch, count in zip(batches, counts, strict=True)]
        alone = RunningMoments((2,), decay)
        for batch in batches:
            alone.update(batch)
        answers = fleet.values(update_moments, *[(decay, [part[rank] for part in parts]) for rank in range(2)])
        assert differences(*answers) == []
        assert float(answers[0]["count"]) == float(alone.count)
        for name in ("mean", "std"):
            torch.testing.assert_close(answers[0][name], getattr(alone, name), rtol=2e-7, atol=1e-7)
        if decay is None and sum(map(sum, counts)):
            rows = torch.cat(batches).double().numpy()
            np.testing.assert_allclose(answers[0]["mean"], rows.mean(0), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(answers[0]["std"], rows.std(0).clip(1e-4), rtol=1e-5, atol=1e-4)

    check()


def test_a_copy_of_moments_is_on_its_own() -> None:
    moments = RunningMoments((2,))
    moments.pool = lambda tensor: tensor * 2
    for copied in (copy.deepcopy(moments), pickle.loads(pickle.dumps(copy.deepcopy(moments)))):
        assert copied.pool is None
        copied.update(torch.ones(3, 2))
        assert float(copied.count) == 3
    assert moments.pool is not None


# --- when one is gone -------------------------------------------------------------------------------------------------


def wait_or(collective: Collective, way: str, folder: Path) -> str:
    """The error it got when another is gone; the last rank waits until all others got theirs."""
    others = [folder / f"{rank} was reported" for rank in range(collective.size - 1)]
    collective.all_reduce(torch.ones(3))
    if collective.rank == collective.size - 1:
        if way == "closes":
            collective.close()
        if way == "raises":
            raise ValueError("its own fault")
        if way == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "gave up":
            with pytest.raises(CollectiveError) as kept:
                collective.all_reduce(torch.ones(3))
            assert kept.value.__traceback__ is not None  # which must not keep the connection open
            (folder / "gave up").touch()
        wait_for(lambda: all(other.exists() for other in others))
        return ""
    if way == "gave up":
        wait_for((folder / "gave up").exists)
    with pytest.raises(
        CollectiveError,
        match=rf"learner {collective.rank} of {collective.size}: expected the others .* let all connect",
    ) as caught:
        collective.all_reduce(torch.ones(3))
    with pytest.raises(CollectiveError, match="closed after an earlier error"):
        collective.all_gather(torch.ones(3))
    others[collective.rank].touch()
    return str(caught.value)


WAYS = ["closes", "raises", *(pytest.param(way, marks=pytest.mark.faults) for way in ("hangs", "gave up"))]


@pytest.mark.parametrize("way", WAYS)
def test_peers_of_one_that_is_gone_are_told(fleet: Fleet, way: str, tmp_path: Path) -> None:
    """At once, but of one that hangs: that is known when the time is up."""
    timeout_s = 10.0 if way in ("hangs", "gave up") else 2 * PATIENCE_S  # busy cores may take seconds to meet
    *message, gone = fleet.run(wait_or, *[(way, tmp_path)] * 3, peer_timeout_s=timeout_s)
    assert isinstance(gone, ValueError) if way == "raises" else gone == ""
    assert any("imeout" in text or "imed out" in text for text in message) is (way == "hangs"), message
    assert fleet.values(sum_often, *[(0, 10)] * 3)  # and meet again


@pytest.mark.end_to_end
def test_peers_of_one_that_is_killed_are_told(tmp_path: Path) -> None:
    with fleet_of(2) as own:
        message, gone = own.run(wait_or, *[("is killed", tmp_path)] * 2, peer_timeout_s=2 * PATIENCE_S)
    assert isinstance(gone, EOFError)
    assert "learner 0 of 2" in message


@pytest.mark.filterwarnings("ignore")
def test_who_meets_nobody_is_told() -> None:
    place = Rendezvous()
    with pytest.raises(
        CollectiveError, match=r"learner 0 of 2: expected the others to join within 0.5 s, got .*timeout"
    ):
        ProcessGroupCollective(0, 2, place.host, place.port, timeout_s=0.5)
