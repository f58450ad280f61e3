"""Parts of docs/results.md that commands write, each between its own markers."""

from __future__ import annotations

from pathlib import Path


def write_section(path: Path, name: str, body: str) -> None:
    """Put `body` between the markers of `name`, at the end of a file that has none; the rest stays as it is."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    block = f"{begin}\n{body}\n{end}"
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        text = before + block + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    path.write_text(text, encoding="utf-8")
