"""DQN's nets: their settings, the catalog that chooses them and the module that assembles them."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.actions.masks import MASKED
from catalog.base import EncoderOutput, Tree
from catalog.catalog import Catalog
from catalog.distributions.categorical import Categorical
from catalog.encoders.noisy import NoisyHead, NoisyHeadConfig
from catalog.encoders.shape_checks import untouched
from catalog.hooks import refuses_foreign
from catalog.model_config import ActionValueModelConfig
from catalog.return_heads import ReturnHead, ReturnSettings
from catalog.settings import setting
from rlmodule.data.columns import Batch, Columns
from rlmodule.modules.apis import ExplorationAPI, InferenceOnlyAPI, NoisyNetAPI, QNetAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.shape_checks import probe_batch

FORBIDDEN = -3e38
"""Value of a forbidden action: below that of any allowed action, on whatever scale the rewards are. It is finite, also
in bfloat16, so that 0 times it is 0, and observations that allow no action give finite values."""

ALWAYS_GREEDY = 1e6
"""Logit of the greedy action if epsilon is 0. The other logits are 0, so the Categorical draws no other action."""


class DQNNetSettings(ReturnSettings):
    """Settings of DQN's nets, shared by the algorithm's config and the model config."""

    dueling: bool = setting(
        False, "Whether the state's value and the actions' advantages have separate heads (dueling nets)."
    )
    noisy: bool = setting(False, "Whether the heads explore through learned noise in their weights (noisy nets).")
    sigma0: float = setting(
        0.5, "Initial scale of the noise of noisy nets, times 1/√inputs of each layer.", for_new_runs=True, gt=0
    )

    def check_nets(self, where: str) -> None:
        """Check that these settings do not contradict each other.

        Args:
            where: Name of the object with the settings, for error messages.

        Raises:
            ValueError: In the cases of :meth:`check_returns`, or if ``sigma0`` is set without ``noisy``.
        """
        self.check_returns(where)
        if not self.noisy and self.sigma0 != type(self).sigma0:
            raise ValueError(
                f"{where}.sigma0: expected {type(self).sigma0}, since noisy=False, got "
                f"{self.sigma0}. Set noisy=True, or leave sigma0 out."
            )


class DQNModelConfig(DQNNetSettings, ActionValueModelConfig):
    """Settings of DQN's nets: the settings of all nets, and the settings of Rainbow's nets (Hessel et al. 2018).

    Raises:
        ValueError, TypeError: As :class:`DefaultModelConfig`, and as :meth:`check_nets`.
    """

    def _check_together(self) -> None:
        super()._check_together()
        self.check_nets("model_config")


class DQNCatalog(Catalog):
    """Chooses DQN's nets: an encoder, an action head and, for dueling nets, a state-value head.

    Override points, in addition to those of :class:`Catalog`: ``build_af_head``, ``build_vf_head``.

    Raises:
        ValueError: In the cases of :class:`Catalog`, or if the action space is not Discrete or a setting would have no
            effect.
    """

    functions = ("q", "state_value")
    model_config_class = DQNModelConfig
    model_config: DQNModelConfig
    action_space: spaces.Discrete

    @property
    def num_actions(self) -> int:
        """Number of actions."""
        return int(self.action_space.n)

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        return {
            "normalize_observations": (False, "DQN's default"),
            "vf_share_layers": (True, "since DQN's heads share their encoder"),
        }

    @refuses_foreign
    def build_af_head(self) -> nn.Module:
        """Build the action head, from the latent to ``[..., num_actions·K]``.

        The head outputs advantages if ``dueling``, else action values: for each action one number, or the ``K`` atoms
        or quantiles of its return. With :class:`ActionEmbeddings`, it outputs ``K`` intent vectors,
        ``[..., action_head_dim·K]``.
        """
        return self._build_head("q", self.action_head_dim * self.model_config.outputs_per_value)

    @refuses_foreign
    def build_vf_head(self) -> nn.Module:
        """Build the state-value head of dueling nets, from the latent to ``[..., K]``."""
        return self._build_head("state_value", self.model_config.outputs_per_value)

    def _build_head(self, function: str, width: int) -> nn.Module:
        head, config = self.head_config(function, width), self.model_config
        return (NoisyHeadConfig.of(head, config.sigma0) if config.noisy else head).build()

    def _explain_parts(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {"encoder": self.build_trunk()}
        parts["advantage head" if self.model_config.dueling else "q head"] = self.build_af_head()
        if self.model_config.dueling:
            parts["state value head"] = self.build_vf_head()
        return parts | self._explain_further_parts()

    def _check_model_config(self) -> None:
        if not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(
                f"action_space of DQN: expected a Discrete space, got {self.action_space}. Use PPO or SAC, which take "
                "Box, MultiDiscrete, MultiBinary, Dict and Tuple actions. To keep DQN, wrap the env so that it numbers "
                "its actions."
            )
        super()._check_model_config()
        if self.model_config.vf_share_layers is not None:
            raise ValueError(
                "model_config.vf_share_layers: expected None, since DQN's heads always share an "
                f"encoder, got {self.model_config.vf_share_layers}. Leave it out."
            )

    def _check_functions(self) -> None:
        super()._check_functions()
        config, dist_cls = self.model_config, self.bound_dist_cls
        if not issubclass(dist_cls, Categorical):
            raise ValueError(
                f"distribution of the actions of {type(self).__name__}: expected Categorical, "
                "since DQN uses action values and ε-greedy exploration as its logits, got "
                f"{dist_cls.__name__}. Leave custom_action_dist out, or derive yours from "
                "Categorical."
            )
        if not config.dueling and "state_value" in (functions := self._whole_config.functions):
            raise ValueError(
                "model_config.functions['state_value']: expected none, since dueling=False, got "
                f"{dict(functions['state_value'])!r}. Set dueling=True, or leave it out."
            )
        defaults = vars(DQNModelConfig())
        names = [name for name in defaults if re.match(r"head_fcnet_\w+_initializer", name)]
        # NoisyLinear has its own initialisation, so an initializer for its heads would have no effect.
        for function in self.functions if config.noisy else ():
            settings = vars(self.for_function(function).model_config)
            for name in names:
                if settings[name] != defaults[name]:
                    is_of_function = name in self._whole_config.functions.get(function, {})
                    part = f"functions[{function!r}][{name!r}]" if is_of_function else name
                    raise ValueError(
                        f"model_config.{part}: expected its default {defaults[name]!r}, since noisy "
                        f"layers have their own initialisation, got {settings[name]!r}. Leave it out, "
                        "or set it in functions for an extra output."
                    )


class DQNModule(RLModule, QNetAPI, ExplorationAPI, NoisyNetAPI, InferenceOnlyAPI):
    """DQN's network: observation normaliser → encoder → action head. Dueling nets also have a state-value head, and any
    extra outputs have their own heads.

    ``forward_inference`` returns action values as logits, computed with the mean weights of noisy heads.
    ``forward_exploration`` returns the logits of the ε-greedy policy. Its noisy heads use the noise drawn last.
    ``forward_train`` returns latents, from which :meth:`compute_q_values` and :meth:`compute_q_outputs` compute values.

    Attributes:
        returns: What the outputs for an action say about its return.
        epsilon: Share of random actions, a scalar that ``set_exploration`` sets.
        greedy_bonus: Logit of the greedy action in ``forward_exploration`` if all actions are allowed, a scalar. All
            other logits are 0.
    """

    catalog: DQNCatalog
    exploration_buffers = ("epsilon", "greedy_bonus")
    _takes_means = False  # whether noisy heads leave out their noise, as in the greedy pass
    epsilon: Tensor
    greedy_bonus: Tensor

    def setup(self) -> None:
        self._check_catalog(DQNModule, DQNCatalog)
        catalog = self.catalog
        config = catalog.model_config
        self.num_actions = catalog.num_actions
        self.returns = config.build_return_head()
        self.observation_normalizer = catalog.build_observation_normalizer()
        self.encoder = catalog.build_trunk()
        width = catalog.action_head_dim * config.outputs_per_value
        self.af_head = self._probed(catalog.build_af_head(), "q", width, "build_af_head()")
        self.vf_head: nn.Module | None = None
        if config.dueling:
            self.vf_head = self._probed(
                catalog.build_vf_head(), "state_value", config.outputs_per_value, "build_vf_head()"
            )
        self.extra_outputs = catalog.build_extra_outputs()
        self.register_buffer("epsilon", torch.zeros(()))
        # The greedy action's logit if all actions are allowed: computed once per epsilon, not at each step.
        self.register_buffer("greedy_bonus", torch.full((), ALWAYS_GREEDY))

    def _probed(self, head: nn.Module, function: str, width: int, hook: str) -> nn.Module:
        if function == "q" and self.catalog.model_config.noisy and not isinstance(head, NoisyHead):
            raise TypeError(
                f"{type(self.catalog).__name__}.{hook}: expected a NoisyHead, since noisy=True, got "
                f"{type(head).__name__}. Build a NoisyHeadConfig, or leave noisy out."
            )
        return super()._probed(head, function, width, hook)

    def get_non_inference_attributes(self) -> list[str]:
        return ["extra_outputs"]

    def net_names(self) -> dict[str, str]:
        actions = "advantage head" if self.catalog.model_config.dueling else "q head"
        return {"encoder": "encoder", actions: "af_head", "state value head": "vf_head"}

    def get_initial_state(self) -> Tree | None:
        return self.encoder.get_initial_state()

    def set_exploration(self, value: float) -> None:
        """Set epsilon, the probability that an action is drawn uniformly from all allowed actions."""
        if not 0 <= value <= 1:
            raise ValueError(
                f"DQNModule.set_exploration(): expected a number in [0, 1], got {value}. Pass the "
                "fraction of random actions."
            )
        # With a logit b for the greedy action and 0 for the others, its probability is 1 - ε + ε / n if e^b = 1 +
        # n (1/ε - 1).
        odds = 1 / value - 1 if value else math.inf
        self.epsilon.fill_(value)
        self.greedy_bonus.fill_(min(math.log1p(self.num_actions * odds), ALWAYS_GREEDY))

    def resample_noise(self, generator: torch.Generator) -> None:
        for name in ("af_head", "vf_head"):
            if isinstance(head := self._modules.get(name), NoisyHead):  # self.af_head would search three dicts
                head.resample_noise(generator)

    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return action values ``[..., num_actions]``, ``FORBIDDEN`` for forbidden actions. See
        :meth:`QNetAPI.compute_q_values`."""
        return self._q_values(self._latent(batch, embeddings), batch)

    def return_head(self) -> ReturnHead:
        return self.returns

    def compute_q_outputs(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return self._outputs(self._latent(batch, embeddings), self._allowed(batch), batch)

    def compute_state_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return V(s) ``[...]`` in units of reward, from the state-value head of dueling nets (Wang et al. 2016, eq.
        9). V(s) is the mean of the return that this head alone predicts. Arguments as for
        :meth:`compute_q_values`.

        Raises:
            ValueError: If ``dueling`` is False.
        """
        if self.vf_head is None:
            raise ValueError(
                f"{type(self).__name__}.compute_state_values(): expected dueling nets, got "
                "dueling=False. Set dueling=True."
            )
        outputs = self.vf_head(self._latent(batch, embeddings))
        return self.returns.mean(outputs.unflatten(-1, (1, *self.returns.shape))).squeeze(-1)

    def compute_advantages(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        """Return A(s, a) = Q(s, a) - V(s) of dueling nets, ``[..., num_actions]`` in units of reward. The mean
        advantage of the allowed actions is 0, except with atoms. Forbidden actions are ``FORBIDDEN``. Arguments as for
        :meth:`compute_q_values`.

        Raises:
            ValueError: If ``dueling`` is False.
        """
        latent, allowed = self._latent(batch, embeddings), self._allowed(batch)
        values = self.compute_state_values(batch, latent)
        advantages = self._q_values(latent, batch) - values.unsqueeze(-1)
        return advantages if allowed is None else advantages.masked_fill(~allowed, FORBIDDEN)

    def _forward(self, batch: Mapping[str, Tree]) -> Batch:
        latent, state = self._encode(batch)
        if isinstance(self.af_head, NoisyHead):
            self._takes_means = True
        try:
            values = self.compute_q_values(batch, latent)  # which may be overridden
        finally:
            if self._takes_means:  # setting an attribute of a module takes as long as a small tensor operation
                self._takes_means = False
        return _with_state({Columns.ACTION_DIST_INPUTS: values}, state)

    def _forward_exploration(self, batch: Mapping[str, Tree]) -> Batch:
        latent, state = self._encode(batch)
        values, allowed = self.compute_q_values(batch, latent), self._allowed(batch)
        greedy, logits = values.argmax(-1, keepdim=True), torch.zeros_like(values)
        if allowed is None:
            logits.scatter_(-1, greedy, self.greedy_bonus.expand_as(greedy))
        else:  # the number of actions in the formula of set_exploration() differs from row to row
            odds = allowed.sum(-1, keepdim=True) * (1 / self.epsilon - 1)
            logits.scatter_(-1, greedy, odds.log1p_().clamp_max_(ALWAYS_GREEDY)).masked_fill_(~allowed, MASKED)
        return _with_state({Columns.ACTION_DIST_INPUTS: logits}, state)

    def _forward_train(self, batch: Mapping[str, Tree]) -> Batch:
        obs = self._normalized(batch)
        latent, state = self.encoder(obs, batch.get(Columns.STATE_IN), starts=batch.get(Columns.STARTS))
        out = _with_state({Columns.EMBEDDINGS: latent}, state)
        if self.extra_outputs is not None:
            by_function = dict.fromkeys(self.catalog.functions, latent)
            raw = self.env_part(batch[Columns.OBS])
            out[Columns.EXTRA_OUTPUTS] = self.extra_outputs(self.env_part(obs), by_function, raw)
        return out

    def _encode(self, batch: Mapping[str, Tree]) -> EncoderOutput:
        state, starts = batch.get(Columns.STATE_IN), batch.get(Columns.STARTS)
        # forward() skips the hooks of Module.__call__, which cost time at each env step
        return self.encoder.forward(self._normalized(batch), state, starts=starts)

    def _latent(self, batch: Mapping[str, Tree], embeddings: Tensor | None) -> Tensor:
        return self._encode(batch).latent if embeddings is None else embeddings

    def _allowed(self, batch: Mapping[str, Tree]) -> Tensor | None:
        """Return the actions that the observation allows, bool ``[..., num_actions]``; None if all are allowed."""
        mask = self.action_mask
        return None if mask is None else mask.allowed(self.env_part(batch[Columns.OBS]))

    def _q_values(self, latent: Tensor, batch: Mapping[str, Tree]) -> Tensor:
        """Return action values ``[..., num_actions]``, ``FORBIDDEN`` for forbidden actions. The arguments are described
        in :meth:`_outputs`."""
        allowed = self._allowed(batch)
        values = self.returns.mean(self._outputs(latent, allowed, batch))
        return values if allowed is None else values.masked_fill(~allowed, FORBIDDEN)

    def _outputs(self, latent: Tensor, allowed: Tensor | None, batch: Mapping[str, Tree]) -> Tensor:
        """Return the outputs for each action, ``[..., num_actions, *returns.shape]``.

        Args:
            latent: Latents ``[..., D]``.
            allowed: The allowed actions from :meth:`_allowed`, whose mean advantage dueling nets subtract.
            batch: Columns with the observations, which hold the action embeddings if there are any.
        """
        actions, value_head = self._run(self.af_head, latent), self.vf_head
        has_several = len(self.returns.shape) > 0
        if has_several:
            actions = actions.unflatten(-1, (-1, *self.returns.shape))
        if (embeddings := self.action_embeddings) is not None:
            score = embeddings.products if has_several else embeddings.forward
            actions = score(actions, self.env_part(batch[Columns.OBS]))
        if value_head is None:
            return actions
        value = self._run(value_head, latent)
        if not has_several:
            return _joined(value, actions, allowed, -1)
        return _joined(value.unsqueeze(-2), actions, None if allowed is None else allowed.unsqueeze(-1), -2)

    def _run(self, head: nn.Module, latent: Tensor) -> Tensor:
        return head.forward_mean(latent) if self._takes_means and isinstance(head, NoisyHead) else head(latent)


def check_exploration(module: RLModule, acting: RLModule) -> None:
    """Check that ``set_exploration`` on ``module`` changes how ``acting`` explores. Both modules are restored
    afterwards.

    Args:
        module: The learner's module.
        acting: The copy of ``module`` that acts, or ``module`` itself.

    Raises:
        ValueError: If the exploration of ``acting`` does not depend on the epsilon of ``module``.
    """
    assert isinstance(module, ExplorationAPI)
    batch, logits = probe_batch(acting, 1), []
    with untouched(module), untouched(acting):
        for epsilon in (1.0, 0.0):
            module.set_exploration(epsilon)
            logits.append(acting.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS])
    if torch.equal(*logits):
        raise ValueError(
            f"{type(module).__name__}.set_exploration(): expected forward_exploration() of the copy that "
            "acts to differ between epsilon=1 and epsilon=0, got the same. Keep epsilon in a buffer "
            "that set_exploration() fills in place and _forward_exploration() reads, as DQNModule does."
        )


def _with_state(columns: Batch, state: Tree | None) -> Batch:
    return columns if state is None else columns | {Columns.STATE_OUT: state}


def _joined(value: Tensor, advantages: Tensor, allowed: Tensor | None, dim: int) -> Tensor:
    """Return ``value + advantages`` minus the mean advantage of the allowed actions (Wang et al. 2016, eq. 9).

    Args:
        value: The state's value, of size 1 along ``dim``.
        advantages: Advantages of the actions, along ``dim``.
        allowed: bool, broadcast with ``advantages``: the actions to average over; None for all.
        dim: The dimension of the actions.
    """
    if allowed is None:
        return value + (advantages - advantages.mean(dim, keepdim=True))
    total = (advantages * allowed).sum(dim, keepdim=True)
    return value + (advantages - total / allowed.sum(dim, keepdim=True).clamp_min(1))
