"""The page at /: open to everybody, complete, and without anything from elsewhere."""

from __future__ import annotations

import re

import pytest

from fathom.entrypoints.server.web import FILES, FOLDER
from tests.server.processes import Server

NAMES = sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("path", FILES)
def test_each_file_comes_as_it_is_and_without_a_key(guarded: Server, path: str) -> None:
    answer = guarded.http.get(path, headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.content == (FOLDER / FILES[path]).read_bytes()
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].split(";")[0] == kind[FILES[path].rpartition(".")[2]]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    again = guarded.http.get(path, headers={"Authorization": "", "If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_every_file_is_served_and_every_file_that_is_named_exists() -> None:
    assert sorted(FILES.values()) == NAMES
    named = set()
    for name in NAMES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        named |= set(re.findall(r'"(?:page/|\./)([\w.]+)"', text))
    assert named == set(NAMES) - {"index.html"}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_from_elsewhere_and_nothing_is_parsed_as_html(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|@import", text)
    assert not re.search(r"\son\w+=|\sstyle=|<script>|<style", text) or name.endswith(".js")


def test_every_control_has_a_name() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    labelled = set(re.findall(r'<label[^>]* for="([\w-]+)"', page))
    for tag, attributes in re.findall(r"<(input|textarea|select)\b([^>]*)>", page):
        name = re.search(r'id="([\w-]+)"', attributes)
        assert name, (tag, attributes)
        wrapped = re.search(rf'<label[^>]*>\s*<{tag}[^>]* id="{name[1]}"', page)
        assert name[1] in labelled or wrapped, name[1]
    assert re.search(r'<html lang="en">', page)
