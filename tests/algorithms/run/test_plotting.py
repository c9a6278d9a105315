"""Learning curves: what is averaged, how sure the mean is, how curves are called and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from algorithms.loggers.base import STEPS
from algorithms.ppo import PPOConfig
from algorithms.run.plotting import (
    COLOURS,
    EVALUATION_RETURN,
    SECONDS,
    TRAINING_RETURN,
    draw_run,
    mean_and_margin,
    on_common_grid,
    plot_runs,
    student_t,
    table_of,
)

Points = list[tuple[int, float | None]]


def write_run(folder: Path, points: Points, metric: str = EVALUATION_RETURN, **settings: Any) -> Path:
    """A run folder whose ``metric`` has ``points``, 100 env steps per second."""
    folder.mkdir(parents=True)
    rows = [{STEPS: steps, SECONDS: steps / 100, metric: value} for steps, value in points]
    (folder / "progress.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    config = PPOConfig(**{"env": "CartPole-v1", "run_dir": str(folder), **settings})
    about = {"algorithm": "PPO", "name": f"PPO on {config.env}", "seed": 1, "config": config.to_dict()}
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "plot.png"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written from here on."""
    written: list[Figure] = []
    real = Figure.savefig

    def savefig(figure: Figure, *args: Any, **kwargs: Any) -> None:
        written.append(figure)
        real(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return written


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # of any table of Student's distribution, at 0.975
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423), (120, 1.9799)],
)
def test_quantiles_are_those_of_students_distribution(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, abs=5e-5)


def test_quantiles_approach_those_of_the_normal_distribution() -> None:
    assert student_t(100_000) == pytest.approx(1.959964, abs=5e-5)


@pytest.mark.parametrize("freedom", [1, 2, 5, 8, 9, 10, 14])
def test_the_quantile_holds_95_percent_of_the_density(freedom: int) -> None:
    """The density of Student's distribution, summed up over atan(t), which is bounded."""
    angles = np.linspace(-1, 1, 200_001) * math.atan(student_t(freedom))
    t = np.tan(angles)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2) * (1 + t**2)
    assert np.sum((density[1:] + density[:-1]) / 2 * np.diff(angles)) == pytest.approx(0.95, abs=1e-5)


def test_mean_and_interval_by_hand() -> None:
    mean, margin = mean_and_margin(np.array([[1.0, 10.0], [2.0, 10.0], [6.0, 10.0]]))
    assert mean.tolist() == [3, 10]
    assert margin is not None
    # deviations -2, -1, 3: variance 14 / 2; t at 2 degrees of freedom
    assert margin == pytest.approx([4.302653 * math.sqrt(7) / math.sqrt(3), 0])


def test_one_seed_has_no_interval() -> None:
    mean, margin = mean_and_margin(np.array([[1.0, 2.0]]))
    assert (mean.tolist(), margin) == ([1, 2], None)


def test_seeds_meet_wherever_one_has_a_value_as_far_as_all_reach() -> None:
    first = np.array([0.0, 10, 20]), np.array([0.0, 100, 0])
    second = np.array([5.0, 10, 15]), np.array([1.0, 1, 3])
    grid, values = on_common_grid([first, second])
    assert grid.tolist() == [5, 10, 15]
    assert values.tolist() == [[50, 100, 50], [1, 1, 3]]


def test_seeds_without_a_common_place_meet_nowhere() -> None:
    grid, _ = on_common_grid([(np.array([0.0, 1]), np.zeros(2)), (np.array([2.0, 3]), np.zeros(2))])
    assert not len(grid)


places = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted)


@st.composite
def series(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    x = np.array(draw(places), float)
    y = draw(st.lists(st.floats(-100, 100), min_size=len(x), max_size=len(x)))
    return x, np.array(y)


def joined(x: np.ndarray, y: np.ndarray, at: float) -> float:
    """The line through the points, slowly."""
    for x0, y0 in zip(x, y, strict=True):
        if x0 == at:
            return float(y0)
    left, right = max(i for i in range(len(x)) if x[i] < at), min(i for i in range(len(x)) if x[i] > at)
    share = (at - x[left]) / (x[right] - x[left])
    return float(y[left] + share * (y[right] - y[left]))


@given(st.lists(series(), min_size=1, max_size=4))
def test_the_common_grid_is_that_of_lines_through_the_points(many: list[tuple[np.ndarray, np.ndarray]]) -> None:
    grid, values = on_common_grid(many)
    low, high = max(x[0] for x, _ in many), min(x[-1] for x, _ in many)
    assert {*grid} == {at for x, _ in many for at in x if low <= at <= high}
    assert (np.diff(grid) > 0).all()
    for (x, y), row in zip(many, values, strict=True):
        assert row == pytest.approx([joined(x, y, at) for at in grid])


# --- runs -------------------------------------------------------------------------------------------------------------


def test_seeds_are_averaged_and_reach_as_far_as_the_shortest(tmp_path: Path, out: Path) -> None:
    write_run(tmp_path / "runs/seed-1", [(100, 10), (200, 20), (300, 60)])
    write_run(tmp_path / "runs/seed-2", [(100, 30), (200, 40)])
    (curve,) = plot_runs([tmp_path / "runs"], out)
    assert curve.x.tolist() == [100, 200]
    assert curve.mean.tolist() == [20, 30]
    assert curve.margin == pytest.approx([12.7062 * 10, 12.7062 * 10], rel=1e-5)  # s = 14.14, over the root of 2
    assert [seed.y.tolist() for seed in curve.seeds] == [[10, 20, 60], [30, 40]]
    assert [(seed.last[STEPS], seed.last[SECONDS]) for seed in curve.seeds] == [(300, 3), (200, 2)]
    assert out.stat().st_size > 10_000


def test_time_goes_to_the_right_if_asked_for(tmp_path: Path, out: Path, figures: list[Figure]) -> None:
    write_run(tmp_path / "one", [(100_000, 10), (800_000, 20)])
    (curve,) = plot_runs([tmp_path / "one"], out, by="time")
    assert curve.x.tolist() == [1000, 8000]
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "training time (min)"
    assert axes.lines[0].get_xdata() == pytest.approx([1000 / 60, 8000 / 60])


def test_runs_are_found_two_levels_down(tmp_path: Path, out: Path) -> None:
    for seed in (10, 9, 2):
        write_run(tmp_path / f"runs/mine/seed-{seed}", [(100, seed)])
    write_run(tmp_path / "runs/a/b/deep", [(100, 1000)])
    (curve,) = plot_runs([tmp_path / "runs"], out)
    assert [seed.y.tolist() for seed in curve.seeds] == [[10], [2], [9]]
    assert curve.mean.tolist() == [7]


def test_what_is_missing_and_a_line_that_was_cut_off_are_left_out(tmp_path: Path, out: Path) -> None:
    run = write_run(tmp_path / "one", [(100, 10), (200, None), (300, 30)])
    with open(run / "progress.jsonl", "a", encoding="utf-8") as file:
        file.write('{"env_runners/num_env_steps_sampled_lifetime": 400, "evaluation/env_run')
    (curve,) = plot_runs([run], out)
    assert (curve.x.tolist(), curve.mean.tolist()) == ([100, 300], [10, 30])


def test_a_seed_without_a_value_yet_waits(tmp_path: Path, out: Path) -> None:
    write_run(tmp_path / "runs/seed-1", [(100, 10)])
    write_run(tmp_path / "runs/seed-2", [])
    (tmp_path / "runs/seed-2/run.json").write_text("")  # as in the first moment of a run
    (curve,) = plot_runs([tmp_path / "runs"], out)
    assert [seed.y.tolist() for seed in curve.seeds] == [[10]]
    assert curve.waiting == (tmp_path / "runs/seed-2",)


def test_evaluations_are_drawn_if_every_run_has_them_else_training(
    tmp_path: Path, out: Path, figures: list[Figure]
) -> None:
    both = write_run(tmp_path / "both", [(100, 10)])
    (both / "progress.jsonl").write_text(
        "".join(
            json.dumps({STEPS: at, SECONDS: 1, EVALUATION_RETURN: 10, TRAINING_RETURN: 3}) + "\n" for at in (50, 100)
        )
    )
    write_run(tmp_path / "training", [(100, 20)], TRAINING_RETURN, lr=1e-3)
    assert [curve.mean.tolist() for curve in plot_runs([both], out)] == [[10, 10]]
    assert [curve.mean.tolist() for curve in plot_runs([both, tmp_path / "training"], out)] == [[3, 3], [20]]
    assert [figure.axes[0].get_ylabel() for figure in figures] == [
        "mean episode return, evaluation",
        "mean episode return, training",
    ]


@pytest.mark.parametrize("metric", ["learners/default_policy/entropy", "default_policy/entropy", "entropy"])
def test_a_metric_is_called_by_as_much_of_its_path_as_is_enough(tmp_path: Path, out: Path, metric: str) -> None:
    write_run(tmp_path / "one", [(100, 0.5)], "learners/default_policy/entropy")
    (curve,) = plot_runs([tmp_path / "one"], out, metric=metric)
    assert curve.mean.tolist() == [0.5]


# --- what curves are called -------------------------------------------------------------------------------------------


def labels_of(out: Path, *runs: Path) -> list[str]:
    return [curve.label for curve in plot_runs(runs, out)]


def test_curves_are_called_by_the_settings_that_differ(tmp_path: Path, out: Path, figures: list[Figure]) -> None:
    slow = write_run(tmp_path / "slow", [(100, 1)], lr=1e-4, seed=1)
    fast = write_run(tmp_path / "fast", [(100, 2)], model_config={"fcnet_hiddens": [8]}, seed=2, evaluation_interval=9)
    assert labels_of(out, slow, fast) == ["lr 0.0001, fcnet_hiddens [64, 64]", "lr 0.0003, fcnet_hiddens [8]"]
    assert figures[0].axes[0].get_title() == "PPO on CartPole-v1"


def test_curves_of_several_envs_are_called_by_them(tmp_path: Path, out: Path, figures: list[Figure]) -> None:
    one = write_run(tmp_path / "one", [(100, 1)])
    two = write_run(tmp_path / "two", [(100, 2)], env="Acrobot-v1")
    assert labels_of(out, one, two) == ["CartPole-v1", "Acrobot-v1"]
    assert figures[0].axes[0].get_title() == "PPO"


def test_curves_of_the_same_settings_are_called_by_their_folders(tmp_path: Path, out: Path) -> None:
    one, two = (write_run(tmp_path / name, [(100, 1)], seed=seed) for seed, name in enumerate(("one", "two")))
    assert labels_of(out, one, two) == ["one", "two"]


def test_curves_that_differ_in_much_are_called_by_their_folders(tmp_path: Path, out: Path) -> None:
    many: dict[str, Any] = {"lr": 1e-4, "gamma": 0.9, "clip_param": 0.3, "lambda_": 0.9}
    one, two = write_run(tmp_path / "one", [(100, 1)]), write_run(tmp_path / "two", [(100, 1)], **many)
    assert labels_of(out, one, two) == ["one", "two"]


def test_folders_of_the_same_name_are_called_by_their_paths(tmp_path: Path, out: Path) -> None:
    one, two = (write_run(tmp_path / name / "run", [(100, 1)]) for name in ("a", "b"))
    assert labels_of(out, one, two) == [str(one), str(two)]


def test_labels_and_title_of_ones_own(tmp_path: Path, out: Path, figures: list[Figure]) -> None:
    one, two = (write_run(tmp_path / name, [(100, 1)]) for name in ("one", "two"))
    curves = plot_runs([one, two], out, labels=["A", "B"], title="Both")
    assert [curve.label for curve in curves] == ["A", "B"]
    assert figures[0].axes[0].get_title() == "Both"


# --- the picture and the table ----------------------------------------------------------------------------------------


def test_the_picture_has_a_band_for_the_interval_and_a_thin_line_for_each_seed(
    tmp_path: Path, out: Path, figures: list[Figure]
) -> None:
    for seed, last in ((1, 20), (2, 40)):
        write_run(tmp_path / f"runs/seed-{seed}", [(100, 10), (200, last)])
    alone = write_run(tmp_path / "alone", [(100, 5), (200, 6)], lr=1e-3)
    plot_runs([tmp_path / "runs", alone], out)
    (axes,) = figures[0].axes
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[10, 30], [10, 20], [10, 40], [5, 6]]
    assert [line.get_linewidth() for line in axes.lines] == [2, 0.8, 0.8, 2]
    assert [line.get_color() for line in axes.lines] == [*[COLOURS[0]] * 3, COLOURS[1]]
    assert len(axes.collections) == 1
    assert axes.get_legend_handles_labels()[1] == ["lr 0.0003 (2 seeds)", "lr 0.001 (1 seed)"]
    assert axes.get_xlabel() == "env steps"


def edges_of(band: Any) -> list[float]:
    return sorted({float(y) for y in band.get_paths()[0].vertices[:, 1]})


def test_a_band_reaches_no_further_than_the_seeds_and_the_legend_says_what_it_is(
    tmp_path: Path, out: Path, figures: list[Figure]
) -> None:
    for seed, value in enumerate((440, 500, 500, 500, 500)):  # 488 ± 33.3
        write_run(tmp_path / f"five/seed-{seed}", [(100, value), (200, 500)])
        if seed < 2:
            write_run(tmp_path / f"two/seed-{seed}", [(100, value), (200, 500)])
    curves = [*plot_runs([tmp_path / "five"], out), *plot_runs([tmp_path / "two"], out)]
    plot_runs([tmp_path / "five", tmp_path / "two"], out)
    assert curves[0].margin[0] == pytest.approx(33.3, abs=0.05)
    bands = [edges_of(band) for figure in figures for band in figure.axes[0].collections]
    assert bands[0] == pytest.approx([488 - curves[0].margin[0], 500])
    assert bands[1] == [440, 500]
    assert [figure.legends[0].get_title().get_text() for figure in figures] == [
        "mean of seeds; band: 95 % confidence interval, below 5 seeds their range"
    ] * 3


@pytest.mark.parametrize("labels", [None, ["word " * 60, "x" * 200]])
def test_a_legend_is_in_the_picture_however_long_its_labels(
    tmp_path: Path, out: Path, figures: list[Figure], labels: list[str] | None
) -> None:
    other: dict[str, Any] = {"lr": [[0, 3e-4], [500_000, 0.0]], "train_batch_size_per_learner": 4096, "num_epochs": 4}
    runs = [write_run(tmp_path / name, [(100, 1), (200, 2)], **more) for name, more in (("a", {}), ("b", other))]
    plot_runs(runs, out, labels=labels)
    (figure,) = figures
    legend, picture = figure.legends[0].get_window_extent(), figure.bbox
    assert picture.x0 <= legend.x0 < legend.x1 <= picture.x1
    assert picture.y0 <= legend.y0
    assert legend.y1 < figure.axes[0].get_window_extent().y0


def test_more_curves_than_colours_are_still_told_apart(tmp_path: Path, out: Path, figures: list[Figure]) -> None:
    runs = [write_run(tmp_path / str(number), [(100, 1), (200, 2)]) for number in range(9)]
    plot_runs(runs, out)
    looks = [(line.get_color(), line.get_linestyle()) for line in figures[0].axes[0].lines]
    assert len({*looks}) == 9


def test_the_table_tells_where_each_ends_and_how_high_it_got(tmp_path: Path, out: Path) -> None:
    for seed, last in ((1, 20), (2, 40)):
        write_run(tmp_path / f"runs/seed-{seed}", [(6_000, 1_200), (12_000, last)])
    alone = write_run(tmp_path / "alone", [(100, 0.123456)], lr=1e-3)
    assert table_of(plot_runs([tmp_path / "runs", alone], out)).splitlines() == [
        "           seeds  final, 95 % CI  highest  env steps  time",
        "lr 0.0003      2      30.0 ± 127    1,200     12,000  2:00",
        "lr 0.001       1           0.123    0.123        100  0:01",
    ]


def test_the_curve_of_one_run_has_training_evaluation_and_target(out: Path, figures: list[Figure]) -> None:
    rows = [
        {STEPS: 100, TRAINING_RETURN: None},
        {STEPS: 200, TRAINING_RETURN: 9.0, EVALUATION_RETURN: 12.0},
        {STEPS: 300, TRAINING_RETURN: 10.0},
    ]
    draw_run(rows, out, "PPO on CartPole-v1", target_return=50)
    (axes,) = figures[0].axes
    assert [line.get_label() for line in axes.lines] == ["training, recent episodes", "evaluation", "target 50"]
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [200, 300]
    assert np.asarray(axes.lines[1].get_ydata()).tolist() == [12]


def test_a_run_of_one_iteration_is_a_point(out: Path, figures: list[Figure]) -> None:
    draw_run([{STEPS: 10, TRAINING_RETURN: 1.0}], out, "PPO on CartPole-v1")
    (line,) = figures[0].axes[0].lines
    assert line.get_marker() == "o"


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_names_the_closest(tmp_path: Path, out: Path) -> None:
    write_run(tmp_path / "baseline", [(100, 1)])
    with pytest.raises(FileNotFoundError, match=r"got no such folder.*Did you mean 'baseline'\?"):
        plot_runs([tmp_path / "baselin"], out)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, out: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a run with finished iterations, .* got none"):
        plot_runs([tmp_path], out)


def test_a_run_without_an_iteration_is_refused(tmp_path: Path, out: Path) -> None:
    run = write_run(tmp_path / "new", [])
    with pytest.raises(ValueError, match=r"expected a run with finished iterations, .* got none"):
        plot_runs([run], out)


@pytest.mark.parametrize(
    ("other", "got"),
    [({"env": "Acrobot-v1"}, "PPO on Acrobot-v1, PPO on CartPole-v1"), ({"lr": 1}, "lr")],
)
def test_runs_that_are_no_seeds_of_each_other_are_not_averaged(
    tmp_path: Path, out: Path, other: dict[str, Any], got: str
) -> None:
    write_run(tmp_path / "runs/a", [(100, 1)], **other)
    write_run(tmp_path / "runs/b", [(100, 1)])
    with pytest.raises(ValueError, match=f"differ in their seed alone, to average, got .*{got}.*one by one"):
        plot_runs([tmp_path / "runs"], out)


def test_seeds_that_do_not_overlap_are_refused(tmp_path: Path, out: Path) -> None:
    write_run(tmp_path / "runs/seed-1", [(100, 1)])
    write_run(tmp_path / "runs/seed-2", [(200, 1)])
    with pytest.raises(ValueError, match=r"one ends before another begins"):
        plot_runs([tmp_path / "runs"], out)


def test_an_unknown_metric_names_the_closest(tmp_path: Path, out: Path) -> None:
    run = write_run(tmp_path / "one", [(100, 0.5)], "learners/default_policy/entropy")
    with pytest.raises(ValueError, match=r"got 'entropi'.*Did you mean 'entropy'\?"):
        plot_runs([run], out, metric="entropi")
    with pytest.raises(ValueError, match=rf"expected one of {STEPS}, {SECONDS}, learners/default_policy/entropy"):
        plot_runs([run], out, metric="x")


def test_an_end_that_two_metrics_have_names_both(tmp_path: Path, out: Path) -> None:
    run = write_run(tmp_path / "one", [(100, 1)])
    (run / "progress.jsonl").write_text(json.dumps({STEPS: 1, SECONDS: 1, "a/kl": 1, "b/kl": 2}) + "\n")
    with pytest.raises(ValueError, match=r"expected one of a/kl, b/kl, got 'kl'"):
        plot_runs([run], out, metric="kl")


def test_a_run_that_lacks_the_metric_is_named(tmp_path: Path, out: Path) -> None:
    one, two = write_run(tmp_path / "one", [(100, 1)], "a/kl"), write_run(tmp_path / "two", [(100, 1)])
    with pytest.raises(ValueError, match=r"two': expected values of a/kl, got none"):
        plot_runs([one, two], out, metric="kl")


def test_runs_in_which_no_episode_has_ended_are_named(tmp_path: Path, out: Path) -> None:
    runs = [write_run(tmp_path / name, [(100, 1)], "learners/default_policy/entropy") for name in ("one", "two")]
    with pytest.raises(ValueError, match=r"one, \S*two: expected an episode that ended, got none\. Train longer, or"):
        plot_runs(runs, out)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"labels": ["a", "b"]}, "labels: expected one for each of 1 runs, got 2: a, b"),
        ({"runs": []}, "runs: expected a run with finished iterations"),
    ],
)
def test_arguments_that_are_wrong(tmp_path: Path, out: Path, arguments: dict[str, Any], part: str) -> None:
    run = write_run(tmp_path / "one", [(100, 1)])
    with pytest.raises(ValueError, match=part.replace(".", r"\.")):
        plot_runs(**{"runs": [run], "out": out, **arguments})


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", [(100, 1)])
    with pytest.raises(OSError, match=r"No such file or directory"):
        plot_runs([run], tmp_path / "nowhere" / "plot.png")
