"""The dashboard in examples/grafana asks for metrics that /metrics has, by labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.server.processes import Server

DASHBOARD = Path(__file__).resolve().parent.parent.parent / "examples" / "grafana" / "fathom.json"
METRIC = re.compile(r"\b(fathom:\w+|process_\w+)(?:\{([^}]*)\})?")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return found


def test_every_metric_that_it_asks_for_is_served(server: Server) -> None:
    server.post("/v1/completions", prompt="a", max_tokens=2)
    server.http.get("/health")
    served: dict[str, set[str]] = {}
    lines = server.http.get("/metrics").text.splitlines()
    for line in lines:
        if found := re.match(r"([a-zA-Z_:]\w*(?::\w+)?)(?:\{(.*)\})? ", line):
            served.setdefault(found[1], set()).update(re.findall(r'(\w+)="', found[2] or ""))
    declared = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(asked) > 30
    for expression in asked:
        names = METRIC.findall(expression)
        assert names, expression
        for name, labels in names:
            assert name in served or name in declared, name
            if name in served:
                assert set(re.findall(r"(\w+)=~?\"", labels)) <= served[name], expression
        for label in re.findall(r"by \((\w+)\)", expression):
            assert label in served[names[0][0]], expression


def test_the_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
