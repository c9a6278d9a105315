"""Values on their way between processes."""

import pickle
import threading
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlmodule.data.rollout import Rollout
from rlmodule.distributed.serialization import SMALL, WHOLE, check_portable, num_bytes, pack, unpack

KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)

ARRAYS = hnp.arrays(
    st.sampled_from([np.dtype("f4"), np.dtype("i8"), np.dtype("u1"), np.dtype("?")]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12),
)
TENSORS = st.builds(lambda array, kind: torch.from_numpy(array).to(kind), ARRAYS, st.sampled_from(KINDS))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
TREES = st.recursive(
    ARRAYS | TENSORS | PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def there(value: Any) -> Any:
    """``value`` after its journey, which its arrays make as read-only memory."""
    packed = pack(value)
    if isinstance(packed, bytes):
        return unpack(packed)
    structure, *arrays = packed
    frozen = [np.frombuffer(array.tobytes(), np.uint8) for array in arrays]
    return unpack([bytes(structure), *frozen])


@given(TREES, st.sampled_from([0, WHOLE]))
def test_what_arrives_is_what_was_sent(value: Any, whole: int) -> None:
    with mock.patch("rlmodule.distributed.serialization.WHOLE", whole):
        arrived = there(value)
    assert_same(value, arrived)


def assert_same(sent: Any, arrived: Any) -> None:
    assert type(arrived) is type(sent)
    if isinstance(sent, dict):
        assert list(arrived) == list(sent)
        sent, arrived = list(sent.values()), list(arrived.values())
    if isinstance(sent, list | tuple):
        for one, other in zip(sent, arrived, strict=True):
            assert_same(one, other)
    elif isinstance(sent, np.ndarray | torch.Tensor):
        assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape)
        assert bits(arrived) == bits(sent)  # also of NaN
    else:
        assert arrived == sent


def bits(value: Any) -> bytes:
    if not isinstance(value, torch.Tensor):
        return value.tobytes()
    # what is empty may have strides that no view of other numbers has
    return value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""


@dataclass
class Thing:
    weights: torch.Tensor
    name: str


def test_objects_and_views_arrive() -> None:
    big = torch.arange(10_000.0).view(100, 100)
    parameter = torch.nn.Parameter(big.clone())
    for view in (big.t(), big[::3, 1::2], big[5], big.flip(0), parameter, big.expand(2, 100, 100)):
        arrived = there(Thing(view, "one"))
        assert torch.equal(arrived.weights, view)
        assert not arrived.weights.requires_grad
        assert arrived.name == "one"
    rollout = Rollout(
        columns={"rewards": torch.ones(300, 2), "obs": {"z": torch.zeros(300, 2, 1), "a": (torch.ones(300, 2),)}},
        last_obs=torch.zeros(2),
        final_index=torch.empty(0, 2, dtype=torch.int64),
        final_obs=torch.empty(0, 1),
        first_env_index=7,
    )
    arrived = there(rollout)
    assert arrived.first_env_index == 7
    assert list(arrived.columns["obs"]) == ["z", "a"]  # in the order of the space
    assert torch.equal(arrived.columns["obs"]["a"][0], torch.ones(300, 2))


def test_large_arrays_are_not_copied() -> None:
    array, tensor = np.arange(10_000.0), torch.arange(10_000.0)
    packed: Any = pack({"array": array, "tensor": tensor, "small": torch.ones(3)})
    structure, *apart = packed
    assert len(structure) < 1000
    assert len(apart) == 2
    assert np.shares_memory(apart[0], array)
    assert np.shares_memory(apart[1], tensor.numpy())
    assert num_bytes(packed) == len(structure) + 80_000 + 40_000
    assert min(part.nbytes for part in apart) >= SMALL
    arrived = unpack(packed)
    assert arrived["tensor"].data_ptr() == tensor.data_ptr()
    assert len(pickle.dumps(torch.ones(3))) > num_bytes(pack(torch.ones(3)))  # no zip file for a few numbers


def test_what_is_small_travels_in_one_piece() -> None:
    one, two = {"a": torch.arange(WHOLE // 8)}, {"a": torch.arange(WHOLE // 16), "b": np.arange(WHOLE // 32)}
    assert not isinstance(pack(one), bytes)  # with the structure it is more than that
    packed = pack(two)
    assert isinstance(packed, bytes)
    assert num_bytes(packed) == len(packed) <= WHOLE
    assert_same(two, unpack(packed))


def test_what_cannot_be_sent_is_named() -> None:
    check_portable("env", lambda config: config)  # what no other process can import travels whole
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"env_config: expected a value that can be sent to another process, got .*lock"
    ):
        check_portable("env_config", {"lock": lock})
