"""What is searched: ranges and choices, the points in them, and what is refused before the first trial."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.tuning.search import Choices, Range, check_search, parse_search, point_at, random_shares


@pytest.mark.parametrize(
    ("text", "ends", "middle"),
    [
        ("lr=log:1e-5..1e-1", (1e-5, 1e-1), 1e-3),
        ("gamma=1-log:1e-4..1e-2", (0.9999, 0.99), 0.999),
        ("clip_param=0.1..0.3", (0.1, 0.3), 0.2),
        ("num_epochs=1..20", (1, 20), 11),
        ("minibatch_size=log:32..512", (32, 512), 128),
        ("x=-3..-1", (-3, -1), -2),
        ("x=1_000..3_000", (1000, 3000), 2000),
        ("model_config.fcnet_hiddens=[64,64]|[256]|[8]", ([64, 64], [8]), [256]),
        ("model_config.fcnet_activation=relu|tanh", ("relu", "tanh"), "tanh"),
        ("grad_clip=0.5|None", (0.5, None), None),
        ("prioritized_replay=true|false", (True, False), False),
        ("env_config.wind=True|False", (True, False), False),
        ("gamma=0.9995..0.99995", (0.9995, 0.99995), 0.9997),
        ("env_config.mass=1000.5..1001.5", (1000.5, 1001.5), 1001.0),
    ],
)
def test_a_text_has_two_ends_and_a_middle(text: str, ends: tuple[Any, Any], middle: Any) -> None:
    [dimension] = parse_search([text]).values()
    assert (dimension.at(0.0), dimension.at(1.0)) == ends
    assert dimension.at(0.5) == pytest.approx(middle) if isinstance(middle, float) else dimension.at(0.5) == middle
    assert type(dimension.at(0.0)) is type(ends[0])


@given(st.integers(-50, 50), st.integers(1, 40), st.floats(0, 1))
def test_whole_numbers_are_within_their_ends_and_equally_likely(low: int, span: int, share: float) -> None:
    dimension = Range(low, low + span, is_whole=True)
    assert low <= dimension.at(share) <= low + span
    places = (np.arange(10 * (span + 1)) + 0.5) / (10 * (span + 1))
    _, counts = np.unique([dimension.at(place) for place in places], return_counts=True)
    assert [*counts] == [10] * (span + 1)


@given(st.integers(1, 9), st.data())
def test_the_index_of_a_choice_and_its_share_are_inverse(count: int, data: st.DataObject) -> None:
    choices = Choices(tuple(range(count)))
    index = data.draw(st.integers(0, count - 1))
    assert choices.index_at(choices.share_of(index)) == index


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "nothing to search"),
        (["lr"], "no name and values"),
        (["=1..2"], "no name and values"),
        (["lr=a..b"], "ends that are no numbers"),
        (["lr=1e-4...1e-2"], "ends that are no numbers"),
        (["lr=nan..1"], "ends that are no numbers"),
        (["env_config.mass=1..inf"], "ends that are no numbers"),
        (["lr=exp:1..2"], "the scale exp"),
        (["lr=2..1"], "ends in this order"),
        (["lr=log:0..1"], "an end <= 0 on a logarithmic scale"),
        (["lr=1e-4..1e-3", "lr=1..2"], "lr twice"),
    ],
)
def test_a_malformed_text_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^search: expected .*{message}"):
        parse_search(texts)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("learning_rate=1e-4..1e-3", TypeError, "learning_rate"),
        ("fcnet_hiddens=[8]|[9]", ValueError, "got a model setting. Search 'model_config.fcnet_hiddens'"),
        ("clip_param=0.1..0.2|x", ValueError, "ends that are no numbers"),
        ("num_epochs=0..3", ValueError, "num_epochs"),
        ("num_epochs=1|many", TypeError, "num_epochs"),
        ("minibatch_size=64|4096", ValueError, "minibatch_size"),  # more than a batch
        ("lr.x=1..2", ValueError, "Search 'lr' itself"),
        ("env=CartPole-v1|Acrobot-v1", ValueError, "one env for all trials"),
        ("lambda_=0..1", ValueError, re.escape("lambda_, which need not be whole, got 0..1, which")),
        ("lr=log:1..10", ValueError, re.escape("Write log:1.0..10.0, or 1|10 for these two.")),
    ],
)
def test_a_wrong_name_or_value_is_refused_at_a_corner(text: str, error: type[Exception], message: str) -> None:
    config = PPOConfig(train_batch_size_per_learner=1024).environment("CartPole-v1")
    with pytest.raises(error, match=message):
        check_search(config, parse_search([text]))


def test_a_search_of_many_settings_is_checked_at_random_points() -> None:
    # 2**64 corners, more than a machine word counts
    check_search(PPOConfig().environment("CartPole-v1"), parse_search([f"env_config.x{n}=0|1" for n in range(64)]))


def test_values_that_only_some_points_have_are_found_without_corners() -> None:
    texts = ["minibatch_size=64|4096", *(f"{name}=0.1|0.2|0.3|0.4" for name in ("clip_param", "entropy_coeff", "lr"))]
    texts += ["num_epochs=1|2|3|4", "grad_clip=0.1|0.2|0.3|0.4"]  # 2,048 corners
    with pytest.raises(ValueError, match="minibatch_size"):
        check_search(PPOConfig(train_batch_size_per_learner=1024), parse_search(texts))


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_has_a_search_of_which_all_points_are_valid(name: str) -> None:
    algo = config_class(name)
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    search = parse_search(algo.default_search)
    check_search(algo().environment(env), search)
    assert math.prod(len({repr(dimension.at(share)) for share in (0.1, 0.9)}) for dimension in search.values()) > 1


def test_random_points_depend_on_the_generator_alone() -> None:
    search = parse_search(["lr=log:1e-5..1e-2", "num_epochs=1..20"])
    points = [point_at(search, random_shares(search, np.random.default_rng((0, number)))) for number in (3, 3, 4)]
    assert points[0] == points[1] != points[2]
