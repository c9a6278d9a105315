"""How the pages become a site: links that leave docs/, and the Markdown that GitHub reads with more goodwill.

A page may link to any file of the project. A Markdown file outside docs/ becomes a page below ``project/``, any other
file a highlighted one below ``source/``, and a folder the list of its files. ``[`name`](file.py)`` leads to the line
that defines the name.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from posixpath import basename, dirname, join, normpath, relpath, splitext
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename

ROOT = Path(__file__).parents[2]
MEDIA = (".png", ".gif", ".svg", ".mp4")
WITHOUT_CONTENTS = ("feature-matrix.md",)
"""Pages that need the column of their table of contents for themselves."""

PACKAGES = ("catalog", "rlmodule", "algorithms")

_FENCE = re.compile(r"( *)(`{3,}(?!.*`)|~{3,})")
_ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])( +)(?=\S)")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_DEFINITION = re.compile(r"\[`(?:[\w.]+\.)?(\w+)(?:\(\))?`\]\(([^()\s#]+\.py)\)")


# --- the site's pages -------------------------------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside docs/ that a page links to, and for the modules of the packages."""
    wanted = [path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    wanted += [path_of(uri) for uri in re.findall(r"project/[\w/-]+\.md", str(config.nav))]
    wanted += [target for file in files.documentation_pages() for target in linked(f"docs/{file.src_uri}")]
    made: set[str] = set()
    while wanted:
        path = wanted.pop()
        if path in made or uri_of(path) == path.removeprefix("docs/") or not (ROOT / path).exists():
            continue  # it is in docs/; or it is missing, which is told as a broken link where the link is
        made.add(path)
        wanted += linked(path) if path.endswith(".md") else files_of(path)
        page = File.generated(config, uri_of(path), content=content_of(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def uri_of(path: str) -> str:
    """Where in the site's sources the page of a file or folder of the project stands."""
    kind = splitext(path)[1]
    if path.startswith("docs/") and kind not in ("", ".py"):
        return path.removeprefix("docs/")
    if kind == ".md" or kind in MEDIA:
        return f"project/{path.lower()}"  # README.md would become the index of its folder
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def path_of(uri: str) -> str:
    """The file of the project that a page is made of; not for those below ``source/``."""
    if not uri.startswith("project/"):
        return f"docs/{uri}"
    name = uri.removeprefix("project/")
    around = (ROOT / dirname(name)).iterdir()
    found = [path.relative_to(ROOT).as_posix() for path in around if path.name.lower() == basename(name)]
    return found[0] if found else name


def files_of(path: str) -> list[str]:
    """What a folder's page lists."""
    if not (ROOT / path).is_dir():
        return []
    found = [*(ROOT / path).rglob("*.py"), *(ROOT / path).rglob("*.md")]
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def content_of(path: str) -> str | bytes:
    """The Markdown of the page of a file or folder outside docs/; a picture as it is."""
    if path.endswith(MEDIA):
        return (ROOT / path).read_bytes()
    if path.endswith(".md"):
        return (ROOT / path).read_text(encoding="utf-8")
    head = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {path}\n\n"
    if (ROOT / path).is_dir():
        here = uri_of(path)
        return head + "\n".join(f"- [`{file}`]({relpath(uri_of(file), dirname(here))})" for file in files_of(path))
    return head  # on_page_content adds the code


def linked(path: str) -> list[str]:
    """The files and folders of the project that a page links to."""
    targets: list[str] = []
    _map_links((ROOT / path).read_text(encoding="utf-8"), lambda target: targets.append(target) or target)
    found = {normpath(join(dirname(path), target.partition("#")[0])) for target in targets if _is_relative(target)}
    return sorted(name for name in found if not name.startswith(".."))


# --- a page -----------------------------------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page into the site, and write what Python-Markdown reads as GitHub reads the original."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    page.meta["hide"] = ["toc"] if uri in WITHOUT_CONTENTS else []
    if uri == "index.md":
        page.meta["template"] = "home.html"
    path = path_of(uri)

    def into_the_site(target: str) -> str:
        file, _, anchor = target.partition("#")
        if not file or not _is_relative(target):
            return target
        leads_to = uri_of(normpath(join(dirname(path), file)))
        return relpath(leads_to, dirname(uri)) + (f"#{anchor}" if anchor else "")

    def to_the_definition(match: re.Match[str]) -> str:
        line = line_of(normpath(join(dirname(path), match[2])), match[1])
        return match[0] if line is None else f"{match[0][:-1]}#L{line})"

    text = _outside_of_code(markdown, lambda part: _DEFINITION.sub(to_the_definition, part))
    return as_python_markdown(_map_links(text, into_the_site))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Add the code to the page of a file, with an id for each line; Markdown would take its time over it.

    On other pages, let long code break, and keep a number on the line of its ``×``.
    """
    uri = page.file.src_uri
    if not uri.startswith("source/") or uri.endswith("/index.md"):
        html = re.sub(r"(?<=\d) (?=×)", "\u00a0", html)
        return re.sub(r"(?<=<code>)[^<\s]{40,}(?=</code>)", lambda found: breakable(found[0]), html)
    path = uri.removeprefix("source/").removesuffix(".md")
    text = (ROOT / path).read_text(encoding="utf-8")
    lexer = get_lexer_for_filename(path) if path.endswith((".py", ".pyi", ".toml", ".yml")) else TextLexer()
    page.present_anchor_ids |= {f"L{number + 1}" for number in range(len(text.splitlines()))}
    code = highlight(text, lexer, HtmlFormatter(cssclass="highlight source", linenos="inline", linespans="L"))
    return html + code.replace('id="L-', 'id="L')


def breakable(code: str) -> str:
    """Mark where a browser may break ``code``: after ``(``, ``=``, ``/`` or ``:``, in a test's name after ``_`` too."""
    return re.sub(r"[(=/:_]+" if code.startswith("tests/") else r"[(=/:]+", r"\g<0><wbr>", code)


@cache
def line_of(path: str, name: str) -> int | None:
    """The line of a module that defines a class, function or attribute called ``name``; None without one."""
    if not (ROOT / path).is_file():
        return None
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.search(rf"^ *(?:(?:async )?def|class) {name}\b|^ *{name}\b[^(\n]*=", text, re.M)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def _is_relative(target: str) -> bool:
    return not re.match(r"[a-z]+:|#|/", target)


def _map_links(markdown: str, change: Callable[[str], str]) -> str:
    return _outside_of_code(markdown, lambda text: _LINK.sub(lambda match: f"]({change(match[1])})", text))


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """``markdown`` with ``change`` made to each of its lines but those in fences; spans of code are hidden from it."""
    lines = []
    for line, fenced in _lines(markdown):
        # a span in brackets may be the text of a link, whose target is to be seen
        spans = [] if fenced else [span for span in _CODE.finditer(line) if "](" in span[0]]
        for i, span in enumerate(reversed(spans)):
            line = f"{line[: span.start()]}\0{len(spans) - 1 - i}\0{line[span.end() :]}"
        line = line if fenced else change(line)
        lines.append(re.sub(r"\0(\d+)\0", lambda match, spans=spans: spans[int(match[1])][0], line))
    return "\n".join(lines)


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page, and whether each belongs to a fenced block."""
    fence = ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and match[2].startswith(fence) and not line[match.end() :].strip():
                fence = ""
        else:
            fence = match[2] if match else ""
            yield line, bool(fence)


# --- Markdown ---------------------------------------------------------------------------------------------------------


def as_python_markdown(markdown: str) -> str:
    """A page as GitHub reads it, so written that Python-Markdown reads the same.

    Comments go. Lists and tables get the empty line before them that GitHub does without, what belongs to an item of a
    list the four spaces that Python-Markdown wants, and a pipe inside code in a table stands without its backslash.
    What a block of Python prints or raises is marked as such.
    """
    markdown = _without_comments(markdown)
    out: list[str] = []
    indents: list[int] = []  # where the text of each open item begins, outermost first
    kind = ""  # of the line before: "item", "table", "text" or, if it is empty, ""
    for line, fenced in _lines(_marked_output(markdown)):
        if not line.strip():
            out.append("")
            kind = ""
            continue
        indent, item = len(line) - len(line.lstrip()), None if fenced else _ITEM.match(line)
        if item and kind == "text" and not indents and item[2] not in ("-", "*", "+", "1.", "1)"):
            item = None  # a number at the beginning of a line of a paragraph
        if item or not kind:
            indents = [start for start in indents if start <= indent]
        now = "item" if item else "table" if line.lstrip().startswith("|") and not fenced else "text"
        if kind and now != kind and ((now == "item" and not indents) or now == "table"):
            out.append("")
        if now == "table":
            line = _CODE.sub(lambda match: match[0].replace("\\|", "|"), line)
        if indents:
            line = " " * (4 * len(indents) + max(0, indent - indents[-1])) + line.strip()
        out.append(line)
        if item:
            indents.append(item.end())
        kind = now
    return "\n".join(out)


def _without_comments(markdown: str) -> str:
    """``markdown`` without comments, except those that mark the next block as one that raises."""
    comment = re.compile(r"<!-- (?!raises).*-->")
    kept = [line for line, fenced in _lines(markdown) if fenced or not comment.fullmatch(line)]
    return "\n".join(kept)


def _marked_output(markdown: str) -> str:
    """``markdown`` with the class ``output`` or ``error`` for what a block of code or a command prints or raises.

    The lines of an error, which are broken to fit the page's source, become one: the browser breaks it.
    """
    raises = re.compile(r"^<!-- raises -->\n+(```python\n.*?^```\n+)```text\n(.*?)^```$", re.M | re.S)
    prints = re.compile(r"^(```(?:python|sh)\n(?:(?!^```).)*^```\n+)```text$", re.M | re.S)

    def as_error(match: re.Match[str]) -> str:
        message = re.sub(r"(?<=\S)\n(?=\S)", " ", match[2])
        return f"{match[1]}``` {{ .text .error }}\n{message}```"

    markdown = raises.sub(as_error, markdown)
    return prints.sub(r"\1``` { .text .output }", markdown).replace("<!-- raises -->\n", "")
