"""Learn in two processes that sum their gradients, and compare with one that has the whole batch: the same weights.

Run it as ``python examples/several_learners.py``.
"""

import torch

from algorithms.ppo import PPOConfig

BATCH, MINIBATCH = 2048, 128


def config_of(num_learners):
    """The same batches and minibatches, by however many learners."""
    each = max(1, num_learners)
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .learners(num_learners=num_learners, learner_timeout_s=30)
        .training(train_batch_size_per_learner=BATCH // each, minibatch_size=MINIBATCH // each)
        .debugging(seed=1)
    )


def train(num_learners):
    """The weights after the first iteration."""
    with config_of(num_learners).build() as algo:
        result = algo.train()
        loss = result["learners"]["default_policy"]["total_loss"]
        print(f"num_learners={num_learners}: total loss {loss:.6f}")
        if num_learners:
            print(f"  waited {result['workers']['waited_for_learners_s']:.2f} s for them")
        return torch.cat([parameter.detach().flatten() for parameter in algo.get_module().parameters()])


alone, together = train(0), train(2)
print(f"weights differ by at most {(alone - together).abs().max():.1e}: sums in another order are rounded otherwise")
