"""Settings without effect: set, but read by nothing that these spaces and the other settings lead to."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.hooks import overrider
from catalog.model_config import ENCODER, HEAD, MEMORIES, DefaultModelConfig
from catalog.settings import settings_of

if TYPE_CHECKING:
    from catalog.catalog import Catalog

logger = logging.getLogger("catalog")

ANY_MEMORY = ("max_seq_len", "lstm_use_prev_action", "lstm_use_prev_reward")
RECURRENT = (
    "use_lstm",
    "use_gru",
    "lstm_cell_size",
    "lstm_num_layers",
    *ANY_MEMORY,
    "lstm_kernel_initializer",
    "lstm_bias_initializer",
)
ATTENTION = (
    "use_attention",
    "attention_num_transformer_units",
    "attention_dim",
    "attention_num_heads",
    "attention_head_dim",
    "attention_memory",
    "attention_position_wise_mlp_dim",
    "attention_init_gru_gate_bias",
    *ANY_MEMORY,
    "attention_kernel_initializer",
    "attention_bias_initializer",
)
FUSION = ("fusionnet_hiddens", "fusionnet_activation")


def memory_settings(model_config: DefaultModelConfig) -> tuple[str, ...]:
    """Settings that shape the net with a memory; none if there is none."""
    if model_config.use_attention:
        return ATTENTION
    return RECURRENT if model_config.is_recurrent else ()


def check_settings_are_read(catalog: Catalog) -> None:
    """Log one warning that names the settings without effect, if there are any, once in a process.

    Raises:
        ValueError: If there is a ``custom_model_config`` that nothing reads.
    """
    unread = unread_settings(catalog)
    if "custom_model_config" in unread:
        raise ValueError(
            "model_config.custom_model_config: expected {}, since custom_model is None, got "
            f"{unread['custom_model_config']!r}. Set custom_model, or a module_class of yours that "
            "reads it from self.model_config."
        )
    if unread:
        _warn(", ".join(f"{name} = {value!r}" for name, value in unread.items()))


@functools.cache  # a run builds its module several times
def _warn(told: str) -> None:
    logger.warning("model_config: no effect with these spaces and settings: %s", told)


def unread_settings(catalog: Catalog) -> dict[str, Any]:
    """Settings that differ from their defaults and that no net, head or converter reads, with their values.

    What a hook of the user's decides may read any of the settings of its part.
    """
    config = catalog.model_config
    views = {name: catalog.for_function(name) for name in (*catalog.functions, *catalog.extra_outputs)}
    every = [catalog, *views.values()]
    known = settings_of(type(config))
    read = {name for view in every for name in known if _reads(view, name, every)}
    unread = {
        name: getattr(config, name)
        for name, item in known.items()
        if name not in read and name not in catalog.setting_reasons and getattr(config, name) != item.default
    }
    for function, given in catalog._whole_config.functions.items():
        if function not in catalog.functions[:1]:  # whose settings are those above
            own = [name for name in given if name in known and not _reads(views[function], name, [views[function]])]
            unread |= {f"functions[{function!r}][{name!r}]": given[name] for name in own}
    if _decides_all(catalog):
        return unread
    for path, given in config.leaf_overrides.items():
        nodes = [node for node in catalog.encoder_node.walk() if f"{node.name}.".startswith(f"{path}.")]
        rules = [node.rule for node in nodes]
        heeded = {name for rule in rules if rule is not None for name in rule.settings}
        own = [] if None in rules else [name for name in given if name.removesuffix("_kwargs") not in heeded]
        unread |= {f"leaf_overrides[{path!r}][{name!r}]": given[name] for name in own}
    return unread


def _decides_all(view: Catalog) -> bool:
    """Whether a hook of the user's decides the encoder, so that anything may be read."""
    hooks = ("build_encoder", "_determine_components_hook")
    return any(overrider(view, hook) for hook in hooks) or any(
        node.rule is None or not node.rule.settings for node in view.encoder_node.walk()
    )


def _reads(view: Catalog, name: str, views: list[Catalog]) -> bool:
    """Whether what ``view`` builds, among ``views``, depends on the setting ``name``."""
    part, bare = settings_of(type(view.model_config))[name].part, name.removesuffix("_kwargs")
    if part == ENCODER:
        return _decides_all(view) or bare in _read_by_encoder(view)
    dist_cls, config = view.get_action_dist_cls(), view.model_config
    in_parts = issubclass(dist_cls, AutoregressiveDistribution)
    if part == HEAD:
        heads = [hook for hook in dir(type(view)) if hook.startswith("build_") and hook.endswith("_head")]
        if in_parts or any(overrider(view, hook) for hook in heads):
            return True
        if name in ("free_log_std", "log_std_clip_param"):
            has_stds = bool(dist_cls.log_std_indices(view.action_space))
            return has_stds and (name == "free_log_std" or not config.free_log_std)
        return name == "head_fcnet_hiddens" or bool(config.head_fcnet_hiddens)
    match name:
        case "max_seq_len":
            return any(_decides_all(v) or v.model_config.is_recurrent or _has_own_model(v) for v in views)
        case "autoregressive_hiddens" | "autoregressive_context_dim":
            return in_parts
        case "normalize_actions":
            view.converter_node.run()  # which leaves the record
            rules = [node.rule for node in view.converter_node.walk()]
            is_own = overrider(view, "build_action_converter") is not None
            return is_own or any(rule is not None and name in rule.settings for rule in rules)
        case "normalize_values":
            return "value" in view.functions
    return True


def _read_by_encoder(view: Catalog) -> set[str]:
    config = view.model_config
    read = {name for node in view.encoder_node.walk() if node.rule is not None for name in node.rule.settings}
    read |= {*memory_settings(config), *MEMORIES, "leaf_overrides"}
    return read | ({*FUSION} if view.past_view.steps and not config.is_recurrent else set())


def _has_own_model(view: Catalog) -> bool:
    return any(node.model_config.custom_model is not None for node in view.encoder_node.walk())
