"""A grade as text, JSON, an HTML page, or the results of Gradescope."""

from __future__ import annotations

import html
from typing import Any

from refsgd.testing.findings import SIGNS
from refsgd.trace.schema import json_text

Grade = dict[str, Any]

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem }
li { margin: .6rem 0; padding: .2rem .6rem; border-left: 4px solid #2a8 }
li.no { border-color: #c33 } li.note { border-color: #999 }
ul { list-style: none; padding: 0 }
pre { overflow-x: auto; font-size: 12px }
iframe { box-sizing: border-box; width: 100%; height: 48rem; border: 1px solid #8888 }
.points { float: right; margin-left: 1rem }
"""


def as_text(grade: Grade) -> str:
    """One line per property, and the shortest schedules."""
    lines = []
    for row in grade["properties"]:
        points = f"{row['score']}/{row['max_score']}"
        lines.append(f"{SIGNS[row['passed']]} {points}  {row['name']}: {row['text']}")
        lines += [f"          {line}" for line in row["details"].splitlines()]
    return "\n".join([*lines, f"{grade['score']} of {grade['max_score']} points"])


def as_json(grade: Grade) -> str:
    """The grade without the pages of its schedules."""
    rows = [{key: value for key, value in row.items() if key != "page"} for row in grade["properties"]]
    return json_text(grade | {"properties": rows})


def as_gradescope(grade: Grade) -> str:
    """The content of Gradescope's ``results.json``."""
    tests = [{"name": row["name"], "score": row["score"], "max_score": row["max_score"],
              "status": "failed" if row["passed"] is False else "passed", "visibility": "visible",
              "output_format": "text", "output": "\n".join(filter(None, (row["text"], row["details"])))}
             for row in grade["properties"]]
    return json_text({"score": grade["score"], "execution_time": round(grade["seconds"]),
                       "visibility": "visible", "stdout_visibility": "hidden",
                       "output": f"refsgd check: {grade['score']} of {grade['max_score']} points",
                       "tests": tests})


def as_html(grade: Grade) -> str:
    """A self-contained page; the shortest schedules are shown in the step player."""
    rows = []
    for row in grade["properties"]:
        kind = {True: "yes", False: "no", None: "note"}[row["passed"]]
        more = ""
        if row["details"]:
            more = (f"<details{' open' * (not row['page'])}><summary>The shortest schedule, as text</summary>"
                    f"<pre>{html.escape(row['details'])}</pre></details>")
        if row["page"]:
            more += (f'<details open><summary>Step through it</summary><iframe title="step player: '
                     f'{html.escape(row["name"])}" loading="lazy" sandbox="allow-scripts" '
                     f'srcdoc="{html.escape(row["page"])}"></iframe></details>')
        mark = {"yes": "✓", "no": "✗", "note": "–"}[kind]
        rows.append(f'<li class="{kind}"><span class="points">{row["score"]} / {row["max_score"]}</span>'
                    f"<b>{mark} {html.escape(row['name'])}</b><br>{html.escape(row['text'])}{more}</li>")
    said = html.escape(f"{grade['submission']} as {grade['as']}" if grade["as"] else grade["submission"])
    printed = (f"<h2>Printed</h2><pre>{html.escape(grade['printed'])}</pre>" if grade["printed"].strip()
               else "")
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width, initial-scale=1"><title>Grade: {said}</title>'
            f"<style>{STYLE}</style></head><body>"
            f"<h1>{grade['score']} of {grade['max_score']} points</h1><p>{said}; "
            f"{grade['seconds']:g} s</p><ul>{''.join(rows)}</ul>{printed}</body></html>")
