"""The path a catalog took through its decision tree, as readable text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.actions.converters import action_converter_rules
from catalog.actions.masks import ActionMask
from catalog.base import Encoder, ModelConfig, ModuleEncoder, encoder_rules, is_marked
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution, action_distribution_rules
from catalog.encoders.attention import AttentionLayer
from catalog.encoders.preprocessing import ObservationNormalizer
from catalog.errors import closest
from catalog.explain.mermaid import Line, flowchart
from catalog.explain.unread import FUSION, memory_settings, unread_settings
from catalog.hooks import definers, overrider
from catalog.model_config import DefaultModelConfig
from catalog.past import PREV_ACTION, PREV_OBS, PREV_REWARD
from catalog.rules import Node, RuleTable
from catalog.settings import settings_of

if TYPE_CHECKING:
    from catalog.catalog import Catalog

Format: TypeAlias = Literal["text", "mermaid"]
FORMATS: tuple[str, ...] = get_args(Format)

_HOOKS = ("build_", "_get_", "get_", "_determine_")
_COLUMN = 25
_PREVIOUS = {PREV_OBS: "observation", PREV_ACTION: "action", PREV_REWARD: "reward"}


@dataclasses.dataclass(frozen=True)
class Built:
    """What was built by a catalog's decisions.

    Attributes:
        parts: Every net by name.
        mask: What keeps forbidden actions out.
        normalizer: What standardises observations.
        module: The module that has all this; None for nets that were built to be measured, the encoder first.
    """

    parts: Mapping[str, nn.Module]
    mask: ActionMask | None
    normalizer: ObservationNormalizer | None
    module: nn.Module | None = None

    @classmethod
    def by(cls, catalog: Catalog) -> Built:
        """The nets that ``catalog`` builds; none if it decides on no encoder, which heads would need."""
        with torch.random.fork_rng(devices=[]):
            parts = catalog._explain_parts() if catalog.decides_encoder else {}
            return cls(parts, catalog.build_action_mask(), catalog.build_observation_normalizer())

    @property
    def encoder(self) -> nn.Module | None:
        """The encoder that the catalog decided; None if a module has nets of its own in its place."""
        if self.module is None:
            return next(iter(self.parts.values()), None)
        return next(filter(is_marked, self.module.modules()), None)


def explain(catalog: Catalog, format: Format = "text", built: Built | None = None) -> str:
    """Rules fired and passed over, settings and where they come from, overridden hooks, nets and their sizes.

    Args:
        catalog: What to explain.
        format: "text" for an outline, "mermaid" for the same as a flowchart in the language of Mermaid, which GitHub
            and many sites of documentation draw.
        built: What to describe; None builds the nets once to measure them, which sets ``catalog.latent_dims`` and
            leaves torch's random state as it was.

    Raises:
        ValueError: If there is no such format.
    """
    if format not in FORMATS:
        raise ValueError(
            f"explain(format=): expected one of {FORMATS}, got {format!r}. Choose one of "
            f"them.{closest(str(format), FORMATS)}"
        )
    built = built or Built.by(catalog)
    name, mask, encoder = type(catalog).__name__, built.mask, built.encoder
    lines = [Line(0, name, "", name)]
    if built.module is not None:
        lines.append(_line(1, "module", type(built.module).__name__))
    lines.append(_line(1, "observation space", short_space(catalog.observation_space)))
    lines += _no_encoder(catalog, built.module) if encoder is None else _encoder(catalog, encoder)
    lines += _views(catalog, built.parts)
    if mask is not None or catalog.action_mask is not None:
        verdict = "none" if mask is None else f"observation_space[{mask.key!r}] says which actions are allowed"
        lines.append(_line(2, "action mask", f"{verdict}: {_reason(catalog, 'build_action_mask', 'action_mask_key')}"))
    if (embeddings := catalog.action_embeddings) is not None:
        where = f"observation_space[{embeddings.key!r}] has a vector of {embeddings.width} for each action"
        lines.append(_line(2, "action embeddings", f"{where}: {_setting(catalog, 'action_embeddings_key')}"))
    lines.append(_standardised(catalog, built))
    lines.append(_line(1, "action space", short_space(catalog.action_space)))
    lines += _distribution(catalog, catalog.action_node, 2)
    lines += _order(catalog)
    lines += _converter(catalog)
    lines += _own_settings(catalog)
    lines += _without_effect(catalog) if encoder is not None else []
    lines += _overrides(catalog) + _nets(catalog, built)
    return "\n".join(line.shown for line in lines) if format == "text" else flowchart(lines)


def short_space(space: Space) -> str:
    """``space`` in a few words: a Box by shape, dtype and bounds, anything long cut off."""
    if isinstance(space, spaces.Dict):
        text = f"Dict({', '.join(f'{key}: {short_space(child)}' for key, child in space.spaces.items())})"
    elif isinstance(space, spaces.Tuple):
        text = f"Tuple({', '.join(map(short_space, space.spaces))})"
    elif isinstance(space, spaces.Box):
        bounds = ""
        if space.low.size:
            differ = "" if len(set(space.low.flat)) == len(set(space.high.flat)) == 1 else ", bounds differ"
            bounds = f" in [{space.low.min():g}, {space.high.max():g}]{differ}"
        return f"Box{space.shape} {space.dtype}{bounds}".replace(",)", ")")
    else:
        text = str(space)
    return textwrap.shorten(text, 160, placeholder=" …")


def _line(depth: int, label: str, text: str) -> Line:
    start = f"{'  ' * depth}{label}".ljust(_COLUMN - 1) + " "
    filled = textwrap.fill(text, 112, initial_indent=start, subsequent_indent=" " * _COLUMN, break_long_words=False)
    return Line(depth, label, text, filled)


def _encoder(catalog: Catalog, net: nn.Module, label: str = "encoder") -> list[Line]:
    """The tree of the encoder, with the sizes of ``net`` and its parts."""
    root = catalog.encoder_node
    if (hook := overrider(catalog, "build_encoder")) is not None:
        lines = _decision(catalog, encoder_rules, root, 2, label, decider=f"{hook}.build_encoder()")
        if catalog.model_config.is_recurrent:
            decided = _decided(catalog, memory_settings(catalog.model_config), 4)
            lines += [_line(3, "followed by", _memory(catalog)), decided]
        return [*lines, _line(3, "latent", f"{catalog.latent_dims}")] if catalog._latent_dims is not None else lines
    assert catalog.encoder_config is not None
    ends = [_line(3, "config", _config(catalog.encoder_config)), _line(3, "latent", f"{catalog.latent_dims}")]
    if catalog.encoder_config is not catalog._tree_config:
        decider = f"{overrider(catalog, '_determine_components_hook')}._determine_components_hook()"
        return _decision(catalog, encoder_rules, root, 2, label, decider=decider) + ends
    config = catalog.model_config
    joins = catalog.input_space is not catalog.observation_space and not catalog._feeds_own_encoder
    if not config.is_recurrent and not joins:
        return _encoder_node(catalog, root, net, 2, label)
    lines = [_line(2, label, _memory(catalog)), _decided(catalog, memory_settings(config) or FUSION, 3), *ends]
    for _ in range(config.is_recurrent + joins):
        assert isinstance(net, Encoder)
        net = net.parts()[0]
    return lines + _encoder_node(catalog, root, net, 2, "tokenizer" if config.is_recurrent else "encoder of each step")


def _no_encoder(catalog: Catalog, module: nn.Module | None) -> list[Line]:
    """Who makes the encoder, where none that the catalog built is to be seen."""
    if not catalog.decides_encoder:
        decider = f"none by {overrider(catalog, '_determine_components_hook')}._determine_components_hook()"
    else:
        name = type(module).__name__
        if (hook := overrider(catalog, "build_encoder")) is None:
            told = f"none by {type(catalog).__name__}.build_encoder(); the nets of {name} are listed below"
            return [_line(2, "encoder", told)]
        decider = f"{hook}.build_encoder(), if {name} calls it"
    return _decision(catalog, encoder_rules, catalog.encoder_node, 2, "encoder", decider=decider)


def _standardised(catalog: Catalog, built: Built) -> Line:
    done = "no" if built.normalizer is None else "by running mean and std"
    reason = _reason(catalog, "build_observation_normalizer", "normalize_observations")
    differs = (built.normalizer is None) == catalog.normalizes_observations
    if built.module is not None and differs and overrider(catalog, "build_observation_normalizer") is None:
        reason = f"{type(built.module).__name__} decides it"
    return _line(2, "standardised", f"{done}: {reason}")


def _memory(catalog: Catalog) -> str:
    steps = {} if catalog.input_space is catalog.observation_space else catalog.past_view.steps
    words = [f"the previous {_PREVIOUS[name] if k == 1 else f'{k} {_PREVIOUS[name]}s'}" for name, k in steps.items()]
    parts = " and ".join(["the encoding of each step", *words])
    config = catalog.model_config
    if config.use_attention:
        return f"Attention to the last {config.attention_memory} steps and this one, over {parts}"
    return f"{'LSTM' if config.use_lstm else 'GRU' if config.use_gru else 'Dense layers'} over {parts}"


def _encoder_node(
    catalog: Catalog, node: Node[ModelConfig], net: nn.Module | None, depth: int, label: str
) -> list[Line]:
    first = ["get_tokenizer_config"] if node.model_config.is_recurrent and not node.keys else []
    lines = _decision(catalog, encoder_rules, node, depth, label, [*first, "_get_encoder_config"])
    config = node.result
    if config is not None:
        lines += [_line(depth + 1, "config", _config(config))]
        size = "" if net is None else f", {_count(net.parameters())} parameters"
        lines += [_line(depth + 1, "latent", f"{tuple(config.output_dims)}{size}")]
    nets = [*net.parts()] if isinstance(net, Encoder) else []
    for index, child in enumerate(node.children):
        inner = nets[index] if len(nets) == len(node.children) else None
        lines.append(_line(depth + 1, str(child.keys[-1]), short_space(child.space)))
        lines += _encoder_node(catalog, child, inner, depth + 2, "encoder")
    return lines


def _views(catalog: Catalog, parts: Mapping[str, nn.Module]) -> list[Line]:
    """The encoders of functions whose settings differ from the first one's."""
    lines: list[Line] = []
    names = {"value": "critic encoder"} | {name: f"{name!r} encoder" for name in catalog.extra_outputs}
    for function, part in names.items():
        view = catalog.for_function(function)
        if view is not catalog and view._trunk is view and part in parts and is_marked(parts[part]):
            lines += _encoder(view, parts[part], f"for {function}")
            if catalog.reads_raw(function):
                lines.append(_line(3, "standardised", f"no: {_setting(view, 'normalize_observations')}"))
    return lines


def _decision(
    catalog: Catalog,
    table: RuleTable[Any],
    node: Node[Any],
    depth: int,
    label: str,
    hooks: Sequence[str] = (),
    decider: str = "",
) -> list[Line]:
    """Which rule, hook or setting (``decider``) decided ``node``, what was passed over, and which settings counted."""
    owners = [f"{owner}.{hook}()" for hook in hooks if (owner := overrider(catalog, hook)) is not None]
    if decider or node.rule is None:
        try:
            alone = f"the table alone says: {table.find(node.space, node.model_config, node.path)[0].name}"
        except ValueError:
            alone = "the table has no rule for this space"
        return [_line(depth, label, f"{decider or ' or '.join(owners)}; {alone}")]
    lines = [_line(depth, label, node.rule.name)]
    lines += [_line(depth + 1, "asked first", f"{owner}, which left it to the tree") for owner in owners]
    if node.passed:
        lines.append(_line(depth + 1, "passed over", "; ".join(other.name for other in node.passed)))
    if node.rule.settings:
        lines.append(_decided(catalog, node.rule.settings, depth + 1, node))
    return lines


def _decided(catalog: Catalog, names: Sequence[str], depth: int, node: Node[Any] | None = None) -> Line:
    config = catalog.model_config if node is None else node.model_config
    told = [name for name in names if not (name.endswith("_kwargs") and getattr(config, name) is None)]
    if node is not None and node.keys:  # the parts of a space would only repeat the defaults
        told = [name for name in told if name == told[0] or _setting(catalog, name, node).endswith(")")]
    return _line(depth, "decided by", ", ".join(_setting(catalog, name, node) for name in told))


def _distribution(catalog: Catalog, node: Node[type[Distribution]], depth: int) -> list[Line]:
    given = catalog.model_config.custom_action_dist
    mine = given.get(node.name) if isinstance(given, Mapping) else given if not node.keys else None
    decider = "" if mine is None else f"custom_action_dist = {mine!r} (set)"
    dist_cls, label = node.result, "distribution"
    if not node.keys:
        dist_cls, label = catalog.bound_dist_cls, "action distribution"
        if (owner := overrider(catalog, "get_action_dist_cls")) is not None:
            decider = f"{owner}.get_action_dist_cls()"
        elif node.result is None:
            decider = f"{overrider(catalog, '_determine_components_hook')}._determine_components_hook()"
    hooks = ["_get_dist_cls_from_action_space"]
    lines = _decision(catalog, action_distribution_rules, node, depth, label, hooks, decider)
    if dist_cls is not None:
        width = dist_cls.required_input_dim(node.space)
        lines.append(_line(depth + 1, "class", f"{dist_cls.__name__}, {width} inputs"))
    for child in node.children:
        lines.append(_line(depth + 1, str(child.keys[-1]), short_space(child.space)))
        lines += _distribution(catalog, child, depth + 2)
    return lines


def _order(catalog: Catalog) -> list[Line]:
    """Which part of an action knows which."""
    dist_cls = catalog.bound_dist_cls
    if not issubclass(dist_cls, AutoregressiveDistribution):
        return []
    order = " → ".join(part.name for part in dist_cls.parts)
    settings = ("autoregressive_actions", "autoregressive_hiddens", "autoregressive_context_dim")
    inputs = f"{dist_cls.width + dist_cls.context_dim} inputs, {dist_cls.context_dim} of them for the action model"
    return [
        _line(2, "autoregressive", f"each part given those before it: {order}; {inputs}"),
        _decided(catalog, settings, 3),
    ]


def _without_effect(catalog: Catalog) -> list[Line]:
    """Settings that differ from their defaults and that nothing here reads."""
    unread = [f"{name} = {value!r} (set)" for name, value in unread_settings(catalog).items()]
    return [_line(1, "without effect", ", ".join(unread))] if unread else []


def _converter(catalog: Catalog) -> list[Line]:
    root, label = catalog.converter_node, "action converter"
    if (owner := overrider(catalog, "build_action_converter")) is not None:
        decider = f"{owner}.build_action_converter()"
        return _decision(catalog, action_converter_rules, root, 2, label, decider=decider)
    root.run()  # which leaves the record
    lines: list[Line] = []
    for node in root.walk():
        label = str(node.keys[-1]) if node.keys else label
        lines += _decision(catalog, action_converter_rules, node, 2 + len(node.keys), label)
    return lines


def _own_settings(catalog: Catalog) -> list[Line]:
    """Settings that the catalog's own class of model configs adds."""
    own = [name for name in settings_of(type(catalog.model_config)) if name not in settings_of(DefaultModelConfig)]
    return [_line(1, "settings of its own", ", ".join(_setting(catalog, name) for name in own))] if own else []


def _reason(catalog: Catalog, hook: str, name: str) -> str:
    """What decided: ``hook`` where it is overridden, else the setting ``name``."""
    owner = overrider(catalog, hook)
    return _setting(catalog, name) if owner is None else f"{owner}.{hook}()"


def _setting(catalog: Catalog, name: str, node: Node[Any] | None = None) -> str:
    """Name and value of a setting, and where the value comes from unless it is the default."""
    value = getattr(catalog.model_config if node is None else node.model_config, name)
    shown = f"{name} = {value.__name__ if isinstance(value, type) else value!r}"
    if name in catalog.setting_reasons:
        return f"{shown}, {catalog.setting_reasons[name]}"
    if value == settings_of(type(catalog.model_config))[name].default:
        return shown
    if node is not None and value != getattr(catalog.model_config, name):
        above = (".".join(map(str, node.keys[:end])) for end in range(len(node.keys), 0, -1))  # innermost first
        leaf = next(leaf for leaf in above if name in catalog.model_config.leaf_overrides.get(leaf, {}))
        return f"{shown} (set at {leaf!r})"
    return f"{shown} (set)"


def _overrides(catalog: Catalog) -> list[Line]:
    lines = []
    for hook in dir(type(catalog)):
        names = definers(type(catalog), hook)
        if hook.startswith(_HOOKS) and len(names) > 1:
            text = f"{names[0]}.{hook}() in place of {names[-1]}.{hook}()"
            lines.append(Line(2, "", text, f"    {text}"))
    return [Line(1, "overridden", "", "  overridden"), *lines] if lines else []


def _nets(catalog: Catalog, built: Built) -> list[Line]:
    if not built.parts and built.module is None:
        return []
    rows: list[tuple[str, str, str]] = []
    seen: dict[int, str] = {}
    parts, whole = built.parts, built.module or nn.ModuleList(built.parts.values())
    for name, net in parts.items():
        shared = seen.setdefault(id(net), name)
        is_new = shared == name
        rows.append((name, _describe(net), _count(net.parameters())) if is_new else (name, f"the {shared}", "shared"))
    told = {p for net in parts.values() for p in net.parameters()}
    if others := [p for p in whole.parameters() if p not in told]:
        rows.append(("others", "", _count(others)))
    rows.append(("all", "", _count(whole.parameters())))
    wide = max(len(text) for _, text, _ in rows)
    sharing = _setting(catalog, "vf_share_layers") if "critic encoder" in parts else ""
    if sharing and not catalog.model_config.vf_share_layers and catalog.for_function("value").model_config.is_recurrent:
        sharing += "; the critic's own memory runs wherever the policy acts, to keep its state"
    lines = [
        Line(2, name, f"{text}  {count}", f"    {name:<{_COLUMN - 5}} {text:<{wide}}  {count:>12}")
        for name, text, count in rows
    ]
    return [_line(1, "parameters", sharing) if sharing else Line(1, "parameters", "", "  parameters"), *lines]


def _count(parameters: Iterable[Tensor]) -> str:
    return f"{sum(p.numel() for p in parameters):,}"


def _describe(net: nn.Module) -> str:
    """Class of ``net`` and the widths its layers pass through."""
    widths = ""
    inside = {part for layer in net.modules() if isinstance(layer, AttentionLayer) for part in layer.children()}
    for layer in net.modules():
        ends = None if layer in inside else _ends(layer)
        if ends is not None:
            joins = widths.endswith(f" → {ends[0]}")
            widths += f" → {ends[1]}" if joins else f"  {ends[0]} → {ends[1]}"
    name = type(net.net if isinstance(net, ModuleEncoder) else net).__name__
    return textwrap.shorten(f"{name}{widths}".replace("  ", " · "), 72, placeholder=" …").replace(" · ", "  ")


def _ends(layer: nn.Module) -> tuple[int, int] | None:
    """Input and output width of a dense, convolutional, recurrent or attention layer; None for anything else."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels, layer.out_channels
    if isinstance(layer, nn.LSTM | nn.GRU):
        return layer.input_size, layer.hidden_size
    return (layer.dim, layer.dim) if isinstance(layer, AttentionLayer) else None


def _config(config: ModelConfig) -> str:
    """``config`` with the fields that are not at their defaults; parts only by name, since they come below."""
    if not dataclasses.is_dataclass(config):
        return type(config).__name__
    shown = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        is_default = not isinstance(value, ModelConfig | Space | Mapping) and value == item.default
        if item.repr and not item.name.endswith("init") and not is_default:
            shown.append(f"{item.name}={_value(value)}")
    return f"{type(config).__name__}({', '.join(shown)})"


def _value(value: Any) -> str:
    if isinstance(value, Space):
        return short_space(value)
    if isinstance(value, ModelConfig):
        return f"{type(value).__name__}(…)"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_value(item)}" for key, item in value.items()) + "}"
    return value.__name__ if isinstance(value, type) else repr(value)
