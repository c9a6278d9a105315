"""``rlmodule tune``: search settings with trials of several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from algorithms.cli.exits import OK, UsageError, kebab
from algorithms.cli.flags import CommandFlags, algorithm_config, changed_settings, parse, settings_in
from algorithms.cli.one_run import commands
from algorithms.cli.train import budget_of, preset_of
from algorithms.cli.values import environment
from algorithms.config import AlgorithmConfig
from algorithms.run.goal import Budget
from algorithms.run.jobs import allow_flag
from algorithms.run.text import path_text
from algorithms.tuning.page import study_table, winning_command
from algorithms.tuning.population import population_table, train_population
from algorithms.tuning.tuning import tune as tune_settings
from catalog.settings import setting, settings_of

_OWN = ("seed", "run_dir", "torch_num_threads")
"""Settings that differ between the runs of a study, or that it chooses."""


class TuneFlags(CommandFlags):
    """Search settings of ALGO on ENV: each trial trains several seeds, and the best is trained again with others. Every
    setting is a flag, for all trials. The same command goes on with a study that was interrupted."""

    search: list[str] | None = setting(
        None,
        "What to search: lr=log:1e-5..1e-2 gamma=1-log:1e-4..0.1 num_epochs=1..20 "
        "'model_config.fcnet_hiddens=[64,64]|[256,256]', or default for the algorithm's own search.",
    )
    trials: int = setting(40, "Number of trials; more of them extend a study.", ge=1)
    jobs: int = setting(1, "Number of runs at the same time, each on one thread.", ge=1)
    seeds: int = setting(3, "Number of seeds of each trial, whose median counts.", ge=1)
    test_seeds: int = setting(3, "Number of other seeds with which the best trials are trained at the end.", ge=0)
    sampler: Literal["tpe", "random"] = setting("tpe", "How to choose the next trial; tpe needs Optuna.")
    prune: Literal["median", "none"] = setting(
        "median", "Stop a trial that is worse than the median of the others at 1/8, 1/4, 1/2 or 3/4 of its steps."
    )
    study_seed: int = setting(0, "Seed of the sampler, or of the choices of a population.", ge=0)
    pbt: int | None = setting(
        None,
        "Train a population of so many members instead of trials: every --pbt-interval env steps, the worst quarter "
        "goes on from the best with other settings.",
        ge=4,
    )
    pbt_interval: int = setting(20_000, "Env steps between two such times.", ge=1)
    num_env_steps: int | None = setting(None, "Env steps of each run; None takes those of the preset.", ge=1)
    num_updates: int | None = setting(None, "Updates from --data of each run, instead of --num-env-steps.", ge=1)
    preset: str = setting("auto", "Settings to begin with, as in rlmodule train.")
    run_dir: str = setting("runs/study", "Folder of the study.")
    quiet: bool = setting(False, "Print nothing but errors.")


@dataclass(frozen=True)
class TunePlan:
    """The search that a command line asks for.

    Attributes:
        flags: The command's own flags.
        config: The settings of all trials.
        search: What to search, as texts.
        budget: What to count: env steps, or updates from data.
        amount: How many each run takes.
    """

    flags: TuneFlags
    config: AlgorithmConfig
    search: list[str]
    budget: Budget
    amount: int


def tune_plan(args: Sequence[str]) -> TunePlan:
    """Return the plan for the arguments of ``rlmodule tune``.

    Raises:
        UsageError: If the algorithm, environment, preset or a flag is unknown, or a value does not fit its flag.
        SystemExit: With code 0, after printing the help.
    """
    if not args or args[0].startswith("-"):
        if {*args} & {"-h", "--help"}:
            parse(TuneFlags, "rlmodule tune", "ALGO ENV", ["--help"])
        raise UsageError(f"rlmodule tune: expected ALGO first, got {' '.join(args) or 'nothing'}.")
    algo = algorithm_config(args[0])
    known = {name: item for name, item in settings_of(algo).items() if name not in _OWN}
    count = range(2) if "data" in known else range(1, 2)
    flags, envs, typed = parse(
        TuneFlags, f"rlmodule tune {args[0]}", "ENV", args[1:], count=count, settings=settings_in(algo(), known)
    )
    env = environment(envs[0]) if envs else None
    preset, _ = preset_of(algo, env, flags.preset)
    config = algo(**preset.settings).update({"env": env})
    config.update(changed_settings(typed, config))
    search = flags.search or []
    if search == ["default"]:
        search = [*algo.default_search]
    budget, amount = budget_of(flags.num_env_steps, flags.num_updates, config, preset)
    return TunePlan(flags, config, search, budget, amount)


def tune(args: Sequence[str]) -> int:
    """Run ``rlmodule tune``; return its exit code."""
    plan = tune_plan(args)
    flags = plan.flags
    if flags.pbt is not None:
        return _train_population(plan)
    if flags.pbt_interval != settings_of(TuneFlags)["pbt_interval"].default:
        raise UsageError("--pbt-interval: expected --pbt with it, got none. Add --pbt 8, or leave it out.")
    study = tune_settings(
        plan.config,
        plan.search,
        **{plan.budget: plan.amount},
        trials=flags.trials,
        jobs=flags.jobs,
        seeds=flags.seeds,
        test_seeds=flags.test_seeds,
        sampler=flags.sampler,
        prune=flags.prune,
        seed=flags.study_seed,
        run_dir=flags.run_dir,
        progress=not flags.quiet,
    )
    if not flags.quiet:
        print(f"{study_table(study)}\n\nWrote {path_text(study.folder / 'study.md')}")
        print(f"\nThe best trial again:\n\n  {winning_command(study)}")
    return OK


def _train_population(plan: TunePlan) -> int:
    """Train the population of ``--pbt``, and print the command that evaluates its best member."""
    flags = plan.flags
    known = settings_of(TuneFlags)
    for name in ("trials", "seeds", "test_seeds", "sampler", "prune", "num_updates"):
        if vars(flags)[name] != known[name].default:
            raise UsageError(f"--{kebab(name)}: expected none with --pbt, got one. Leave it out.")
    if plan.budget != "num_env_steps":
        raise UsageError("--pbt: expected a run of env steps, got one that learns from data. Search with --trials.")
    population = train_population(
        plan.config,
        plan.search,
        size=flags.pbt or 0,
        num_env_steps=plan.amount,
        interval=flags.pbt_interval,
        jobs=flags.jobs,
        seed=flags.study_seed,
        run_dir=flags.run_dir,
        progress=not flags.quiet,
    )
    if not flags.quiet:
        print(population_table(population))
        print(f"\nWrote {path_text(population.folder / 'population.png')}\n\nNext:\n")
        print(commands(["evaluate", path_text(population.best_run), *allow_flag(plan.config)]))
    return OK
