# SPDX-License-Identifier: Apache-2.0
"""panels.yaml → a page that Prometheus serves itself, and a dashboard for Grafana. Same queries in both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from imagebuild.catalog import project_root
from imagebuild.manifest import Model
from imagebuild.manifest_fields import Line
from imagebuild.yamlfile import load

_GRAFANA_UNITS = {"tok/s": "short", "s": "s", "requests": "short", "share": "percentunit", "tokens": "short"}
_WIDTH, _HEIGHT = 12, 8  # Grafana's grid has 24 columns


class Series(Model):
    """One query; `legend` may use labels, as Grafana writes them: {{service}}."""

    legend: Line
    expr: Line


class Panel(Model):
    """One graph."""

    title: Line
    unit: Literal["tok/s", "s", "requests", "share", "tokens"]
    series: Annotated[tuple[Series, ...], Field(min_length=1)]


class Panels(Model):
    """images/metrics/panels.yaml."""

    schema_version: Literal[1] = Field(alias="schema")
    title: Line
    panels: Annotated[tuple[Panel, ...], Field(min_length=1)]


def read_panels(images: Path) -> Panels:
    """Read the panels. Raises Diagnostics for any error in them."""
    return load(images / "metrics" / "panels.yaml", Panels)


def grafana_text(panels: Panels) -> str:
    """Return the dashboard as Grafana (9 or newer) imports or provisions it."""
    source = {"type": "prometheus", "uid": "${datasource}"}

    def one(number: int, panel: Panel) -> dict[str, Any]:
        return {
            "id": number + 1,
            "title": panel.title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {
                "x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": _GRAFANA_UNITS[panel.unit], "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + i), "datasource": source, "expr": s.expr, "legendFormat": s.legend}
                for i, s in enumerate(panel.series)
            ],
        }  # fmt: skip

    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    value = {
        "uid": "imagebuild-sglang",
        "title": panels.title,
        "schemaVersion": 38,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [variable]},
        "panels": [one(number, panel) for number, panel in enumerate(panels.panels)],
    }
    return json.dumps(value, indent=1) + "\n"


def console_text(panels: Panels) -> str:
    """Return the page for Prometheus' console templates; needs no network and no library."""
    page = (project_root() / "images" / "metrics" / "console.html").read_text(encoding="utf-8")
    data = [panel.model_dump() for panel in panels.panels]
    # Prometheus takes a console for a Go template, in which a text in backquotes is left as it is.
    text = (
        json.dumps(data, indent=1).replace("{{", "\\u007b{").replace("}}", "}\\u007d").replace("</", "<\\/")
    )
    return page.replace("@TITLE@", panels.title).replace("@PANELS@", text)
