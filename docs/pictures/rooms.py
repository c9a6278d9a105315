"""Draw rooms.png: the folders of the code and which imports which, read from the code itself.

Run it as ``python docs/pictures/rooms.py``. Each arrow points from a room to one that it imports. Arrows that follow
from others are left out: where A imports B and B imports C, none is drawn from A to C.
"""

import ast
from collections import defaultdict
from pathlib import Path

from drawing import CATALOG, GREY, LEARNER, MODULE, arrow, note
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"catalog": CATALOG, "rlmodule": MODULE, "algorithms": LEARNER}
WIDTH, HEIGHT, GAP_X, GAP_Y = 1.75, 0.62, 0.55, 0.2

BASE = "base files"

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Dotted name of each module that is not a package's ``__init__`` → its file."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files if file.stem[0] != "_"}


def room_of(module: str) -> str:
    """The folder of a module. The small files of a package that its folders build on are one room, ``base files``."""
    package, name, *rest = module.split(".")
    alone = package == "algorithms" or name in ("catalog", "critics", "decision_tree")
    return f"{package}.{name}" if rest or alone else f"{package}.{BASE}"


def imported(file: Path) -> set[str]:
    """Modules that ``file`` imports when it runs: also within functions, but not for type checkers alone."""
    found = set[str]()
    pending: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        pending += ast.iter_child_nodes(node)
    return found


def imports_between_rooms() -> Graph:
    """Each room → the rooms that it imports."""
    known, graph = modules(), Graph()
    for module, file in known.items():
        here = graph.setdefault(room_of(module), set())
        here |= {room_of(name) for name in imported(file) if name in known} - {room_of(module)}
    return graph


def reduced(graph: Graph) -> Graph:
    """``graph`` without the arrows that follow from others."""

    def reachable(room: str) -> set[str]:
        return graph[room].union(*map(reachable, graph[room]))

    return {room: targets - set().union(*map(reachable, targets)) for room, targets in graph.items()}


def text_of(graph: Graph) -> str:
    """``graph`` as text, a line for each room."""
    return "\n".join(f"{room}: {', '.join(sorted(targets))}" for room, targets in sorted(graph.items()))


def depth(room: str, graph: Graph) -> int:
    """Length of the longest chain of imports below ``room``."""
    return max((depth(target, graph) + 1 for target in graph[room]), default=0)


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    whole = imports_between_rooms()
    bands: dict[str, dict[int, list[str]]] = {}
    graphs: dict[str, Graph] = {}
    for package in PACKAGES:
        inner = {room: {t for t in targets if t.split(".")[0] == package} for room, targets in whole.items()}
        graphs[package] = {room: targets for room, targets in inner.items() if room.split(".")[0] == package}
        columns: dict[int, list[str]] = defaultdict(list)
        for room in sorted(graphs[package]):
            columns[depth(room, graphs[package])].append(room)
        bands[package] = columns
    rows = {package: max(map(len, columns.values())) for package, columns in bands.items()}
    width = max(len(columns) for columns in bands.values()) * (WIDTH + GAP_X) + GAP_X
    files = {
        package: [name.split(".")[1] for name in modules() if room_of(name) == f"{package}.{BASE}"] for package in bands
    }
    height = sum(rows.values()) * (HEIGHT + GAP_Y) + 1.0 * len(rows)

    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    bottom = 0.2
    for package, columns in bands.items():
        tall = rows[package] * (HEIGHT + GAP_Y) + 0.45
        corner = (0.15, bottom)
        frame = FancyBboxPatch(corner, width - 0.3, tall, "round,pad=0,rounding_size=0.1", fc="none", ec=GREY, lw=1)
        axes.add_patch(frame)
        axes.text(0.35, bottom + tall - 0.22, package, color=GREY, size=12, weight="bold", va="center")
        centre = {
            room: (
                GAP_X + WIDTH / 2 + column * (WIDTH + GAP_X),
                bottom + 0.1 + (tall - 0.45) * (row + 0.5) / len(names),
            )
            for column, names in columns.items()
            for row, room in enumerate(names)
        }
        for room, targets in reduced(graphs[package]).items():
            for target in targets:
                (x, y), (to_x, to_y) = centre[room], centre[target]
                arrow(axes, (x - WIDTH / 2, y), (to_x + WIDTH / 2, to_y))
        for room, (x, y) in centre.items():
            corner = x - WIDTH / 2, y - HEIGHT / 2
            style = "round,pad=0,rounding_size=0.1"
            axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, style, fc=PACKAGES[package], ec="none", zorder=3))
            name = room.split(".")[1]
            if (ROOT / package / name).is_dir():
                name += "/"
            axes.text(x, y, name, color="white", size=10.5, weight="bold", ha="center", va="center", zorder=4)
        if files[package]:
            text = f"{BASE}: {', '.join(sorted(files[package]))}"
            axes.text(width - 0.35, bottom + tall - 0.22, text, color=GREY, size=10, ha="right", va="center")
        bottom += tall + 0.45
        if package != "algorithms":
            arrow(axes, (width / 2, bottom), (width / 2, bottom - 0.45))
            note(axes, width / 2 + 0.45, bottom - 0.22, "imports")
    figure.savefig(path, dpi=130, transparent=True, metadata={"Software": None, "Description": text_of(whole)})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
