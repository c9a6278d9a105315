"""Functions that find settings without effect, which nothing reads with these spaces and other settings."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.hooks import overrider
from catalog.model_config import MEMORIES, ActionValueModelConfig, DefaultModelConfig, settings_about
from catalog.settings import settings_of

if TYPE_CHECKING:
    from catalog.catalog import Catalog

logger = logging.getLogger("catalog")

# The reason that `explain()` and a warning give if observations are not standardised only because of a custom encoder.
RAW = "since a custom encoder gets raw observations"

FUSION = settings_about("fusionnet_")
_RECURRENT = settings_about("use_lstm", "use_gru", "max_seq_len", "lstm_")
_ATTENTION = settings_about("use_attention", "max_seq_len", "lstm_use_prev_", "attention_")


def memory_settings(model_config: DefaultModelConfig) -> tuple[str, ...]:
    """Return the names of the settings that shape the net with a memory; empty if ``model_config`` has no such net."""
    if model_config.use_attention:
        return _ATTENTION
    return _RECURRENT if model_config.is_recurrent else ()


def check_settings_are_read(catalog: Catalog) -> None:
    """Log a warning that names the settings without effect, if any. Log a second warning if a custom encoder turns
    standardisation off. Each text is logged once per process.

    Raises:
        ValueError: If ``custom_model_config`` is set but nothing reads it.
    """
    unread = unread_settings(catalog)
    if "custom_model_config" in unread:
        raise ValueError(
            "model_config.custom_model_config: expected {}, since custom_model is None, got "
            f"{unread['custom_model_config']!r}. Set custom_model, or a module_class of yours that "
            "reads it from self.model_config."
        )
    if unread:
        named = ", ".join(f"{name} = {value!r}" for name, value in unread.items())
        warn_once(f"model_config: no effect with these spaces and settings: {named}")
    if catalog.setting_reasons.get("normalize_observations") == RAW:
        warn_once(f"model_config: normalize_observations = False, {RAW}. Set it to True or False to say which.")


@functools.cache  # a run builds its module several times
def warn_once(text: str) -> None:
    """Log ``text`` as a warning, unless this process has logged it before."""
    logger.warning("%s", text)


def unread_settings(catalog: Catalog) -> dict[str, Any]:
    """Return, by name, the values of the settings that differ from their defaults but that no net, head or converter
    reads.

    A custom hook counts as reading all settings of the part that it decides.
    """
    config, known = catalog.model_config, settings_of(type(catalog.model_config))
    views = {name: catalog.for_function(name) for name in (*catalog.functions, *catalog.extra_outputs)}
    read = {*catalog.setting_reasons}.union(*map(_read_by, [catalog, *views.values()]))
    unread = {}
    for name, item in known.items():
        value = getattr(config, name)
        if name not in read and value != item.default:
            unread[name] = value
    for function, given in catalog._whole_config.functions.items():
        if function not in catalog.functions[:1]:  # the settings of the first one are those above
            read_here = _read_by(views[function])
            names = [name for name in given if name in known and name not in read_here]
            unread |= {f"functions[{function!r}][{name!r}]": given[name] for name in names}
    if _decides_all(catalog):
        return unread
    for path, given in config.leaf_overrides.items():
        nodes = [node for node in catalog.encoder_node.walk() if f"{node.name}.".startswith(f"{path}.")]
        if any(node.rule is None for node in nodes):
            continue  # a hook decided
        read_here = {name for node in nodes for name in node.reads}
        unread |= {f"leaf_overrides[{path!r}][{name!r}]": given[name] for name in given if name not in read_here}
    return unread


def _decides_all(view: Catalog) -> bool:
    """Return whether an overridden hook decides a part of the encoder of ``view``, which is a catalog or its copy for
    one function; see :meth:`Catalog.for_function`."""
    hooks = ("build_encoder", "_determine_components_hook")
    if any(overrider(view, hook) for hook in hooks):
        return True
    return any(node.rule is None for node in view.encoder_node.walk())


def _read_by(view: Catalog) -> set[str]:
    """Return the names of the settings that affect what ``view`` builds, which is a catalog, or its copy for one
    function."""
    config, dist_cls = view.model_config, view.get_action_dist_cls()
    read = {*settings_of(type(config))}
    if not _decides_all(view):
        read -= config.encoder_settings().keys()
        read |= {*memory_settings(config), *MEMORIES, "leaf_overrides"}
        read.update(*(node.reads for node in view.encoder_node.walk()))
        if view._sees_more and not config.is_recurrent:
            read |= {*FUSION}
        if not (config.is_recurrent or config.has_custom_model):  # custom code may build a net with a memory
            read -= {"max_seq_len"}
    read |= {*view.further_settings}
    if not issubclass(dist_cls, AutoregressiveDistribution):
        read -= {"autoregressive_hiddens", "autoregressive_context_dim"}
        heads = [hook for hook in dir(type(view)) if hook.startswith("build_") and hook.endswith("_head")]
        if not any(overrider(view, hook) for hook in heads):
            if not dist_cls.log_std_indices(view.action_space):
                read -= {"free_log_std", "log_std_clip_param"}
            elif config.free_log_std:
                read -= {"log_std_clip_param"}
            if not config.head_fcnet_hiddens:
                read -= {*settings_about("head_fcnet_")} - {"head_fcnet_hiddens"}
    view.converter_node.run()  # records the decisions in the nodes
    converter_reads = [name for node in view.converter_node.walk() for name in node.reads]
    if not overrider(view, "build_action_converter") and "normalize_actions" not in converter_reads:
        read -= {"normalize_actions"}
    if "value" not in view.functions or isinstance(config, ActionValueModelConfig):
        read -= {"normalize_values"}  # only a head that predicts returns standardises them
    return read
