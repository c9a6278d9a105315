"""The report of an examination, as text and as a page with a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from algorithms.doctor.findings import SEVERITIES, Finding
from algorithms.loggers.base import replace_file
from algorithms.run.plotting import COLOURS
from catalog.errors import printable


def report_text(title: str, findings: Sequence[Finding]) -> str:
    """Return the findings as text that is also Markdown, the most serious first."""
    counts = [f"{sum(finding.severity == name for finding in findings)} {name}s" for name in SEVERITIES]
    lines = [f"{title}: {', '.join(counts)}", ""]
    for finding in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        lines += [f"- {finding.severity}, {finding.name}: {printable(finding.found)}", f"  → {finding.remedy}"]
    return "\n".join(lines)


def write_page(folder: Path, text: str, measured: Mapping[str, Any]) -> None:
    """Write doctor.md to ``folder``, and doctor.png if anything was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    if measured:
        _draw(measured, folder / "doctor.png")
        text += "\n\n![returns, and the time of a step](doctor.png)"
    replace_file(folder / "doctor.md", f"# {text}\n")


def _draw(measured: Mapping[str, Any], out: Path) -> None:
    """Draw the returns of random play and of the training, and how long steps take."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    returns, times = figure.subplots(1, 2)
    if measured["returns"]:
        returns.axhline(fmean(measured["returns"]), color="grey", linestyle=":", label="random play, mean")
    curve = np.reshape(measured.get("curve", ()), (-1, 2))
    returns.plot(*curve.T, "o-", color=COLOURS[0], markersize=4, label="training")
    returns.set(title="returns", xlabel="env steps", ylabel="mean episode return")
    returns.legend(frameon=False)
    times.hist(np.array(measured["step_seconds"]) * 1e3, bins=50, log=True, color=COLOURS[0])
    times.set(title="time of a step of the env", xlabel="ms", ylabel="steps")
    figure.savefig(out, dpi=120)
