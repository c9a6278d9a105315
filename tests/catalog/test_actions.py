"""Whatever a policy samples, the env gets an action inside its space."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import ActionConverter, Catalog, DefaultModelConfig

OBS = spaces.Box(-1, 1, (2,))


def converter(space: spaces.Space, **model_config: Any) -> ActionConverter:
    return Catalog(OBS, space, model_config).build_action_converter()


def test_a_bounded_box_is_stretched_then_clipped() -> None:
    convert = converter(spaces.Box(np.float32([0, -4]), np.float32([10, -2])))
    # centres 5 and -3, radii 5 and 1; 1.5 would lie outside
    actions = convert(torch.tensor([[-1.0, -1.0], [0.0, 0.5], [1.5, 1.5]]))
    assert actions.tolist() == [[0, -4], [5, -2.5], [10, -2]]


def test_without_normalize_actions_it_is_only_clipped() -> None:
    convert = converter(spaces.Box(0, 10, (2,)), normalize_actions=False)
    assert convert(torch.tensor([0.5, 11.0])).tolist() == [0.5, 10]


def test_half_bounds_only_clip_and_no_bounds_do_nothing() -> None:
    low, high = np.float32([0, -np.inf, -np.inf]), np.float32([np.inf, 2, np.inf])
    convert = converter(spaces.Box(low, high))
    assert convert(torch.tensor([-5.0, 5.0, 1e9])).tolist() == [0, 2, 1e9]
    assert convert(torch.tensor([0.25, -5.0, -1e9])).tolist() == [0.25, -5, -1e9]


def test_a_unit_box_is_left_alone_inside_its_bounds() -> None:
    actions = torch.tensor([[-0.5, 1.0]])
    assert torch.equal(converter(spaces.Box(-1, 1, (2,)))(actions), actions)


def test_a_float64_box_narrower_than_float32_can_tell_is_met() -> None:
    space = spaces.Box(np.array([0.1]), np.array([0.1]), dtype=np.float64)
    assert space.contains(converter(space)(torch.tensor([0.3])).numpy())


def test_the_range_of_a_huge_box_does_not_overflow() -> None:
    most = np.finfo(np.float64).max
    space = spaces.Box(np.array([-most]), np.array([most]), dtype=np.float64)
    assert converter(space)(torch.tensor([[0.0], [0.5], [1.0]])).tolist() == [[0], [most / 2], [most]]


def test_starts_are_added() -> None:
    assert converter(spaces.Discrete(3, start=-1))(torch.tensor([0, 1, 2])).tolist() == [-1, 0, 1]
    grid = spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[5, -2]]))
    assert converter(grid)(torch.tensor([[[0, 0]], [[1, 2]]])).tolist() == [[[5, -2]], [[6, 0]]]


def test_converters_have_no_state_to_save() -> None:
    for space in (spaces.Box(0, 3, (2,)), spaces.Discrete(3, start=4)):
        assert converter(space).state_dict() == {}


def test_a_space_without_a_branch_is_named() -> None:
    from catalog.actions import action_converter

    with pytest.raises(ValueError, match=r"action_space: expected a space with a branch in the action converter"):
        action_converter(spaces.Text(5), DefaultModelConfig())


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    number = st.floats(width=np.dtype(dtype).itemsize * 8, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    low, high = np.empty(shape, dtype), np.empty(shape, dtype)
    for i in np.ndindex(shape):
        kind = draw(st.sampled_from(["both", "narrow", "equal", "low", "high", "none"]))
        a, b = sorted((draw(number), draw(number)))
        if kind == "narrow":
            b = float(np.nextafter(dtype(a), dtype(np.inf)))
            b = a if np.isinf(b) else b
        low[i] = a if kind in ("both", "narrow", "equal", "low") else -np.inf
        high[i] = {"both": b, "narrow": b, "equal": a, "high": b}.get(kind, np.inf)
    return spaces.Box(low, high, dtype=dtype)


discretes = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-50, 50))


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 6), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(-50, 50), min_size=size, max_size=size))
    return spaces.MultiDiscrete(np.reshape(nvec, shape), start=np.reshape(start, shape))


@settings(max_examples=150, deadline=None)
@given(
    space=st.one_of(boxes(), discretes, multi_discretes()),
    normalize_actions=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
    seed=st.integers(0, 9),
)
def test_every_sample_becomes_an_action_of_the_space(
    space: spaces.Space, normalize_actions: bool, scale: float, seed: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        catalog = Catalog(OBS, space, {"normalize_actions": normalize_actions})
    dist_cls, convert = catalog.get_action_dist_cls(), catalog.build_action_converter()
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(8, dist_cls.required_input_dim(space), generator=generator)
    dist = dist_cls.from_logits(logits.clamp(-50, 50))
    for actions in (dist.sample(generator), dist.to_deterministic().sample()):
        fitted = convert(actions)
        assert fitted.shape == (8, *(space.shape or ()))
        for action in fitted.numpy().astype(space.dtype):
            inside = space.contains(np.asarray(action) if isinstance(space, spaces.Box) else action)
            assert inside, f"{action!r} is not in {space}"
