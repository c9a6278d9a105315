"""``rlmodule explain``: show the catalog's decisions for an environment."""

from collections.abc import Sequence

from algorithms.cli.exits import OK
from algorithms.cli.flags import CommandFlags, algorithm_config, changed_settings, parse, parse_early, settings_in
from algorithms.cli.values import environment
from catalog.explain.explain import Format
from catalog.settings import setting, settings_of

# Settings on which the catalog's decisions depend, in addition to those of the networks.
_EXPLAINED = (
    "env_config",
    "gym_env_vectorize_mode",
    "rl_module_spec",
    "policies",
    "policy_mapping_fn",
    "rnd_coeff",
    "rnd_dim",
)


class ExplainFlags(CommandFlags):
    """Show the networks for ENV, and why they were chosen. ENV is a Gymnasium id, or your own class or factory,
    written my_module:name. Network settings can be given as flags."""

    algo: str = setting("ppo", "The algorithm whose catalog decides.")
    format: Format = setting("text", "An outline, or the same as a flowchart for Mermaid.")


def explain(args: Sequence[str]) -> int:
    """Run ``rlmodule explain``; return its exit code."""
    algo = algorithm_config(parse_early(ExplainFlags, args).algo)
    known = {name: item for name, item in settings_of(algo).items() if name in (*_EXPLAINED, *algo().net_settings)}
    flags, (env,), typed = parse(ExplainFlags, "rlmodule explain", "ENV", args, settings=settings_in(algo(), known))
    config = algo().update({"env": environment(env), **changed_settings(typed, algo())})
    print(config.get_module_spec(*config.spaces_of()).build().explain(flags.format))
    return OK
