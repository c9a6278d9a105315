"""The functions whose nets a catalog builds, such as policy and value, and the encoder that each of them uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import Space, spaces

from catalog.model_config import DefaultModelConfig
from catalog.past import PREV_OBS, PastView
from catalog_rl import closest

_NO_MEMORY = "Acting would need its state: set functions={'value': {'use_lstm': False}}, or the memory that you use."


@dataclass(frozen=True)
class Functions:
    """The functions of a catalog, and the further outputs that the setting ``functions`` names.

    Attributes:
        names: Names of the catalog's functions. The first one has the main encoder.
        config: The model settings, with those of all functions.
    """

    names: tuple[str, ...]
    config: DefaultModelConfig

    @property
    def extra_outputs(self) -> dict[str, int]:
        """Width of each additional output in ``model_config.functions``, by name."""
        given = self.config.functions
        return {name: settings["output_dim"] for name, settings in given.items() if name not in self.names}

    def trunk_of(self, function: str) -> str:
        """Return the name of the function, such as "policy", whose encoder ``function`` uses; ``function`` itself if it
        has its own encoder."""
        first = self.names[0] if self.names else function
        if function == "value" and function in self.names:
            return first if self.config.vf_share_layers else function
        trunk = self.config.functions.get(function, {}).get("trunk", first)
        return function if trunk == "own" else trunk

    def has_own_trunk(self, function: str) -> bool:
        """Return whether ``function`` has its own encoder."""
        return self.trunk_of(function) == function

    def check(self, read_by_critics: tuple[str, ...]) -> None:
        """Check the setting ``functions``.

        Args:
            read_by_critics: Names of settings of encoders that the heads of "value" read, too.

        Raises:
            ValueError: If an entry sets "output_dim" or "trunk" for a function of the catalog, if an entry of another
                name sets no "output_dim" or an unknown "trunk", or if an entry has settings of an encoder that it
                shares with another function.
        """
        for name, given in self.config.functions.items():
            where = f"model_config.functions[{name!r}]"
            if name in self.names:
                self._check_own(where, given)
            else:
                self._check_extra_output(where, name, given)
            if self.has_own_trunk(name):
                continue
            of_encoder = self.config.encoder_settings().keys()
            if name == "value":
                of_encoder -= {*read_by_critics}
            wrong = next((setting for setting in given if setting in of_encoder), None)
            if wrong is not None:
                whose = self.trunk_of(name)
                remedy = f"Give it to {whose}, or leave it out." if name in self.names else "Set 'trunk': 'own'."
                if name == "value" and name in self.names:
                    remedy = "Set vf_share_layers=False."
                raise ValueError(
                    f"{where}[{wrong!r}]: expected settings of a head, since it sits on the "
                    f"encoder of {whose}, got a setting of an encoder. {remedy}"
                )

    def _check_own(self, where: str, given: Mapping[str, Any]) -> None:
        """Check the entry ``given`` of a function of the catalog. Error texts begin with ``where``."""
        if "output_dim" in given:
            expected = "no output_dim, which the algorithm knows"
            raise ValueError(f"{where}: expected {expected}, got {dict(given)!r}. Leave it out.")
        if "trunk" in given:
            expected = "none: vf_share_layers and the algorithm decide"
            raise ValueError(f"{where}['trunk']: expected {expected}, got {given['trunk']!r}. Leave it out.")

    def _check_extra_output(self, where: str, name: str, given: Mapping[str, Any]) -> None:
        """Check the entry ``given`` of the additional output ``name``. Error texts begin with ``where``."""
        if "output_dim" not in given:
            expected = " or ".join([*self.names, "an output_dim"])
            remedy = f"Say how many outputs it has.{closest(name, self.names)}"
            raise ValueError(f"{where}: expected {expected}, got {dict(given)!r}. {remedy}")
        trunks = [*self.names, "own"]
        if "trunk" in given and given["trunk"] not in trunks:
            expected, remedy = f"one of {', '.join(trunks)}", "Choose whose encoder it shares, or 'own'."
            raise ValueError(f"{where}['trunk']: expected {expected}, got {given['trunk']!r}. {remedy}")


def check_critic_only_keys(keys: tuple[str, ...], space: Space, action_fields: tuple[str, ...]) -> None:
    """Check that ``keys`` are fields of the Dict observation ``space``, that at least one other field is left, and that
    none of them is one of ``action_fields``, the action mask and the action vectors.

    Raises:
        ValueError: If they are not.
    """
    known = [*space.spaces] if isinstance(space, spaces.Dict) else []
    wrong = [key for key in keys if key not in known or key in action_fields]
    if wrong or {*keys, *action_fields} == {*known}:
        expected = "fields of a Dict observation, but not all, and neither mask nor action vectors"
        left = [key for key in known if key not in action_fields]
        meant = closest(wrong[0], left) if wrong else " Leave one to the policy."
        remedy = f"Name some of {', '.join(left) or 'none'}.{meant}"
        raise ValueError(f"model_config.critic_only_keys: expected {expected}, got {keys} of {space}. {remedy}")


def check_critic_only(config: DefaultModelConfig, past_view: PastView, policy_has_own_net: bool) -> None:
    """Check that a policy can act without the fields ``critic_only_keys``.

    Raises:
        ValueError: If the critic shares the policy's encoder, has a memory or reads earlier observations, or if the
            policy has a ``custom_model``, because acting would need these fields.
    """
    for is_wrong, what, remedy in (
        (config.for_function("value").is_recurrent, "a value function with a memory", _NO_MEMORY),
        (config.vf_share_layers, "shared layers", "Set vf_share_layers=False."),
        (PREV_OBS in past_view.steps, "earlier observations", "Leave one of them out."),
        (policy_has_own_net, "a custom_model of the policy, which would read them", "Register an encoder instead."),
    ):
        if is_wrong:
            got = f"got {what}. {remedy}"
            raise ValueError(f"model_config.critic_only_keys: expected a critic with its own encoder, {got}")
