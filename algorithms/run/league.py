"""League: self-play of one policy against its own earlier versions, in which versions that are hard to beat are drawn
more often.

Source of the matchmaking: Vinyals et al. 2019, Grandmaster level in StarCraft II using multi-agent reinforcement
learning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from algorithms.run.callbacks import Callbacks
from catalog.settings import Settings, setting
from rlmodule.seeding import numpy_stream

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

# Number of later games against a snapshot after which a game counts only 1/e in the win rate.
_RECENT = 100


class League(Settings):
    """Self-play against snapshots of the policy, which are copies that are not trained. A league is immutable.

    In each episode, one agent, drawn at random, acts with the learning policy. All other agents act with the same
    opponent: a snapshot, or the learning policy itself. The learning policy wins an episode if the mean return of its
    agents exceeds the mean return of the opponent's agents. Equal means count as half a win. The first snapshot has the
    initial weights.

    Snapshot ``i`` is drawn with a probability proportional to ``(1 - win rate against i) ** power``, in the share of
    episodes that ``self_play`` and ``newest`` leave. If there are more than ``max_snapshots``, the snapshot with the
    lowest probability is removed, but never the newest.

    Raises:
        ValueError: If ``self_play`` is 1, ``self_play`` and ``newest`` add up to more than 1, ``every`` and
            ``win_rate`` are both None, or a number is out of range.
    """

    every: int | None = setting(10, "Iterations between snapshots; None takes them at win_rate alone.", ge=1)
    win_rate: float | None = setting(
        None,
        "Mean win rate against all snapshots at which another is taken; None takes them by every alone.",
        gt=0,
        lt=1,
    )
    max_snapshots: int = setting(10, "Snapshots to keep.", ge=1)
    power: float = setting(2.0, "Preference for snapshots that are hard to beat; 0 draws all alike.", ge=0)
    self_play: float = setting(0.2, "Share of the episodes against the policy itself.", ge=0, le=1)
    newest: float = setting(0.2, "Share of the episodes against the newest snapshot.", ge=0, le=1)

    def __post_init__(self) -> None:
        if self.self_play == 1 or self.self_play + self.newest > 1:
            raise ValueError(
                "League(): expected self_play below 1 and at most 1 together with newest, got "
                f"{self.self_play} and {self.newest}: a league without opponents. Lower them; for self-play alone, "
                "leave the league out."
            )
        if self.every is None and self.win_rate is None:
            raise ValueError(
                "League(): expected every or win_rate, got None for both, so no snapshot would be taken. Set one."
            )
        object.__setattr__(self, "_frozen", True)


class Matches:
    """A ``policy_mapping_fn`` that draws the opponent of each episode. It can be pickled. A draw depends only on the
    run's seed, the env and the episode. An agent that starts later gets the opponent that the others have, unless it
    was removed meanwhile.

    Args:
        run_seed: Seed of the run.
        agents: All agents.
        learner: Id of the policy that learns.
        chances: Opponent's policy id → its probability.
    """

    def __init__(self, run_seed: int, agents: Sequence[Any], learner: str, chances: Mapping[str, float]) -> None:
        self._run_seed, self._agents, self._learner, self._chances = run_seed, [*agents], learner, dict(chances)

    def __call__(self, agent: Any, episode: Any) -> str:
        stream = numpy_stream(self._run_seed, "league", episode.env_index, episode.number)
        seat, left = int(stream.integers(len(self._agents))), float(stream.random())
        if agent == self._agents[seat]:
            return self._learner
        # All opponents of an episode act with the same policy: with that of the first one that was mapped.
        opponents = [finished.policy for finished in episode.finished if finished.agent != self._agents[seat]]
        opponents += [episode.policy_of(other) for other in episode.agents if other != self._agents[seat]]
        if opponents and opponents[0] in episode.policies:
            return opponents[0]
        for opponent, chance in self._chances.items():
            left -= chance
            if left < 0:
                return opponent
        return [*self._chances][-1]  # after rounding


class Standings(Callbacks):
    """Keeps the snapshots of a league and the learner's wins against them. The run calls its callbacks, which count
    games and take snapshots.

    Args:
        settings: The league.
        learner: Id of the policy that learns.
        agents: All agents.
        publish: Function that passes the current :meth:`matches` to all env runners.

    Attributes:
        games: Snapshot id → games against it and wins, the oldest snapshot first. Recent games count most, so these
            numbers are not whole.
    """

    def __init__(self, settings: League, learner: str, agents: Sequence[Any], publish: Callable[[], None]) -> None:
        self._settings, self._learner, self._agents, self._publish = settings, learner, agents, publish
        self.games: dict[str, tuple[float, float]] = {}
        self._new: dict[str, tuple[int, float]] = {}

    def win_rates(self) -> dict[str, float]:
        """Return the win rate against each snapshot, with one win and one loss added, so that it begins at 1/2."""
        return {name: (wins + 1) / (games + 2) for name, (games, wins) in self.games.items()}

    def chances(self) -> dict[str, float]:
        """Return the probability of each opponent by policy id: the learner itself and all snapshots, of which there
        must be one."""
        settings = self._settings
        hard = {name: (1 - rate) ** settings.power for name, rate in self.win_rates().items()}
        share = (1 - settings.self_play - settings.newest) / sum(hard.values())
        chances = {self._learner: settings.self_play} | {name: share * hardness for name, hardness in hard.items()}
        chances[[*self.games][-1]] += settings.newest
        return chances

    def matches(self, run_seed: int) -> Matches:
        """Return the function that maps agents to policies with the current :meth:`chances`."""
        return Matches(run_seed, self._agents, self._learner, self.chances())

    def take_snapshot(self, algorithm: Algorithm) -> None:
        """Add a snapshot of the learner to the run's policies. While there are more than ``max_snapshots``, remove the
        snapshot with the lowest probability, but never the newest."""
        name = f"{self._learner}_{algorithm.metrics.iterations}"
        while name in algorithm.policies:  # a policy of the user's
            name += "_"
        self.games[name] = (0.0, 0.0)
        algorithm.add_policy(name, copy_of=self._learner)
        while len(self.games) > self._settings.max_snapshots:
            algorithm.remove_policy(min([*self.games][:-1], key=self.chances().__getitem__))

    def on_sample_end(self, *, algorithm: Algorithm, rollout: Any) -> None:
        for episode in rollout.stats["multi_agent_episodes"]:
            returns = defaultdict[str, defaultdict[Any, float]](lambda: defaultdict(float))
            for finished in episode.finished:  # an agent that returned has several
                returns[finished.policy][finished.agent] += finished.episode_return
            if self._learner not in returns:
                continue
            learner_return = fmean(returns[self._learner].values())
            for name in self.games.keys() & returns.keys():
                opponent_return = fmean(returns[name].values())
                games, wins = self._new.get(name, (0, 0.0))
                if learner_return > opponent_return:
                    wins += 1.0
                elif learner_return == opponent_return:
                    wins += 0.5
                self._new[name] = games + 1, wins

    def _count(self) -> None:
        """Add the games of this iteration against snapshots that still exist to ``games``. The result does not depend
        on the order in which the games ended."""
        for name in self.games.keys() & self._new.keys():
            (games, wins), (num, won) = self.games[name], self._new[name]
            kept = (1 - 1 / _RECENT) ** num
            self.games[name] = games * kept + num, wins * kept + won
        self._new.clear()

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        self._count()
        rates, settings = self.win_rates(), self._settings
        due = settings.every is not None and algorithm.metrics.iterations % settings.every == 0
        if due or (settings.win_rate is not None and fmean(rates.values()) >= settings.win_rate):
            self.take_snapshot(algorithm)
        self._publish()
        result["league"] = {"num_snapshots": len(self.games), "win_rate": fmean(rates.values()), "win_rates": rates}

    def get_state(self) -> dict[str, list[float]]:
        """Return :attr:`games` as JSON values."""
        return {name: [*counts] for name, counts in self.games.items()}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore a state from :meth:`get_state`."""
        self.games = {name: (games, wins) for name, (games, wins) in state.items()}
