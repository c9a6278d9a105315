"""Descriptions of how a catalog decided, as text or as a flowchart."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.actions.converters import action_converter_rules
from catalog.actions.embeddings import ActionEmbeddings
from catalog.actions.masks import ActionMask
from catalog.base import Encoder, ModelConfig, ModuleEncoder, encoder_rules, is_marked
from catalog.distributions.action_models import ActionModel
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution, action_distribution_rules
from catalog.encoders.attention import AttentionLayer
from catalog.encoders.dense import DenseEnsemble
from catalog.encoders.extra_heads import ExtraOutputs
from catalog.encoders.multi_stream import MultiStreamEncoder
from catalog.encoders.preprocessing import ObservationNormalizer
from catalog.explain.mermaid import Line, flowchart
from catalog.explain.unread import FUSION, memory_settings, unread_settings
from catalog.hooks import definers, overrider
from catalog.model_config import DefaultModelConfig, settings_about
from catalog.past import PREV_ACTION, PREV_OBS, PREV_REWARD
from catalog.rules import Node, RuleTable
from catalog.settings import settings_of
from catalog_rl import unknown

if TYPE_CHECKING:
    from catalog.catalog import Catalog

Format: TypeAlias = Literal["text", "mermaid"]
FORMATS: tuple[str, ...] = get_args(Format)

_HOOKS = ("build_", "_get_", "get_", "_determine_")
_COLUMN = 25
_PREVIOUS = {PREV_OBS: "observation", PREV_ACTION: "action", PREV_REWARD: "reward"}


@dataclasses.dataclass(frozen=True)
class Built:
    """The nets that were built from a catalog's decisions.

    Attributes:
        parts: Every net by name.
        mask: The module that masks forbidden actions; None if there is none.
        normalizer: The module that standardises observations; None if there is none.
        module: The module that has these nets. It is None if the nets were built only to be measured, in which case the
            first net of ``parts`` is the encoder.
    """

    parts: Mapping[str, nn.Module]
    mask: ActionMask | None
    normalizer: ObservationNormalizer | None
    module: nn.Module | None = None

    @classmethod
    def by(cls, catalog: Catalog) -> Built:
        """Build the nets of ``catalog`` without changing torch's random state. If the catalog chose no encoder,
        ``parts`` is empty, because heads need the width of the encoder."""
        with torch.random.fork_rng(devices=[]):
            parts = catalog._explain_parts() if catalog.decides_encoder else {}
            return cls(parts, catalog.build_action_mask(), catalog.build_observation_normalizer())

    @property
    def encoder(self) -> nn.Module | None:
        """The encoder that the catalog built; None if the module has a custom encoder instead."""
        if self.module is None:
            return next(iter(self.parts.values()), None)
        return next(filter(is_marked, self.module.modules()), None)


def explain(catalog: Catalog, format: Format = "text", built: Built | None = None) -> str:
    """Return a description of the rules that applied or were skipped, the settings and their origin, the
    overridden hooks, and the nets.

    Args:
        catalog: The catalog to explain.
        format: "text" for an outline, or "mermaid" for a flowchart in the Mermaid language, which GitHub and many
            documentation sites render.
        built: The nets to describe. None builds them once to measure them, which sets ``catalog.latent_dims`` but
            leaves torch's random state as it was.

    Raises:
        ValueError: If ``format`` is unknown.
    """
    if format not in FORMATS:
        raise unknown("explain(format=)", "formats", FORMATS, format, "Choose one of them.")
    lines = [*_lines(catalog, built or Built.by(catalog))]
    return "\n".join(map(_shown, lines)) if format == "text" else flowchart(lines)


def further_nets(
    embeddings: ActionEmbeddings | None, action_model: ActionModel | None, extra_outputs: ExtraOutputs | None
) -> dict[str, nn.Module]:
    """Return, by name, the nets that a module has in addition to encoder and heads: the action embeddings and the
    action model if they have parameters, and the nets of the extra outputs."""
    nets = {"action embeddings": embeddings, "action model": action_model}
    found = {name: net for name, net in nets.items() if net is not None and [*net.parameters()]}
    return found if extra_outputs is None else found | extra_outputs.parts()


def _shown(line: Line) -> str:
    start = f"{'  ' * line.depth}{line.label}"
    if not line.text:
        return start
    first, others = f"{start:<{_COLUMN - 1}} ", " " * _COLUMN
    return textwrap.fill(line.text, 112, initial_indent=first, subsequent_indent=others, break_long_words=False)


def _lines(catalog: Catalog, built: Built) -> Iterator[Line]:
    module, encoder = built.module, built.encoder
    yield Line(0, type(catalog).__name__)
    if module is not None:
        yield Line(1, "module", type(module).__name__)
    yield Line(1, "observation space", short_space(catalog.observation_space))
    yield from _no_encoder(catalog, module) if encoder is None else _encoder(catalog, encoder)
    yield from _views(catalog, built.parts)
    yield from _special_fields(catalog, built.mask)
    yield _standardised(catalog, built)
    yield Line(1, "action space", short_space(catalog.action_space))
    yield from _distribution(catalog, catalog.action_node)
    yield from _order(catalog)
    yield from _converter(catalog)
    shared = settings_of(DefaultModelConfig)
    further = [name for name in settings_of(type(catalog.model_config)) if name not in shared]
    if further:
        yield Line(1, "settings of its own", ", ".join(_setting(catalog, name) for name in further))
    if encoder is not None:  # a module with nets of its own may read any setting
        unread = unread_settings(catalog)
        if unread:
            yield Line(1, "without effect", ", ".join(f"{name} = {value!r} (set)" for name, value in unread.items()))
    yield from _overrides(type(catalog))
    if built.parts or module is not None:
        yield from _nets(catalog, built)


def _special_fields(catalog: Catalog, mask: ActionMask | None) -> Iterator[Line]:
    """Yield lines about the fields of the observation that not every encoder reads. ``mask`` is the module that masks
    forbidden actions."""
    keys = catalog.model_config.critic_only_keys
    if keys:
        fields = ", ".join(f"observation_space[{key!r}]" for key in keys)
        yield Line(2, "critic only", f"{fields}: a policy acts without: {_setting(catalog, 'critic_only_keys')}")
    if mask is not None or catalog.action_mask is not None:
        verdict = "none" if mask is None else f"observation_space[{mask.key!r}] says which actions are allowed"
        reason = overrider(catalog, "build_action_mask") or _setting(catalog, "action_mask_key")
        yield Line(2, "action mask", f"{verdict}: {reason}")
    embeddings = catalog.action_embeddings
    if embeddings is not None:
        where = f"observation_space[{embeddings.key!r}] has a vector of {embeddings.width} for each action"
        yield Line(2, "action embeddings", f"{where}: {_setting(catalog, 'action_embeddings_key')}")


def short_space(space: Space) -> str:
    """Return a description of ``space`` of at most 160 characters, with shape, dtype and bounds of each Box."""
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


def _encoder(catalog: Catalog, net: nn.Module, label: str = "encoder") -> Iterator[Line]:
    """Yield lines that describe the decisions about the encoder ``net``, and the sizes of the net and its parts."""
    root, config = catalog.encoder_node, catalog.model_config
    if overrider(catalog, "build_encoder"):
        yield from _custom_encoder(catalog, label)
        return
    assert catalog.encoder_config is not None
    ends = [Line(3, "config", _config(catalog.encoder_config)), Line(3, "latent", f"{catalog.latent_dims}")]
    if catalog.encoder_config is not catalog._tree_config:  # a hook replaced what the tree chose
        hook = overrider(catalog, "_determine_components_hook")
        yield from _decision(catalog, encoder_rules, root, 2, label, decider=hook)
        yield from ends
        return
    joins = catalog._sees_more and not catalog._feeds_own_encoder
    if config.is_recurrent or joins:
        yield Line(2, label, _memory(catalog))
        yield _decided(catalog, memory_settings(config) or FUSION, 3, root)
        yield from ends
        label = "tokenizer" if config.is_recurrent else "encoder of each step"
    # the net with a memory, and the one that joins earlier steps, are around the encoder that the tree chose
    for _ in range(config.is_recurrent + joins):
        assert isinstance(net, Encoder)
        net = net.parts()[0]
    yield from _encoder_node(catalog, root, net, label)


def _custom_encoder(catalog: Catalog, label: str) -> Iterator[Line]:
    """Yield lines that describe the encoder of an overridden ``build_encoder``."""
    root, config = catalog.encoder_node, catalog.model_config
    yield from _decision(catalog, encoder_rules, root, 2, label, decider=overrider(catalog, "build_encoder"))
    read = {*memory_settings(config), *catalog.further_settings}
    texts = [_setting(catalog, name) for name in config.encoder_settings() if name not in read]
    changed = ", ".join(text for text in texts if text.endswith("(set)"))
    if changed:
        yield Line(3, "left to it", f"{changed}: no effect unless it reads them")
    if config.is_recurrent:
        yield Line(3, "followed by", _memory(catalog))
        yield _decided(catalog, memory_settings(config), 4, root)
    if catalog._latent_dims is not None:
        yield Line(3, "latent", f"{catalog.latent_dims}")


def _no_encoder(catalog: Catalog, module: nn.Module | None) -> Iterator[Line]:
    """Yield lines that describe where the encoder comes from if the catalog built none. ``module`` is the
    :attr:`Built.module` of the nets."""
    name, hook = type(module).__name__, overrider(catalog, "build_encoder")
    if not catalog.decides_encoder:
        decider = f"none by {overrider(catalog, '_determine_components_hook')}"
    elif hook:
        decider = f"{hook}, if {name} calls it"
    else:
        source = f"none by {type(catalog).__name__}.build_encoder(); the nets of {name} are listed below"
        yield Line(2, "encoder", source)
        return
    yield from _decision(catalog, encoder_rules, catalog.encoder_node, 2, "encoder", decider=decider)


def _standardised(catalog: Catalog, built: Built) -> Line:
    done = "no" if built.normalizer is None else "by running mean and std"
    reason = overrider(catalog, "build_observation_normalizer")
    if built.module is not None and (built.normalizer is None) == catalog.normalizes_observations:
        reason = reason or f"{type(built.module).__name__} decides it"
    return Line(2, "standardised", f"{done}: {reason or _setting(catalog, 'normalize_observations')}")


def _memory(catalog: Catalog) -> str:
    parts = ["the encoding of each step"]
    for name, steps in catalog.past_view.steps.items() if catalog._sees_more else ():
        noun = _PREVIOUS[name]
        parts.append(f"the previous {noun}" if steps == 1 else f"the previous {steps} {noun}s")
    config = catalog.model_config
    if config.use_attention:
        net = f"Attention to the last {config.attention_memory} steps and this one,"
    elif config.use_lstm:
        net = "LSTM"
    else:
        net = "GRU" if config.use_gru else "Dense layers"
    return f"{net} over {' and '.join(parts)}"


def _encoder_node(catalog: Catalog, node: Node[ModelConfig], net: nn.Module | None, label: str) -> Iterator[Line]:
    depth = 2 + 2 * len(node.keys)
    first = ["get_tokenizer_config"] if node.model_config.is_recurrent and not node.keys else []
    yield from _decision(catalog, encoder_rules, node, depth, label, [*first, "_get_encoder_config"])
    if node.result is not None:
        size = "" if net is None else f", {_count(net.parameters())} parameters"
        yield Line(depth + 1, "config", _config(node.result))
        yield Line(depth + 1, "latent", f"{tuple(node.result.output_dims)}{size}")
    nets = [*net.parts()] if isinstance(net, Encoder) else []
    for index, child in enumerate(node.children):
        yield Line(depth + 1, str(child.keys[-1]), short_space(child.space))
        inner = nets[index] if len(nets) == len(node.children) else None
        yield from _encoder_node(catalog, child, inner, "encoder")


def _views(catalog: Catalog, parts: Mapping[str, nn.Module]) -> Iterator[Line]:
    """Yield lines about the encoders in ``parts`` that the value function and extra outputs have to themselves."""
    names = {"value": "critic encoder"} | {name: f"{name!r} encoder" for name in catalog.extra_outputs}
    for function, part in names.items():
        view = catalog.for_function(function)
        if view is not catalog and view._trunk is view and part in parts and is_marked(parts[part]):
            yield from _encoder(view, parts[part], f"for {function}")
            if catalog.reads_raw(function):
                yield Line(3, "standardised", f"no: {_setting(view, 'normalize_observations')}")


def _decision(
    catalog: Catalog,
    table: RuleTable[Any],
    node: Node[Any],
    depth: int,
    label: str,
    hooks: Sequence[str] = (),
    decider: str = "",
) -> Iterator[Line]:
    """Yield lines that describe how ``node`` was decided: the rule, the rules skipped, and the settings read.

    Args:
        catalog: The catalog.
        table: The table of rules for this kind of node.
        node: The decision.
        depth: Indentation of the first line.
        label: Label of the first line.
        hooks: Names of the catalog methods that are called before the table is read.
        decider: Text that names the hook or setting that decided in place of the tree; empty if the tree decided.
    """
    owners = [owner for hook in hooks if (owner := overrider(catalog, hook))]
    if decider or node.rule is None:
        try:
            alone = f"the table alone says: {table.find(node.space, node.model_config, node.path)[0].name}"
        except ValueError:
            alone = "the table has no rule for this space"
        yield Line(depth, label, f"{decider or ' or '.join(owners)}; {alone}")
        return
    yield Line(depth, label, node.rule.name)
    for owner in owners:
        yield Line(depth + 1, "asked first", f"{owner}, which left it to the tree")
    if node.passed:
        yield Line(depth + 1, "skipped", "; ".join(rule.name for rule in node.passed))
    if node.reads:
        yield _decided(catalog, node.reads, depth + 1, node)


def _decided(catalog: Catalog, names: Sequence[str], depth: int, node: Node[Any]) -> Line:
    config = node.model_config
    shown = [name for name in names if not (name.endswith("_kwargs") and getattr(config, name) is None)]
    return Line(depth, "decided by", ", ".join(_setting(catalog, name, node) for name in shown))


def _distribution(catalog: Catalog, node: Node[type[Distribution]]) -> Iterator[Line]:
    depth = 2 + 2 * len(node.keys)
    custom = catalog._custom_dist(node)
    decider = "" if custom is None else f"custom_action_dist = {custom!r} (set)"
    dist_cls, label = node.result, "distribution"
    if not node.keys:
        dist_cls, label = catalog.bound_dist_cls, "action distribution"
        if node.result is None:
            decider = overrider(catalog, "_determine_components_hook")
        decider = overrider(catalog, "get_action_dist_cls") or decider
    hooks = ["_get_dist_cls_from_action_space"]
    yield from _decision(catalog, action_distribution_rules, node, depth, label, hooks, decider)
    if dist_cls is not None:
        width = dist_cls.required_input_dim(node.space)
        yield Line(depth + 1, "class", f"{dist_cls.__name__}, {width} inputs")
    for child in node.children:
        yield Line(depth + 1, str(child.keys[-1]), short_space(child.space))
        yield from _distribution(catalog, child)


def _order(catalog: Catalog) -> Iterator[Line]:
    """Yield lines that describe the order in which the parts of an action depend on each other, if they do."""
    dist_cls = catalog.bound_dist_cls
    if issubclass(dist_cls, AutoregressiveDistribution):
        order = " → ".join(part.name for part in dist_cls.parts)
        inputs = f"{dist_cls.width + dist_cls.context_dim} inputs, {dist_cls.context_dim} of them for the action model"
        yield Line(2, "autoregressive", f"each part given those before it: {order}; {inputs}")
        yield _decided(catalog, settings_about("autoregressive_"), 3, catalog.action_node)


def _converter(catalog: Catalog) -> Iterator[Line]:
    root, hook = catalog.converter_node, overrider(catalog, "build_action_converter")
    if not hook:
        root.run()  # records the decisions in the nodes
    for node in [root] if hook else root.walk():
        label = str(node.keys[-1]) if node.keys else "action converter"
        yield from _decision(catalog, action_converter_rules, node, 2 + len(node.keys), label, decider=hook)


def _setting(catalog: Catalog, name: str, node: Node[Any] | None = None) -> str:
    """Return the name and value of a setting as text, with the origin of the value unless it is the default.

    The value is that of ``node``, or of the encoder's root node if that is None.
    """
    node = node or catalog.encoder_node
    value = getattr(node.model_config, name)
    shown = f"{name} = {value.__name__ if isinstance(value, type) else value!r}"
    if name in catalog.setting_reasons:
        return f"{shown}, {catalog.setting_reasons[name]}"
    if value == settings_of(type(catalog.model_config))[name].default:
        return shown
    if value != getattr(catalog.model_config, name):
        paths = [path for path, given in catalog.model_config.leaf_overrides.items() if name in given]
        above = (path for path in paths if f"{node.name}.".startswith(f"{path}."))
        leaf = max(above, key=len, default=None)  # the innermost
        return f"{shown} (set by a hook)" if leaf is None else f"{shown} (set at {leaf!r})"
    return f"{shown} (set)"


def _overrides(cls: type[Catalog]) -> list[Line]:
    found = [(hook, definers(cls, hook)) for hook in dir(cls) if hook.startswith(_HOOKS)]
    texts = [f"{names[0]}.{hook}() in place of {names[-1]}.{hook}()" for hook, names in found if len(names) > 1]
    return [Line(1, "overridden"), *(Line(2, text) for text in texts)] if texts else []


def _nets(catalog: Catalog, built: Built) -> Iterator[Line]:
    parts, whole = built.parts, built.module or nn.ModuleList(built.parts.values())
    rows: list[tuple[str, str, str]] = []
    names: dict[nn.Module, str] = {}
    listed: set[nn.Parameter] = set()
    for name, net in parts.items():
        if net in names:
            rows.append((name, f"the {names[net]}", "shared"))
            continue
        names[net] = name
        listed.update(net.parameters())
        rows.append((name, _describe(net), _count(net.parameters())))
    # parameters that a module has in addition to its nets
    unlisted = [parameter for parameter in whole.parameters() if parameter not in listed]
    if unlisted:
        rows.append(("others", "", _count(unlisted)))
    rows.append(("all", "", _count(whole.parameters())))
    sharing = ""
    if "critic encoder" in parts:
        sharing, config = _setting(catalog, "vf_share_layers"), catalog.for_function("value").model_config
        if not catalog.model_config.vf_share_layers and config.is_recurrent:
            sharing += "; the critic's own memory runs wherever the policy acts, to keep its state"
    yield Line(1, "parameters", sharing)
    width = max(len(text) for _, text, _ in rows)
    for name, text, count in rows:
        yield Line(2, name, f"{text:<{width}}  {count:>12}")


def _count(parameters: Iterable[Tensor]) -> str:
    return f"{sum(p.numel() for p in parameters):,}"


def _describe(net: nn.Module) -> str:
    """Return the name of the class of ``net`` and the widths of its layers as text."""
    widths = ""
    for before, after in _ends(net):
        widths += f" → {after}" if widths.endswith(f" → {before}") else f"  {before} → {after}"
    members = next((part.members for part in net.modules() if isinstance(part, DenseEnsemble)), None)
    name = (f"{members} × " if members else "") + type(net.net if isinstance(net, ModuleEncoder) else net).__name__
    return textwrap.shorten(f"{name}{widths}".replace("  ", " · "), 72, placeholder=" …").replace(" · ", "  ")


def _ends(net: nn.Module) -> Iterator[tuple[int | str, int]]:
    """Yield the input and output width of each dense, convolutional, recurrent and attention layer. For an encoder of
    Dict or Tuple observations, yield the keys of the parts as one text, with the width of their joint latent, and then
    the layers that join the parts."""
    if isinstance(net, nn.Linear):
        yield net.in_features, net.out_features
    elif isinstance(net, nn.Conv2d):
        yield net.in_channels, net.out_channels
    elif isinstance(net, nn.LSTM | nn.GRU):
        yield net.input_size, net.hidden_size
    elif isinstance(net, AttentionLayer):
        yield net.dim, net.dim
    elif isinstance(net, MultiStreamEncoder):
        yield " + ".join(map(str, net.keys)), net.input_dim
        yield from _ends(net.linears)
    else:
        for layer in net.children():
            yield from _ends(layer)


def _config(config: ModelConfig) -> str:
    """Return ``config`` as text with the fields that differ from their defaults. Inner configs appear only by name."""
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
