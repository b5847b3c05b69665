"""Every lesson as a Jupyter notebook, with a link on its page.

Run notebooks the way a reader does, each in an empty folder, and print the seconds they take:

    python docs/_extensions/notebooks.py docs/_build/html/lessons/*.ipynb
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from kernels import use_sockets
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from sphinx.application import Sphinx

FIGURE = "*The page of this lesson in the documentation has an interactive figure here.*"
INSTALL = "# %pip install /path/to/checkout  # remove the first # to install regard from a checkout"
LINK = """<p class="notebook"><a href="{name}.ipynb" download>Download this lesson as a notebook</a></p>"""
RUN_BY_THE_BUILD = "02_three_steps"

_DETAILS = re.compile(r'<details class="solution">\n?<summary>(.*?)</summary>')


def convert(text: str) -> nbformat.NotebookNode:
    """Return a lesson as a notebook without outputs that needs no file beside it."""
    notebook = read_myst_markdown_notebook(text)
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    in_solution, cells = False, []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            _set_visibility(cell, in_solution)
        else:
            cell.source, in_solution = _markdown(cell.source, in_solution)
        if cell.source:
            cells.append(cell)
    cells.insert(1, nbformat.v4.new_code_cell(INSTALL))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the same in every build
    notebook.cells = cells
    return notebook


def _set_visibility(cell: nbformat.NotebookNode, in_solution: bool) -> None:
    tags = set(cell.metadata.pop("tags", []))
    if in_solution:
        cell.metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": True}
    elif tags & {"remove-input", "hide-input"}:
        cell.metadata["jupyter"] = {"source_hidden": True}


def _markdown(text: str, in_solution: bool) -> tuple[str, bool]:
    """Return the text for Jupyter, and whether a solution is open at its end.

    A solution that continues in code cells is closed at the end of the text, as an element cannot span
    several cells.
    """
    text = re.sub(r"^```\{attention-widget\}.*?^```$", FIGURE, text, flags=re.M | re.S)
    text = re.sub(r"\[\]\(\S*?([\w-]+)\.md\)", r"*\1*", text)
    text = re.sub(r"\]\((\d\d_\w+)\.md\)", r"](\1.ipynb)", text)
    text = re.sub(r"\[([^\]]+)\]\(\.\./[\w/]+\.md\)", r"*\1*", text)
    text = _DETAILS.sub(r"<details><summary>\1</summary>", text)
    if in_solution:
        before, _, after = text.partition("</details>")
        head = f"<details><summary>Solution, continued</summary>\n\n{before.strip()}\n\n</details>"
        text = (head if before.strip() else "") + after
    still_open = text.count("<details>") > text.count("</details>")
    return (f"{text}\n\n</details>" if still_open else text).strip(), still_open


def run(path: Path) -> float:
    """Run a notebook in an empty folder, without the paths of the build; return the seconds."""
    use_sockets()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSTARTUP"}
    extensions = str(Path(__file__).parent)
    folders = [f for f in env.pop("PYTHONPATH", "").split(os.pathsep) if f and f != extensions]
    if folders:
        env["PYTHONPATH"] = os.pathsep.join(folders)
    notebook = nbformat.read(path, as_version=4)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, resources=resources).execute(env=env)
    return time.perf_counter() - begin


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write all notebooks beside the pages, and run one of them."""
    if exception is not None or app.builder.format != "html":
        return
    for source in sorted(Path(app.srcdir, "lessons").glob("[0-9]*.md")):
        target = Path(app.outdir, "lessons", f"{source.stem}.ipynb")
        nbformat.write(convert(source.read_text("utf-8")), target)
    run(Path(app.outdir, "lessons", f"{RUN_BY_THE_BUILD}.ipynb"))


def link(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Add the link below the title of a lesson."""
    if re.match(r"lessons/\d\d_", page):
        paragraph = LINK.format(name=page.partition("/")[2])
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{paragraph}", 1)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write and link notebooks in every build."""
    app.connect("build-finished", write)
    app.connect("html-page-context", link)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{run(Path(name)):6.1f} s  {Path(name).stem}", flush=True)  # noqa: T201
