"""Streams: one for each role and index, the same in every run of one seed."""

import itertools

import pytest
import torch

from rlmodule.learning.global_stream import GlobalStream
from rlmodule.seeding import _ROLES, int_seed, numpy_stream, seed_sequence, torch_stream
from rlmodule.testing.data import differences, global_random_state


def test_streams_repeat() -> None:
    assert numpy_stream(1, "env", 2).integers(1 << 60) == numpy_stream(1, "env", 2).integers(1 << 60)
    assert int_seed(1, "env", 2) == int_seed(1, "env", 2)
    assert torch.equal(
        torch.rand(9, generator=torch_stream(1, "learner")), torch.rand(9, generator=torch_stream(1, "learner"))
    )


def test_streams_of_all_seeds_roles_and_indices_differ() -> None:
    streams = list(itertools.product((0, 1, 2**31 - 1), _ROLES, ((), (0,), (1,), (0, 0), (0, 1), (1, 0))))
    assert len({int_seed(seed, role, *index) for seed, role, index in streams}) == len(streams)
    draws = {int(numpy_stream(seed, role, *index).integers(1 << 60)) for seed, role, index in streams}
    assert len(draws) == len(streams)


def test_seeds_fit_what_gymnasium_takes() -> None:
    seeds = [int_seed(seed, "env", index) for seed in range(20) for index in range(50)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30


def test_values_are_those_of_earlier_versions() -> None:
    # a checkpoint goes on with the same streams in later versions: roles may be added at the end only
    assert [int_seed(7, role, 3) for role in _ROLES[:4]] == [15706255, 1885052576, 2020756424, 613025100]
    assert _ROLES[:7] == ("module", "learner", "env", "action", "evaluation_env", "evaluation_action", "replay")


def test_unknown_role() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        seed_sequence(1, "nobody")


def test_global_generators_are_left_alone() -> None:
    before = global_random_state()
    torch_stream(1, "learner")
    numpy_stream(1, "env", 0)
    assert differences(before, global_random_state()) == []


def test_a_global_stream_goes_on_where_it_ended_and_leaves_the_generator_alone() -> None:
    stream, outside = GlobalStream(1, "module_noise"), torch.get_rng_state()
    drawn = []
    for _ in range(2):
        with stream:
            drawn.append(torch.rand(3))
        assert torch.equal(torch.get_rng_state(), outside)
    with GlobalStream(1, "module_noise"):
        assert torch.equal(torch.rand(6), torch.cat(drawn))
    other = GlobalStream(2, "module_noise")
    other.set_state(stream.get_state())
    with stream:
        drawn.append(torch.rand(3))
    with other:
        assert torch.equal(torch.rand(3), drawn[-1])
