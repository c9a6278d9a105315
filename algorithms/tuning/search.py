"""What to search: a range or choices for each dotted name of a setting.

::

    lr=log:1e-5..1e-2                              on a logarithmic scale
    gamma=1-log:1e-4..0.1                          1 minus such a value, for settings close to 1
    num_epochs=1..20                               whole numbers, as both ends are
    clip_param=0.1..0.4
    model_config.fcnet_hiddens=[64,64]|[256,256]   choices: JSON, or text such as relu|tanh

A point is drawn as a *share* in [0, 1] for each name, which :meth:`Range.at` and :meth:`Choices.at` turn into values.
So a sampler knows neither scales nor types.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from algorithms.config import AlgorithmConfig
from algorithms.tuning.point import applied

MOST_CORNERS = 1024
"""Corners of a search that are checked before it begins; of a search with more, none are."""
NUM_CHECKED = 20
"""Random points that are checked, too."""
_PYTHON_WORDS = {"None": None, "True": True, "False": False}


@dataclass(frozen=True)
class Range:
    """Numbers between two ends.

    Attributes:
        low, high: The ends; ``log`` and ``from_one`` apply to what they say.
        log: Whether shares are even on a logarithmic scale.
        from_one: Whether values are 1 minus a number between the ends.
        is_whole: Whether values are whole numbers.
    """

    low: float
    high: float
    log: bool = False
    from_one: bool = False
    is_whole: bool = False

    def at(self, share: float) -> float:
        """Return the value at ``share`` of the way, rounded to four digits."""
        high = self.high + self.is_whole  # a whole number covers the shares up to the next
        value = self.low * (high / self.low) ** share if self.log else self.low + share * (high - self.low)
        if self.is_whole:
            return min(math.floor(value), int(self.high))
        rounded = min(max(float(f"{value:.4g}"), self.low), self.high)  # rounding may go beyond an end
        return round(1 - rounded, 10) if self.from_one else rounded


@dataclass(frozen=True)
class Choices:
    """Some values.

    Attributes:
        values: The values.
    """

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value whose part of [0, 1] holds ``share``; all have equal parts."""
        return self.values[self.index_at(share)]

    def index_at(self, share: float) -> int:
        """Return the index of the value at ``share``."""
        return min(int(share * len(self.values)), len(self.values) - 1)

    def share_of(self, index: int) -> float:
        """Return the middle of the part of a value."""
        return (index + 0.5) / len(self.values)


Search: TypeAlias = Mapping[str, Range | Choices]
"""Dotted name of a setting → what to search."""


def parse_search(texts: Sequence[str]) -> dict[str, Range | Choices]:
    """Return the search that ``texts`` describe, each like ``lr=log:1e-5..1e-2``.

    Raises:
        ValueError: If a text is malformed, or a name occurs twice.
    """
    search: dict[str, Range | Choices] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name and equals and values):
            raise _malformed(text, "no name and values")
        if name in search:
            raise ValueError(f"search: expected each setting once, got {name} twice. Leave one out.")
        search[name] = _range(text, values) if ".." in values else _choices(values)
    if not search:
        raise _malformed("", "nothing to search")
    return search


def _range(text: str, values: str) -> Range:
    scale, colon, ends = values.rpartition(":")
    low_text, _, high_text = ends.partition("..")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        low = high = math.nan
    if not math.isfinite(high - low) or high_text.startswith("."):  # 1e-4...1e-2 would end at .1e-2
        raise _malformed(text, "ends that are no numbers")
    if colon and scale not in ("log", "1-log"):
        raise _malformed(text, f"the scale {scale}")
    if low >= high or (colon and low <= 0):
        raise _malformed(text, "ends in this order" if low >= high else "an end <= 0 on a logarithmic scale")
    digits = [end.removeprefix("-").replace("_", "") for end in (low_text, high_text)]
    is_whole = scale != "1-log" and all(map(str.isdigit, digits))
    return Range(low, high, log=bool(colon), from_one=scale == "1-log", is_whole=is_whole)


def _choices(values: str) -> Choices:
    def value_of(word: str) -> Any:
        if word in _PYTHON_WORDS:
            return _PYTHON_WORDS[word]
        try:
            return json.loads(word)
        except ValueError:
            return word  # such as relu

    return Choices(tuple(value_of(word) for word in values.split("|")))


def _malformed(text: str, got: str) -> ValueError:
    return ValueError(
        f"search: expected NAME=LOW..HIGH, NAME=log:LOW..HIGH, NAME=1-log:LOW..HIGH or NAME=A|B, got {text!r} with "
        f"{got}. Write lr=log:1e-5..1e-2, say."
    )


def point_at(search: Search, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return the values of a search at ``shares``, by name."""
    return {name: dimension.at(shares[name]) for name, dimension in search.items()}


def checked_shares(search: Search, shares: Any) -> dict[str, float]:
    """Return ``shares`` from a file.

    Raises:
        ValueError: If they are not a number in [0, 1] for each name of the search.
    """
    has_names = isinstance(shares, dict) and shares.keys() == search.keys()
    if has_names and all(isinstance(share, float) and 0 <= share <= 1 for share in shares.values()):
        return shares
    raise ValueError(f"expected a number in [0, 1] for each of {', '.join(search)}, got {shares!s:.80}")


def check_search(config: AlgorithmConfig, search: Search) -> None:
    """Apply corners and random points of a search to ``config``, to find wrong names and values before any trial.

    Raises:
        TypeError, ValueError: If a name does not exist, or a value does not fit it or the other settings; or if results
            could not be compared.
    """
    if "env" in search:
        raise ValueError(
            "search: expected one env for all trials, since returns in different envs cannot be compared, got a search "
            "of env. Tune for each env in turn, or search its options: env_config.NAME=A|B."
        )
    changed = config
    for shares in _samples(search):
        changed = applied(config, point_at(search, shares))
    for name, dimension in search.items():
        if isinstance(dimension, Range) and dimension.is_whole and isinstance(vars(changed).get(name), float):
            low, high, scale = dimension.low, dimension.high, "log:" if dimension.log else ""
            raise ValueError(
                f"search: expected ends with a point for {name}, which need not be whole, got {scale}{low:.0f}.."
                f"{high:.0f}, which means whole numbers alone. Write {scale}{low}..{high}, or {low:.0f}|{high:.0f} for "
                "these two."
            )


def _samples(search: Search) -> Iterator[dict[str, float]]:
    ends = [_shares_of(dimension) for dimension in search.values()]
    if math.prod(map(len, ends)) <= MOST_CORNERS:
        for corner in itertools.product(*ends):
            yield dict(zip(search, corner, strict=True))
    rng = np.random.default_rng(0)
    for _ in range(NUM_CHECKED):
        yield random_shares(search, rng)


def _shares_of(dimension: Range | Choices) -> list[float]:
    """Return the shares of the corners: both ends, or all choices."""
    if isinstance(dimension, Range):
        return [0.0, 1.0]
    return [dimension.share_of(index) for index in range(len(dimension.values))]


def random_shares(search: Search, rng: np.random.Generator) -> dict[str, float]:
    """Draw a share for each name."""
    return {name: round(float(rng.random()), 6) for name in search}
