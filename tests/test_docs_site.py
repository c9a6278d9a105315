"""The documentation as a site: it builds, nothing in it leads nowhere, and what is made from code is current."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from algorithms.registry import ALGORITHMS, config_class
from catalog.settings import sections_of, settings_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PICTURES = sorted({*(DOCS / "pictures").glob("*.py")} - {DOCS / "pictures" / "drawing.py"})
DRAWN_BY_RUNS = {"doctor", "peers", "scores", "scores-sac", "study"}
"""Pictures that commands of the project write."""
OFFERED = [
    "catalog",
    "rlmodule",
    "rlmodule.agents",
    "algorithms",
    "algorithms.a2c",
    "algorithms.appo",
    "algorithms.dqn",
    "algorithms.impala",
    "algorithms.loggers",
    "algorithms.ppo",
    "algorithms.replay",
    "algorithms.sac",
    "algorithms.td3",
    "algorithms.ddpg",
]


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return module_at(DOCS / "theme" / "hooks.py")


@pytest.fixture(scope="module")
def docstrings() -> ModuleType:
    return module_at(DOCS / "theme" / "docstrings.py")


# --- the site ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # with --quiet nothing would be counted as a warning
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


@cache
def ids_of(page: Path) -> set[str]:
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', page.read_text(encoding="utf-8")))


@pytest.mark.site
def test_every_link_and_picture_of_the_site_is_there(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # whose links begin at the root
    assert len(pages) > 50
    for page in pages:
        for target in set(re.findall(r'\b(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8"))):
            if re.match(r"(https?|mailto|data|javascript):|node_modules/", target):  # what npm installs
                continue
            path, _, anchor = unquote(target).partition("#")
            file = (page.parent / path.partition("?")[0]).resolve() if path else page
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{page.relative_to(site)}: {target}"
            wanted = anchor and file.suffix == ".html" and not anchor.startswith("__")  # those of the theme's scripts
            assert not wanted or anchor in ids_of(file), f"{page.relative_to(site)}: {target}"


@pytest.mark.site
def test_nothing_is_loaded_from_another_process(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|iframe|video)[^>]* src=\"?(https?:)?//", text), page
        assert not re.search(r"<link[^>]* href=\"?(https?:)?//(?![^>]*rel=\"?canonical)", text), page


@pytest.mark.site
def test_the_search_works_in_files_too(site: Path) -> None:
    assert (site / "search" / "search_index.js").stat().st_size > 10_000
    for page in (site / "index.html", site / "reference" / "ppo.html"):  # the worker comes before what uses it
        scripts = re.findall(r'<script src="([^"]+)"', page.read_text(encoding="utf-8"))
        assert [path.rpartition("/")[2] for path in scripts[:1]] == ["iframe-worker.js"]
        assert "assets/javascripts/bundle" in scripts[1]


@pytest.mark.site
def test_the_text_stands_at_the_same_place_on_every_page(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.search(r'data-md-type="navigation"[^>]* hidden', page.read_text(encoding="utf-8")), page


@pytest.mark.site
def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    listed = set(re.findall(r'<a href="([^"#]+)" class="md-nav__link', home)) | {"index.html"}
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        # the front page of a section is linked by the name of the section
        assert name in listed or f'href="{name}"' in home, name


@pytest.mark.site
@pytest.mark.parametrize("package", OFFERED)
def test_the_reference_has_every_name_that_a_package_offers(site: Path, package: str) -> None:
    documented = set().union(*(ids_of(page) for page in (site / "reference").glob("*.html")))
    names = importlib.import_module(package).__all__
    assert {f"{package}.{name}" for name in names} <= documented


@pytest.mark.site
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_reference_shows_the_methods_of_a_config_with_their_settings(site: Path, name: str) -> None:
    config = config_class(name)
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")]
    for section in sections_of(config):
        owner = next(base for base in config.__mro__ if section in vars(base))
        heading = rf'id="[\w.]+\.{owner.__name__}\.{section}" class="doc.*?</pre>'
        signature = re.sub(
            r"<[^>]+>", "", next(found[0] for page in pages if (found := re.search(heading, page, re.S)))
        )
        for setting in list(inspect.signature(getattr(owner, section)).parameters)[1:]:
            assert re.search(rf"\b{setting}\b", signature), f"{config.__name__}.{section}: {setting}"


@pytest.mark.site
def test_long_code_may_break_and_short_code_may_not(site: Path) -> None:
    page = (site / "coming-from-rllib.html").read_text(encoding="utf-8")
    assert "<code>config.rl_module(<wbr>rl_module_spec=<wbr>RLModuleSpec(<wbr>catalog_class=<wbr>...))</code>" in page
    assert "<code>tests/<wbr>faults/<wbr>test_<wbr>signals.py::<wbr>test_<wbr>ctrl_<wbr>c_<wbr>saves" in page
    assert "<code>config.build_algo()</code>" in page


@pytest.mark.site
def test_docstrings_are_shown_without_their_markup(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")]
    assert not [found for text in pages for found in re.findall(r":(?:meth|class|func|attr|data|mod):\S+", text)]
    rlmodule = (site / "reference" / "rlmodule.html").read_text(encoding="utf-8")
    assert re.search(r'<a [^>]*href="[^"]*#rlmodule[\w.]*\.get_state"[^>]*><code>get_state\(\)</code></a>', rlmodule)


@pytest.mark.site
def test_a_name_in_the_text_leads_to_its_line_in_the_source(site: Path) -> None:
    lines = (ROOT / "rlmodule" / "data" / "rollout.py").read_text(encoding="utf-8").splitlines()
    line = lines.index("class Rollout:") + 1
    assert f'href="source/rlmodule/data/rollout.py.html#L{line}"' in (site / "the-loop.html").read_text(
        encoding="utf-8"
    )
    source = (site / "source" / "rlmodule" / "data" / "rollout.py.html").read_text(encoding="utf-8")
    assert "Rollout" in source.partition(f'id="L{line}"')[2].partition("</span>\n")[0]


# --- Markdown ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("text\n- one\n- two", "text\n\n- one\n- two"),
        ("text\n1. one\n2. two", "text\n\n1. one\n2. two"),
        ("sold in\n1997. It was", "sold in\n1997. It was"),
        ("- one\n  more\n  - inner\n- two", "- one\n    more\n    - inner\n- two"),
        ("1. one\n\n   ```sh\n   run\n   ```\n\nafter", "1. one\n\n    ```sh\n    run\n    ```\n\nafter"),
        ("text\n| a | b |\n| --- | --- |\n| `x \\| y` | \\| |", "text\n\n| a | b |\n| --- | --- |\n| `x | y` | \\| |"),
        ("<!-- no-run -->\n```python\nf()\n```", "```python\nf()\n```"),
        ("```text\n- a\n<!-- b -->\n| c\n```", "```text\n- a\n<!-- b -->\n| c\n```"),
        ("```python\nf()\n```\n\n```text\n1\n```", "```python\nf()\n```\n\n``` { .text .output }\n1\n```"),
        (
            "<!-- raises -->\n```python\nf()\n```\n\n```text\nNo\n```",
            "```python\nf()\n```\n\n``` { .text .error }\nNo\n```",
        ),
        (
            "<!-- raises -->\n```python\nf()\n```\n\n```text\nNo: a\nb, c\n  d\n\ne\n```\n\n```text\nf\ng\n```",
            "```python\nf()\n```\n\n``` { .text .error }\nNo: a b, c\n  d\n\ne\n```\n\n```text\nf\ng\n```",
        ),
    ],
    ids=[
        "list",
        "numbers",
        "year",
        "nested",
        "in a list",
        "table",
        "comment",
        "fence",
        "output",
        "error",
        "broken error",
    ],
)
def test_what_github_reads_is_written_for_the_site(hooks: ModuleType, ours: str, theirs: str) -> None:
    assert hooks.as_python_markdown(ours) == theirs


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("docs/ppo.md", "ppo.md"),
        ("docs/pictures/loop.png", "pictures/loop.png"),
        ("README.md", "project/readme.md"),
        ("benchmarks/README.md", "project/benchmarks/readme.md"),
        ("catalog/encoders/cnn.py", "source/catalog/encoders/cnn.py.md"),
        ("docs/pictures/loop.py", "source/docs/pictures/loop.py.md"),
        ("algorithms/ops", "source/algorithms/ops/index.md"),
    ],
)
def test_every_file_of_the_project_has_its_place_in_the_site(hooks: ModuleType, path: str, uri: str) -> None:
    assert hooks.uri_of(path) == uri
    if not uri.startswith("source/"):
        assert hooks.path_of(uri) == path


def test_links_in_code_are_left_alone(hooks: ModuleType) -> None:
    text = "[`a`](b.py) and `[c](d.py)`\n```\n[e](f.py)\n```\n"
    assert hooks._map_links(text, str.upper) == text.replace("(b.py)", "(B.PY)")


def test_literal_blocks_become_fences(docstrings: ModuleType) -> None:
    assert docstrings.fenced("Like this::\n\n    x = 1\n\nAnd so on.") == (
        "Like this:\n\n```python\nx = 1\n```\n\nAnd so on."
    )
    assert docstrings.fenced("Files::\n\n    a folder/\n      b") == "Files:\n\n```text\na folder/\n  b\n```"


def test_override_points_become_a_list_and_names_that_share_a_sentence_one_each(docstrings: ModuleType) -> None:
    assert docstrings.listed("Override points:\n    ``a``: one,\n    more.\n    ``b``: two.") == (
        "**Override points:**\n\n- ``a``: one,\n    more.\n- ``b``: two."
    )
    assert docstrings.listed("Returns:\n    Its keys:\n    - a: one,\n      more.\n    - b: two.") == (
        "Returns:\n    Its keys:\n\n    - a: one,\n      more.\n    - b: two."
    )
    assert docstrings.listed("Args:\n    ge, gt: A bound,\n        or None.") == (
        "Args:\n    ge: A bound,\n        or None.\n    gt: A bound,\n        or None."
    )


# --- what is made from code -------------------------------------------------------------------------------------------


def test_generated_pages_are_current() -> None:
    command = [sys.executable, "docs/generated.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.syspath_prepend(DOCS)
    main = runpy.run_path(str(DOCS / "generated.py"))["main"]
    monkeypatch.setitem(main.__globals__, "DOCS", tmp_path)
    monkeypatch.setitem(main.__globals__, "PAGES", {"a.md": lambda: "new", "b.md": lambda: "same"})
    (tmp_path / "a.md").write_text("old")
    (tmp_path / "b.md").write_text("same")
    assert main(["--check"]) == 1
    assert "Stale: a.md." in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_the_index_of_the_reference_names_every_page() -> None:
    pages = {path.name for path in (DOCS / "reference").glob("*.md")} - {"index.md"}
    index = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == pages


def test_every_setting_is_in_the_table_of_settings() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)`<br>", page, re.M)
    assert {*listed} == {name for algo in ALGORITHMS for name in settings_of(config_class(algo))}


def drawn_by(script: Path) -> dict[str, Callable[[Path], None]]:
    """The pictures of a script by name: those it lists in PICTURES, or the one of its own name."""
    names = runpy.run_path(str(script))
    return names.get("PICTURES") or {script.stem: names["draw"]}


def text_in(picture: Path) -> str | None:
    """The texts of a picture, which ``drawing.save`` writes into it."""
    with Image.open(picture) as image:
        return image.info.get("Description")


@pytest.mark.parametrize("script", PICTURES, ids=[path.stem for path in PICTURES])
def test_pictures_are_what_their_scripts_draw(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)  # as python does
    for name, draw in drawn_by(script).items():
        draw(tmp_path / "drawn.png")
        kept_in, again = script.with_name(f"{name}.png"), f"run python docs/pictures/{script.name}: {name}"
        assert text_in(tmp_path / "drawn.png") == text_in(kept_in), again
        drawn, kept = imread(tmp_path / "drawn.png"), imread(kept_in)
        assert drawn.shape == kept.shape, again
        # letters may be set a little differently on other systems
        assert float(np.abs(drawn - kept).mean()) < 0.005, again


def test_every_picture_has_one_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "pictures")
    drawn = [name for script in PICTURES for name in drawn_by(script)]
    assert len(drawn) == len({*drawn})
    assert {*drawn} | DRAWN_BY_RUNS == {path.stem for path in (DOCS / "pictures").glob("*.png")}
