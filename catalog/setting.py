"""What a setting of a model config can be: its part of the nets, its default, and which values it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from catalog.activations import Initializer, activation_by_name, initializer_by_name

ENCODER, HEAD, MODULE = "encoder", "head", "module"
"""What a setting shapes: encoders (may differ by part of the observation), heads (may differ by function), or all."""


def model_setting(
    part: str,
    default: Any,
    doc: str,
    expected: str = "",
    good: Callable[[Any], bool] | None = None,
    *,
    find: Callable[[Any, str], object] | None = None,
    of: str | None = None,
) -> Any:
    """A field of :class:`~catalog.model_config.DefaultModelConfig` or of a subclass that adds an algorithm's own.

    Args:
        part: What it shapes: :data:`ENCODER`, :data:`HEAD` or :data:`MODULE`.
        default: Its default; a mapping is copied.
        doc: One sentence.
        expected: What a value must be, for messages.
        good: Whether a value is that; None takes any.
        find: Finds what a good value names, and raises with where it stands if there is no such thing.
        of: The setting without which this one must be empty, if that is None.
    """
    metadata = {"doc": doc, "part": part, "expected": expected, "good": good, "find": find, "of": of}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def is_int(value: object, least: int = 1) -> bool:
    """Whether ``value`` is an int, no bool, and at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def model_flag(part: str, default: bool, doc: str) -> Any:
    """A :func:`model_setting` that is True or False."""
    return model_setting(part, default, doc, "True or False", lambda value: isinstance(value, bool))


def open_flag(part: str, doc: str) -> Any:
    """A setting that is True, False or, by default, None."""
    return model_setting(part, None, doc, "True, False or None", lambda value: value is None or isinstance(value, bool))


def widths(part: str, default: tuple[int, ...], doc: str) -> Any:
    """A setting that lists the widths of layers; the list may be empty."""

    def good(value: Any) -> bool:
        return isinstance(value, list | tuple) and all(is_int(width) for width in value)

    return model_setting(part, default, doc, "a list of widths > 0, such as [64, 64] or []", good)


def activation(part: str, default: str, doc: str) -> Any:
    """A setting that names or makes an activation."""

    def good(value: object) -> bool:
        return isinstance(value, str) or callable(value)

    expected = "the name of an activation, or a function that makes one"
    return model_setting(part, default, doc, expected, good, find=activation_by_name)


def initializer(part: str, default: Initializer, doc: str) -> Any:
    """A setting that names or is an initializer; None keeps torch's own."""

    def good(value: object) -> bool:
        return value is None or isinstance(value, str) or callable(value)

    return model_setting(part, default, doc, "a name, a function or None", good, find=initializer_by_name)


def keywords(part: str, of: str, gain: str = "") -> Any:
    """A setting with the keywords for the setting ``of``."""
    doc = f"Keywords for {of}; None means {gain}none."

    def good(value: object) -> bool:
        return value is None or isinstance(value, Mapping)

    return model_setting(part, None, doc, "a dict of keywords or None", good, of=of)


def one_of(part: str, default: Any, doc: str, *choices: Any) -> Any:
    """A setting with a few choices: names, or what is compared by identity, such as None."""

    def good(value: object) -> bool:
        return any(value is choice or (isinstance(value, str) and value == choice) for choice in choices)

    return model_setting(part, default, doc, " or ".join(map(repr, choices)), good)


def count(part: str, default: int | None, doc: str) -> Any:
    """A setting that is an int > 0; with the default None it may be None."""
    if default is None:
        return model_setting(part, default, doc, "an int > 0 or None", lambda value: value is None or is_int(value))
    return model_setting(part, default, doc, "an int > 0", is_int)


def is_filters(value: object) -> bool:
    """Whether ``value`` is one of the names, or a list of [channels, kernel, stride(, padding)]."""
    if value is None or isinstance(value, str):
        return value in (None, "nature", "impala")
    return isinstance(value, list | tuple) and len(value) > 0 and all(is_filter(entry) for entry in value)


def is_filter(entry: Any) -> bool:
    """Whether ``entry`` is one [channels, kernel, stride(, padding)]."""

    def pair(value: Any) -> bool:
        return is_int(value) or (isinstance(value, list | tuple) and len(value) == 2 and all(map(is_int, value)))

    if not isinstance(entry, list | tuple) or len(entry) not in (3, 4):
        return False
    channels, kernel, stride, *padding = entry
    return is_int(channels) and pair(kernel) and pair(stride) and padding in ([], ["same"], ["valid"])


def is_class_or_name(value: object) -> bool:
    """Whether ``value`` is None, a name, a class or a function."""
    return value is None or isinstance(value, str | type) or callable(value)


def is_key(value: object) -> bool:
    """Whether ``value`` is None or a name of a field."""
    return value is None or (isinstance(value, str) and value != "")


def is_dist(value: object) -> bool:
    """Whether ``value`` says distributions: one for all, or a dict of them by path."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_class_or_name(item) for key, item in value.items())
    return is_class_or_name(value)


def is_overrides(value: object) -> bool:
    """Whether ``value`` is a dict from names to dicts of settings."""
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(item, Mapping) for key, item in value.items()
    )
