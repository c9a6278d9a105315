"""Settings of runs with several agents: their policies, and which agent plays which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, ClassVar, Literal

from typing_extensions import Self

from algorithms.config import AlgorithmConfig
from algorithms.run.league import League
from catalog.settings import Section, Settings, setting, settings_of
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec


class MultiAgent(Settings):
    """The policies of a multi-agent env."""

    policies: Literal["shared", "own"] | list[str] | dict[str, RLModuleSpec] | Callable[..., Any] | None = setting(
        None,
        "'shared' is one policy for all agents, 'own' one policy for each; or policy ids, specs by id, or fn(agents) "
        "that returns one of these. None is for a single-agent env.",
    )
    policy_mapping_fn: Callable[..., str] | dict[Any, str] | None = setting(
        None,
        "The id of each agent's policy, by agent or as fn(agent, episode); None takes the policy with the agent's "
        "name, or the only policy.",
    )
    evaluation_policy_mapping_fn: Callable[..., str] | dict[Any, str] | None = setting(
        None, "The policy_mapping_fn of evaluations; None takes policy_mapping_fn."
    )
    policies_to_train: list[str] | Callable[..., bool] | None = setting(
        None, "Ids of the policies to train, or fn(policy_id); None trains all. Policies that are not trained only act."
    )
    policy_overrides: dict[str, dict[str, Any]] = setting(
        {},
        "Training settings that differ for a policy, by policy id; not those of the whole run, such as the batch size.",
    )
    league: League | dict[str, Any] | None = setting(
        None,
        "Self-play of the only policy against its earlier versions: a League, or a dict of its settings; None plays "
        "without earlier versions.",
    )
    shared_parts: dict[str, str | list[str]] | None = setting(
        None,
        "Parts that policies share, by a name of your choice: the path of a part in all policies, such as 'encoder', "
        "or its places in some, such as ['a.encoder', 'b.encoder']; None shares none.",
    )


def _is_one_of(trained: list[str] | Callable[..., bool] | None, module_id: str) -> bool:
    if not callable(trained):
        return trained is None or module_id in trained
    try:
        return bool(trained(module_id))
    except Exception as error:
        got = f"{type(error).__name__}: {error}. Write it as policies_to_train(policy_id)."
        raise ValueError(f"policies_to_train, policy {module_id!r}: expected whether it trains, got {got}") from error


class MultiAgentConfig(MultiAgent, AlgorithmConfig):
    """Settings of algorithms that can also train in multi-agent envs."""

    multi_agent = Section(MultiAgent)

    not_for_learners = (
        *AlgorithmConfig.not_for_learners,
        "policies",
        "policy_mapping_fn",
        "evaluation_policy_mapping_fn",
    )

    sections_of_a_policy: ClassVar[tuple[str, ...]] = ("training",)
    """Sections whose settings ``policy_overrides`` can change for a single policy, except ``settings_of_the_run``."""

    settings_of_the_run: ClassVar[tuple[str, ...]] = ("train_batch_size_per_learner", "clip_rewards")
    """Settings in ``sections_of_a_policy`` that are the same for all policies."""

    @property
    def is_multi_agent(self) -> bool:
        return self.policies is not None

    def is_trained(self, module_id: str) -> bool:
        return _is_one_of(self.policies_to_train, module_id)

    def is_on(self, name: str) -> bool:
        """Return whether the setting ``name`` is anything but 0, False or None, for the run or one of its policies."""
        return any([vars(self)[name], *(changed.get(name) for changed in self.policy_overrides.values())])

    def for_module(self, module_id: str) -> Self:
        changed = self.policy_overrides.get(module_id)
        return self.copy().update(changed).freeze() if changed else self

    def for_runners(self) -> Any:
        settings = super().for_runners()
        settings.policy_mapping_fn = self.policy_mapping_fn
        settings.is_trained = partial(_is_one_of, self.policies_to_train)
        return settings

    def make_env(self, **changed: Any) -> Any:
        if not self.is_multi_agent:
            return super().make_env(**changed)
        from rlmodule.agents.make import make_agent_envs  # imports much that only several agents need

        assert self.env is not None
        return make_agent_envs(self.env, dict(self.env_config) | changed, 1)[0].env

    def for_evaluation(self) -> Self:
        config, mapping_fn = super().for_evaluation(), self.evaluation_policy_mapping_fn
        return config.copy().update({"policy_mapping_fn": mapping_fn}).freeze() if mapping_fn else config

    def get_module_spec(self, observation_space: Any, action_space: Any) -> RLModuleSpec | MultiRLModuleSpec:
        if not self.is_multi_agent:
            return super().get_module_spec(observation_space, action_space)
        from algorithms.run.policies import specs_of  # imports much that only several agents need

        return specs_of(self, observation_space, action_space)

    def spaces_of(self, env: Any = None) -> Any:
        if not self.is_multi_agent or (env is None and self.env is None):
            return super().spaces_of(env)
        from rlmodule.agents.guard import AgentEnvGuard

        with closing(self.make_env()) if env is None else nullcontext(env) as made:
            guard = AgentEnvGuard(made)
        return guard.observation_spaces, guard.action_spaces

    @classmethod
    def _further_hints(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        if data.get("policies") is None or "env" not in data:
            return {}
        from rlmodule.agents.multi_agent_env import MultiAgentEnv

        return {"env": settings_of(cls)["env"].hint | type[MultiAgentEnv]}

    @classmethod
    def _checked(cls, values: Mapping[str, Any], where: str, section: str | None = None) -> dict[str, Any]:
        values = dict(values)
        if isinstance(spec := values.get("policies"), MultiRLModuleSpec):
            values["policies"] = dict(spec.rl_module_specs)
            values.setdefault("shared_parts", dict(spec.shared_parts))
        for name in ("policies", "policies_to_train"):
            if isinstance(ids := values.get(name), set | frozenset):
                values[name] = sorted(ids)  # sets of strings have another order in each process
        if isinstance(league := values.get("league"), Mapping):
            values["league"] = League(**league)
        checked, known = super()._checked(values, where, section), settings_of(cls)
        of_policies = [name for name, item in known.items() if item.section in cls.sections_of_a_policy]
        allowed = [name for name in of_policies if name not in cls.settings_of_the_run]
        for policy_id, changed in checked.get("policy_overrides", {}).items():
            place = f"{cls.__name__}.policy_overrides[{policy_id!r}]"
            for name in changed:
                if name not in allowed:
                    remedy = cls._remedy_for_unknown(name, allowed)
                    if name in known:
                        remedy = f"All policies have the same: write .{known[name].section}({name}=...)."
                    raise TypeError(f"{place}: expected some of {', '.join(allowed)}, got {name!r}. {remedy}")
            super()._checked(changed, place)
        return checked

    def validate(self) -> None:
        super().validate()
        if self.is_multi_agent:
            self._checked({"policy_overrides": self.policy_overrides}, f"{type(self).__name__}()")
            if self.gym_env_vectorize_mode not in (None, "sync"):
                remedy = "Sample in several processes: .env_runners(num_env_runners=...)."
                raise self._invalid("gym_env_vectorize_mode", "None or 'sync' with several agents", remedy)
            return
        for name in settings_of(MultiAgent):
            if getattr(self, name):
                remedy = "Name the policies: .multi_agent(policies='shared')."
                raise self._invalid(name, "nothing without policies, which are for several agents", remedy)
