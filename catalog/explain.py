"""The path a catalog took through its decision tree, as readable text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space, spaces
from torch import nn

from catalog.actions import action_converter_rules
from catalog.base import ModelConfig, ModuleEncoder, encoder_rules
from catalog.distributions import action_distribution_rules
from catalog.model_config import DefaultModelConfig
from catalog.preprocessing import can_normalize
from catalog.rules import RuleTable

if TYPE_CHECKING:
    from catalog.catalog import Catalog

_HOOKS = ("build_", "_get_", "get_", "_determine_")
_COLUMN = 25


def explain(catalog: Catalog) -> str:
    """Rules fired and passed over, settings and where they come from, overridden hooks, nets and their sizes.

    Builds the nets once to measure them, which sets ``catalog.latent_dims``; torch's random state stays as it was.
    """
    with torch.random.fork_rng(devices=[]):
        parts = catalog._explain_parts()
    dist_cls, action_space = catalog.get_action_dist_cls(), catalog.action_space
    lines = [type(catalog).__name__, _line(1, "observation space", short_space(catalog.observation_space))]
    hook = "build_encoder" if catalog.has_custom_encoder else "_get_encoder_config"
    lines += _decision(catalog, encoder_rules, catalog.observation_space, hook)
    if catalog.encoder_config is not None and not catalog.has_custom_encoder:
        lines.append(_line(3, "config", _config(catalog.encoder_config)))
    lines.append(_line(3, "latent", f"{catalog.latent_dims}"))
    lines.append(_line(2, "standardised", _standardised(catalog)))
    lines.append(_line(1, "action space", short_space(action_space)))
    lines += _decision(catalog, action_distribution_rules, action_space, "_get_dist_cls_from_action_space")
    lines.append(_line(3, "class", f"{dist_cls.__name__}, {dist_cls.required_input_dim(action_space)} inputs"))
    lines += _decision(catalog, action_converter_rules, action_space, "build_action_converter")
    shown = (hook, "_get_dist_cls_from_action_space", "build_action_converter")
    return "\n".join(lines + _overrides(catalog, shown) + _nets(catalog, parts))


def short_space(space: Space) -> str:
    """``space`` in a few words: a Box by shape, dtype and bounds, anything long cut off."""
    if not isinstance(space, spaces.Box):
        return textwrap.shorten(str(space), 80, placeholder=" …")
    bounds = ""
    if space.low.size:
        differ = "" if len(set(space.low.flat)) == len(set(space.high.flat)) == 1 else ", bounds differ"
        bounds = f" in [{space.low.min():g}, {space.high.max():g}]{differ}"
    return f"Box{space.shape} {space.dtype}{bounds}".replace(",)", ")")


def _line(depth: int, label: str, text: str) -> str:
    start = f"{'  ' * depth}{label}".ljust(_COLUMN)
    return textwrap.fill(text, 112, initial_indent=start, subsequent_indent=" " * _COLUMN, break_long_words=False)


def _decision(catalog: Catalog, table: RuleTable[Any], space: Space, hook: str) -> list[str]:
    override, _ = _owners(catalog, hook)
    try:
        rule, passed = table.decide(space, catalog.model_config, "space")
    except ValueError:  # only an overridden hook gets here with a space the table does not know
        return [_line(2, table.what, f"{override}.{hook}(); the table has no rule for this space")]
    if override is not None:
        return [_line(2, table.what, f"{override}.{hook}(); the table alone says: {rule.name}")]
    lines = [_line(2, table.what, rule.name)]
    lines += [_line(3, "passed over", other.name) for other in passed]
    if rule.settings:
        lines.append(_line(3, "decided by", ", ".join(_setting(catalog, name) for name in rule.settings)))
    return lines


def _standardised(catalog: Catalog) -> str:
    if catalog.normalizes_observations:
        verdict = "by running mean and std"
    else:
        verdict = "no" if can_normalize(catalog.observation_space) else "no, only float Boxes are"
    return f"{verdict}: {_setting(catalog, 'normalize_observations')}"


def _setting(catalog: Catalog, name: str) -> str:
    value = getattr(catalog.model_config, name)
    if name in catalog.setting_reasons:
        return f"{name} = {value!r}, {catalog.setting_reasons[name]}"
    default = next(f for f in dataclasses.fields(DefaultModelConfig) if f.name == name).default
    return f"{name} = {value!r}" + ("" if value == default else " (set)")


def _owners(catalog: Catalog, hook: str) -> tuple[str | None, str]:
    """Names of the class that overrides ``hook`` (None if none does) and of the one that introduced it."""
    definers = [c.__qualname__.rpartition(".")[2] for c in type(catalog).__mro__ if hook in vars(c)]
    return (definers[0] if len(definers) > 1 else None), definers[-1]


def _overrides(catalog: Catalog, shown: Sequence[str]) -> list[str]:
    hooks = [name for name in dir(type(catalog)) if name.startswith(_HOOKS) and name not in shown]
    found = [(hook, *_owners(catalog, hook)) for hook in hooks]
    lines = [f"    {new}.{hook}() in place of {old}.{hook}()" for hook, new, old in found if new is not None]
    return ["  overridden", *lines] if lines else []


def _nets(catalog: Catalog, parts: Mapping[str, nn.Module]) -> list[str]:
    rows: list[tuple[str, str, str]] = []
    seen: dict[int, str] = {}
    for name, net in parts.items():
        count = sum(p.numel() for p in net.parameters())
        shared = seen.setdefault(id(net), name)
        rows.append((name, _describe(net), f"{count:,}") if shared == name else (name, f"the {shared}", "shared"))
    total = sum(p.numel() for p in nn.ModuleList(parts.values()).parameters())
    rows.append(("all", "", f"{total:,}"))
    wide = max(len(text) for _, text, _ in rows)
    sharing = _setting(catalog, "vf_share_layers") if "critic encoder" in parts else ""
    lines = [f"    {name:<{_COLUMN - 4}}{text:<{wide}}  {count:>12}" for name, text, count in rows]
    return [_line(1, "parameters", sharing) if sharing else "  parameters", *lines]


def _describe(net: nn.Module) -> str:
    """Class of ``net`` and the widths its dense layers pass through."""
    widths = ""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            joins = widths.endswith(f" → {layer.in_features}")
            widths += f" → {layer.out_features}" if joins else f"  {layer.in_features} → {layer.out_features}"
    return f"{type(net.net if isinstance(net, ModuleEncoder) else net).__name__}{widths}"


def _config(config: ModelConfig) -> str:
    """``config`` with the fields that are not at their defaults."""
    if not dataclasses.is_dataclass(config):
        return type(config).__name__
    shown = [
        f"{f.name}={short_space(value) if isinstance(value, Space) else repr(value)}"
        for f in dataclasses.fields(config)
        if f.repr and f.name != "init" and (value := getattr(config, f.name)) != f.default
    ]
    return f"{type(config).__name__}({', '.join(shown)})"
