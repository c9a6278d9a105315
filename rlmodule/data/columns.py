"""Names of the columns that neural modules, rollouts and batches share."""

from catalog.base import Tree

Batch = dict[str, Tree]
"""Tensors or trees of tensors by column name, for rows or for sequences."""


class Columns:
    """Names of columns. Unless noted otherwise, a column is ``[T, N, ...]`` in a rollout, ``[B, ...]`` in a batch of
    rows, and ``[L, B, ...]`` in a batch of sequences of ``L`` rows."""

    OBS = "obs"
    """Observation for which the action was chosen; a tree with the structure of the module's ``input_space``."""
    ACTIONS = "actions"
    """Action as the distribution sampled it, before conversion to the action space; a tree if the space is nested."""
    REWARDS = "rewards"
    """Reward of the env step, float32."""
    TERMINATEDS = "terminateds"
    """True where the step ended the episode by the rules of the task, so that no value is bootstrapped after it."""
    TRUNCATEDS = "truncateds"
    """True where a cause outside the task, such as a time limit, ended the episode. Its return is bootstrapped from the
    final observation."""
    VALID = "valid"
    """False where the row is not a transition of the task, such as the reset step in next-step autoreset."""
    STARTS = "starts"
    """True where the row is the first of an episode: a recurrent module zeroes its state before it."""
    STATE_IN = "state_in"
    """Recurrent state before the first row of each sequence, ``[B, ...]``. A batch with this column is a batch of
    sequences."""
    STATE_OUT = "state_out"
    """Recurrent state after the last row of each sequence, ``[B, ...]``."""
    VALID_ROWS = "valid_rows"
    """In a batch of sequences: indices of the ``R`` valid rows among all ``L·B`` flattened rows, int64 ``[R]``; absent
    if all rows are valid."""
    ACTION_DIST_INPUTS = "action_dist_inputs"
    """Parameters of the distribution that the action was sampled from, at acting time, ``[..., D]``."""
    ACTION_LOGP = "action_logp"
    """Log-probability of the action at acting time."""
    EMBEDDINGS = "embeddings"
    """Latents that a forward pass computed. ``compute_values`` reads them, so that observations are not encoded
    twice."""
    EXTRA_OUTPUTS = "extra_outputs"
    """Outputs of a network's additional heads: a dict from head names to tensors ``[..., D]``."""
    ADVANTAGES = "advantages"
    """Advantages, standardised over the rows of an update."""
    VALUE_TARGETS = "value_targets"
    """Targets that the value function is trained to predict."""
    VALUES = "values"
    """Value predictions from before the update, in units of reward."""
    NEXT_OBS = "next_obs"
    """Observation after the last step of an n-step window. Where an episode was truncated, it is the true final
    observation."""
    DISCOUNTS = "discounts"
    """Factor that multiplies the value of ``next_obs``: gamma to the power of the number of steps, or 0 where the
    episode terminated."""
    WEIGHTS = "weights"
    """Importance weights of samples from a prioritized replay buffer."""
    NOISE = "noise"
    """Noise with which a loss samples actions for ``obs``, ``[B, W]``; see ``Distribution.rsample_with_logp``."""
    NEXT_NOISE = "next_noise"
    """Noise with which a loss samples or perturbs actions for the observations that followed the rows, ``[B, W]``."""
    NEXT_ROWS = "next_rows"
    """In a batch of sequences: for each of the ``valid_rows``, the index of the row that holds the following
    observation, int64 ``[R]``."""
    BURN_IN = "burn_in"
    """In a batch of sequences: the columns ``obs`` and ``starts`` of the rows before the sequences. These rows only
    update the recurrent state."""
    ORDER = "order"
    """Sort key of a row among the rows of all learners that train together, int64. The loss does not get this
    column."""
