"""Actions described by vectors in the observation. The logit of an action is the dot product of its vector and the
output of the head."""

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.actions.masks import misfit
from catalog.base import Tree
from catalog.distributions.base import Distribution
from catalog.encoders.shape_checks import check_floats, try_net
from catalog.model_config import DefaultModelConfig
from catalog.spaces import zero_batch
from catalog_rl import closest


class ActionEmbeddings(nn.Module):
    """Computes action logits as dot products of the actions' vectors, which the observation has, and the output of the
    head, which is called the intent.

    :func:`find_action_embeddings` describes the vectors. The only parameters are those of ``net``.

    Args:
        key: Field of the observation with the vectors, ``[..., n, F]``.
        width: ``E``, the width of an intent, which is the number of outputs that a head must have.
        net: Net from the vectors to ``[..., n, E]``; None uses the vectors as they are.
    """

    def __init__(self, key: str, width: int, net: nn.Module | None = None) -> None:
        super().__init__()
        self.key, self.width, self.net = key, width, net

    def forward(self, intents: Tensor, obs: Tree) -> Tensor:
        """Return the dot product of ``intents`` and each action's vector in ``obs``, ``[..., E] → [..., n]``."""
        return self.products(intents.unsqueeze(-1), obs).squeeze(-1)

    def products(self, intents: Tensor, obs: Tree) -> Tensor:
        """Return the dot products of each action's vector and each of ``K`` intents, ``[..., E, K] → [..., n, K]``."""
        vectors = obs[self.key].to(intents.dtype)
        return (vectors if self.net is None else self.net(vectors)) @ intents


def find_action_embeddings(
    key: str, field: Space, action_space: Space, dist_cls: type[Distribution]
) -> ActionEmbeddings:
    """Return the module that computes logits from the vectors of the actions.

    The field is an array ``[n, E]`` for a Discrete of ``n`` actions. Its entry ``i`` is the vector of action
    ``start + i`` in this observation, and is used unchanged. A vector of zeros does not forbid the action, but gives it
    the logit 0. Use an action mask to forbid actions.

    Args:
        key: Name of the field of the observation that has the vectors.
        field: Space of the field.
        action_space: Space of the described actions.
        dist_cls: Distribution of the actions.

    Raises:
        ValueError: If the field does not fit the action space or the distribution; names the path to the field.
    """
    where, setting = f"observation_space[{key!r}]", "action_embeddings_key"
    if not isinstance(action_space, spaces.Discrete):
        expected = "a Discrete action space, whose actions it describes"
        raise misfit(where, setting, expected, action_space, "Leave it out of the observation")
    count = int(action_space.n)
    shape = field.shape if isinstance(field, spaces.Box | spaces.MultiBinary) else None
    if shape is None or len(shape) != 2 or shape[0] != count or shape[1] == 0:
        expected = f"a Box of shape ({count}, width), a vector for each of the {count} actions"
        hint = f" If it says which actions are allowed, set action_mask_key={key!r}." if shape == (count,) else ""
        raise misfit(where, setting, expected, field, "Change its space", hint)
    inputs = dist_cls.required_input_dim(action_space)
    if inputs != count or dist_cls.log_std_indices(action_space):
        expected = f"a distribution with one input for each of the {count} actions"
        got = f"{dist_cls.__name__} with {inputs} inputs"
        raise misfit(where, setting, expected, got, "Leave custom_action_dist out")
    return ActionEmbeddings(key, int(shape[1]))


Field = tuple[str, Space]
"""Name of a field of the observation, and its space."""


def action_fields(observation_space: Space, model_config: DefaultModelConfig) -> list[Field | None]:
    """Return the field with the action mask and the field with the action vectors, in this order, each as
    ``(name, space)``; None for a field that is missing.

    A field that ``action_mask_key`` or ``action_embeddings_key`` names must exist, unless the name is the default. If
    both name the same field, it is the mask.

    Raises:
        ValueError: If a field that must exist does not; names the closest field.
    """
    fields = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    keys: list[str | None] = []
    for name, what in (("action_mask_key", "the mask"), ("action_embeddings_key", "the vectors of the actions")):
        key = getattr(model_config, name)
        if key not in (None, vars(DefaultModelConfig)[name], *fields):
            raise ValueError(
                f"model_config.{name}: expected a field of the observation "
                f"({', '.join(map(repr, fields)) or 'it has none'}), got {key!r}. Name the field "
                f"with {what}.{closest(key, fields)}"
            )
        keys.append(None if key in keys else key)  # the mask wins if both settings name one field
    return [(key, fields[key]) if key in fields else None for key in keys]


def check_action_embeddings(embeddings: ActionEmbeddings, observation_space: Space, count: int, where: str) -> None:
    """Check that ``embeddings`` maps intents ``[2, width]`` and two observations to logits ``[2, count]``.

    The batch size is 2 because with a batch of 1 a module that drops the batch dim would pass by broadcasting.

    Args:
        embeddings: The module, whose train or eval mode does not change.
        observation_space: Space of one observation of the env.
        count: Number of actions.
        where: The function that made the module, for error messages.

    Raises:
        ValueError: If the module does not accept these inputs, or returns a wrong shape.
    """
    intents = torch.zeros(2, embeddings.width)
    takes = f"a module that multiplies intents of shape {tuple(intents.shape)} with the vectors of the actions"
    remedy = f"Let its net map each vector to {embeddings.width} numbers, the value of width."
    out = try_net(embeddings, (intents, zero_batch(observation_space, (2,))), where, takes, remedy)
    expected = f"logits of shape (2, {count}) for two intents"
    check_floats(out, (2, count), where, expected, "Keep the batch dim and that of the actions.")
