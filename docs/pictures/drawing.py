"""What the scripts of the pictures draw with: colours, boxes, arrows, texts, and how a picture is written.

The background is transparent, and every text stands in a filled box or in a grey that white and dark pages both carry.
One unit is one inch.
"""

import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo

GREY, SLATE = "#7a8699", "#55606e"
CATALOG, MODULE, RUNNER, LEARNER = "#5b4b8a", "#2f6f9f", "#2e7d5b", "#a3541f"
WRONG = "#b0323f"
FACES = 128
"""Colours of a written picture."""


HERE = Path(__file__).parent


def draw_all(pictures: Mapping[str, Callable[[Path], None]]) -> None:
    """Write the pictures that the command line names, or all: what a script with several of them runs."""
    for name in sys.argv[1:] or pictures:
        pictures[name](HERE / f"{name}.png")


def canvas(width: float, height: float) -> Axes:
    """An empty picture of this size."""
    axes = Figure(figsize=(width, height)).add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return axes


def save(axes: Axes, path: Path, dpi: int = 140) -> None:
    """Write the picture of ``axes`` to ``path``, with few colours, so that the file is small, and with its texts as its
    description."""
    written, about = BytesIO(), PngInfo()
    figure = axes.get_figure(root=True)
    assert figure is not None
    texts = (text.get_text() for axes in figure.axes for text in (axes.title, *axes.texts))
    about.add_itxt("Description", "\n".join(filter(None, texts)))
    figure.savefig(written, format="png", dpi=dpi, transparent=True)
    with Image.open(written) as image:
        few = image.quantize(FACES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(path, optimize=True, pnginfo=about)


def box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, title: str, text: str) -> None:
    """A filled box with its centre at (x, y), a title and a line or two below it."""
    corner = x - width / 2, y - height / 2
    axes.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.12", fc=colour, ec="none"))
    lift = 0.13 * (text.count("\n") + 1)
    axes.text(x, y + lift, title, color="white", size=11, weight="bold", ha="center", va="center")
    axes.text(x, y + lift - 0.19, text, color="white", size=8.5, ha="center", va="top", linespacing=1.3)


def cell(
    axes: Axes, x: float, y: float, colour: str, text: str = "", width: float = 0.52, height: float = 0.46
) -> None:
    """A filled box with a sign or a word in it; without a colour, an empty frame."""
    face, edge = (colour, "none") if colour else ("none", GREY)
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "fc": face, "ec": edge, "lw": 1.2, "ls": (0, (2, 1.5))}
    axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, **style))
    axes.text(x, y - 0.01, text, color="white", size=9 if len(text) > 1 else 11, ha="center", va="center")


def panel(
    axes: Axes,
    left: float,
    y: float,
    width: float,
    height: float,
    colour: str,
    text: str = "",
    *,
    size: float = 9.5,
    align: str = "center",
    font: str = "sans-serif",
    weight: str = "normal",
) -> None:
    """A filled box from ``left`` on, its middle at the height ``y``, with lines of text; without a colour, a frame."""
    face, edge = (colour, "none") if colour else ("none", GREY)
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "fc": face, "ec": edge, "lw": 1.2}
    axes.add_patch(FancyBboxPatch((left, y - height / 2), width, height, **style))
    x = left + (width / 2 if align == "center" else 0.1)
    ink = "white" if colour else GREY
    axes.text(x, y, text, color=ink, size=size, ha=align, va="center", family=font, weight=weight, linespacing=1.35)


def bar(axes: Axes, left: float, bottom: float, width: float, height: float, colour: str) -> None:
    """A filled rectangle."""
    axes.add_patch(Rectangle((left, bottom), width, height, fc=colour, ec="none"))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0) -> None:
    """An arrow from ``start`` to ``end``."""
    style = {"arrowstyle": "-|>,head_width=0.3,head_length=0.55", "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", end, start, arrowprops={**style, "color": GREY, "lw": 1.8, "shrinkA": 3, "shrinkB": 3})


def line(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A dashed line."""
    axes.plot([start[0], end[0]], [start[1], end[1]], color=GREY, lw=1, ls=(0, (4, 3)))


def note(axes: Axes, x: float, y: float, text: str, align: str = "center") -> None:
    """A line or two of grey text."""
    axes.text(x, y, text, color=GREY, size=8.5, ha=align, va="center", linespacing=1.3)


def heading(axes: Axes, x: float, y: float, text: str, align: str = "left") -> None:
    """What a row or a column is."""
    axes.text(x, y, text, color=GREY, size=10, weight="bold", ha=align, va="center", linespacing=1.3)
