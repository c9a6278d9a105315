"""Settings of algorithms that learn from whole rollouts."""

from algorithms.multi_agent_config import MultiAgentConfig
from catalog.settings import Section
from rlmodule.settings import EpisodeLearnerSettings, EpisodeTraining


class EpisodeLearnerConfig(EpisodeLearnerSettings, MultiAgentConfig):
    """Settings of algorithms that learn from rollouts in epochs of minibatches, with an :class:`EpisodeLearner`."""

    training = Section(EpisodeTraining)

    def validate(self) -> None:
        super().validate()
        if self.is_multi_agent:  # a policy has a row for each step of each of its agents: no bound of minibatch_size
            return
        if self.minibatch_size is not None and self.minibatch_size > self.train_batch_size_per_learner:
            raise self._invalid(
                "minibatch_size",
                f"at most train_batch_size_per_learner={self.train_batch_size_per_learner}",
                "Make it smaller, or None for the whole batch.",
            )
