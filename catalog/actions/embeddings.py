"""Actions described by vectors in the observation: a logit is the product of such a vector and the head's output."""

from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.base import Tree
from catalog.distributions.base import Distribution
from catalog.errors import closest
from catalog.model_config import DefaultModelConfig


class ActionEmbeddings(nn.Module):
    """Computes action logits: dot products of the actions' vectors in the observation and the head's output (intent).

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
        """Return the dot product of each action's vector and the intent, ``[..., E] → [..., n]``."""
        return self.products(intents.unsqueeze(-1), obs).squeeze(-1)

    def products(self, intents: Tensor, obs: Tree) -> Tensor:
        """Return the dot products of each action's vector and ``K`` intents, ``[..., E, K] → [..., n, K]``."""
        vectors = obs[self.key].to(intents.dtype)
        return (vectors if self.net is None else self.net(vectors)) @ intents


def find_action_embeddings(
    key: str, field: Space, action_space: Space, dist_cls: type[Distribution]
) -> ActionEmbeddings:
    """Make the module that computes logits from the vectors of the actions.

    The field is an array ``[n, E]`` for a Discrete of ``n`` actions: row ``i`` describes action ``start + i`` in this
    observation. The values are used as they are. They do not forbid actions: a row of zeros has the logit 0. Use an
    action mask to forbid one.

    Args:
        key: Name of a field of the observation.
        field: Its space.
        action_space: Space of the described actions.
        dist_cls: Distribution of the actions.

    Raises:
        ValueError: If the field does not fit the action space or its distribution; names the path to it.
    """
    if not isinstance(action_space, spaces.Discrete):
        expected = "a Discrete action space, whose actions it describes"
        raise _misfit(key, expected, action_space, "Leave it out of the observation")
    count = int(action_space.n)
    shape = field.shape if isinstance(field, spaces.Box | spaces.MultiBinary) else None
    if shape is None or len(shape) != 2 or shape[0] != count or shape[1] == 0:
        expected = f"a Box of shape ({count}, width), a vector for each of the {count} actions"
        hint = f" If it says which actions are allowed, set action_mask_key={key!r}." if shape == (count,) else ""
        raise _misfit(key, expected, field, "Change its space", hint)
    inputs = dist_cls.required_input_dim(action_space)
    if inputs != count or dist_cls.log_std_indices(action_space):
        expected = f"a distribution with one input for each of the {count} actions"
        raise _misfit(key, expected, f"{dist_cls.__name__} with {inputs} inputs", "Leave custom_action_dist out")
    return ActionEmbeddings(key, int(shape[1]))


def _misfit(key: str, expected: str, got: object, remedy: str, hint: str = "") -> ValueError:
    """Return the error for a field that does not describe the actions."""
    ordinary = "or set action_embeddings_key=None to treat it as an ordinary observation."
    return ValueError(f"observation_space[{key!r}]: expected {expected}, got {got}. {remedy}, {ordinary}{hint}")


Field = tuple[str, Space]
"""Name of a field of the observation, and its space."""


def action_fields(observation_space: Space, model_config: DefaultModelConfig) -> list[Field | None]:
    """Return the field with the action mask and the field with the action vectors; None for a field that is missing.

    A field that the settings name must exist, unless the name is the default.

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
