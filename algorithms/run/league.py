"""League: self-play of one policy against its own earlier versions, drawn by how hard they are to beat.

Source of the matchmaking: Vinyals et al. 2019, Grandmaster level in StarCraft II using multi-agent reinforcement
learning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from algorithms.run.callbacks import Callbacks
from catalog.settings import Settings, setting
from rlmodule.seeding import numpy_stream

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

_RECENT = 100
"""Number of later games against a snapshot after which a game counts only 1/e in the win rate."""


class League(Settings):
    """Self-play against snapshots of the policy: copies that are not trained. Immutable.

    In each episode of an env, one agent, drawn by chance, acts with the policy that learns. All others act with the
    same opponent: a snapshot, or the policy itself. The learner wins an episode if the mean return of its agents
    exceeds that of the opponent's; an equal return is half a win. The first snapshot has the initial weights.

    Snapshot ``i`` is drawn with a probability proportional to ``(1 - win rate against i) ** power``, in the share of
    episodes that ``self_play`` and ``newest`` leave. If there are too many snapshots, the one that is drawn least is
    removed, but never the newest.

    Raises:
        ValueError: If no share of the episodes is left for snapshots, or a number is out of range.
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
    """Maps agents to policies as a league drew them. Picklable; the draw depends on run seed, env and episode alone.

    Args:
        run_seed: Seed of the run.
        agents: All agents.
        learner: Id of the policy that learns.
        chances: Probability of each opponent.
    """

    def __init__(self, run_seed: int, agents: Sequence[Any], learner: str, chances: Mapping[str, float]) -> None:
        self._run_seed, self._agents, self._learner, self._chances = run_seed, [*agents], learner, dict(chances)

    def __call__(self, agent: Any, episode: Any) -> str:
        stream = numpy_stream(self._run_seed, "league", episode.env_index, episode.number)
        seat, left = int(stream.integers(len(self._agents))), float(stream.random())
        if agent == self._agents[seat]:
            return self._learner
        for opponent, chance in self._chances.items():
            left -= chance
            if left < 0:
                return opponent
        return [*self._chances][-1]  # after rounding


class Standings(Callbacks):
    """The snapshots of a league, and how the learner plays against them.

    Args:
        settings: The league.
        learner: Id of the policy that learns.
        agents: All agents.
        publish: Function that passes the current :meth:`matches` to all runners.

    Attributes:
        games: Games and wins against each snapshot, the oldest snapshot first; recent games count most.
    """

    def __init__(self, settings: League, learner: str, agents: Sequence[Any], publish: Callable[[], None]) -> None:
        self._settings, self._learner, self._agents, self._publish = settings, learner, agents, publish
        self.games: dict[str, tuple[float, float]] = {}
        self._new: dict[str, tuple[int, float]] = {}

    def win_rates(self) -> dict[str, float]:
        """Return the win rate against each snapshot; 1/2 before the first game."""
        return {name: (wins + 1) / (games + 2) for name, (games, wins) in self.games.items()}

    def chances(self) -> dict[str, float]:
        """Return the probability of each opponent.

        Raises:
            ValueError: If there is no snapshot.
        """
        if not self.games:
            raise ValueError(
                "league: expected at least one snapshot, got none: a league without opponents. Keep one: the league "
                f"takes snapshots of {self._learner!r} by itself."
            )
        settings = self._settings
        hard = {name: (1 - rate) ** settings.power for name, rate in self.win_rates().items()}
        share = (1 - settings.self_play - settings.newest) / sum(hard.values())
        chances = {self._learner: settings.self_play} | {name: share * one for name, one in hard.items()}
        chances[[*self.games][-1]] += settings.newest
        return chances

    def matches(self, run_seed: int) -> Matches:
        """Return the function that maps agents to policies from now on."""
        return Matches(run_seed, self._agents, self._learner, self.chances())

    def take_snapshot(self, algorithm: Algorithm) -> None:
        """Add a snapshot of the learner; remove one if there are too many."""
        name = f"{self._learner}_{algorithm.metrics.iterations}"
        self.games[name] = (0.0, 0.0)
        algorithm.add_policy(name, copy_of=self._learner)
        if len(self.games) > self._settings.max_snapshots:
            chances = self.chances()
            algorithm.remove_policy(min([*self.games][:-1], key=chances.__getitem__))

    def on_sample_end(self, *, algorithm: Algorithm, rollout: Any) -> None:
        for episode in rollout.stats["episode_agents"]:
            returns = dict[str, list[float]]()
            for one in episode:
                returns.setdefault(one.policy, []).append(one.episode_return)
            for name in self.games.keys() & returns.keys() if self._learner in returns else ():
                own, other = fmean(returns[self._learner]), fmean(returns[name])
                games, wins = self._new.get(name, (0, 0.0))
                self._new[name] = games + 1, wins + (own > other) + (own == other) / 2

    def _count(self) -> None:
        """Add the games of this iteration. Their order, which depends on the runners, does not matter."""
        for name, (num, won) in self._new.items():
            games, wins = (x * (1 - 1 / _RECENT) ** num for x in self.games[name])
            self.games[name] = games + num, wins + won
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
        """Return games and wins by snapshot."""
        return {name: [*one] for name, one in self.games.items()}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore a state from :meth:`get_state`."""
        self.games = {name: (games, wins) for name, (games, wins) in state.items()}
