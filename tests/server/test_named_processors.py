"""logits_processors: a request chooses among those that the server has loaded, by their names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.forced import FAVOURED
from tests.server.processes import Server

SAID, LIKED = [40, 41, 42], 50
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "The sea"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "The sea"}]},
}
FIELDS = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_only_the_named_ones_apply(guarded: Server, path: str) -> None:
    def answer(**fields: Any) -> list[int]:
        body = guarded.post(path, **ENDPOINTS[path], **FIELDS, **fields).json()
        return list(body["choices"][0]["token_ids"])

    wishes = {"forced": SAID, "favoured": LIKED}
    own = answer()
    assert LIKED not in own
    assert own[:3] != SAID
    assert answer(vllm_xargs=wishes) == [*SAID, LIKED]
    assert answer(vllm_xargs=wishes, logits_processors=None) == [*SAID, LIKED]
    assert answer(vllm_xargs=wishes, logits_processors=["Forced", FAVOURED]) == [*SAID, LIKED]
    assert answer(vllm_xargs=wishes, logits_processors=["Forced"])[:3] == SAID
    assert answer(vllm_xargs=wishes, logits_processors=["Forced"])[3] != LIKED
    assert answer(vllm_xargs=wishes, logits_processors=["Favoured"]) == [LIKED] * 4
    assert answer(vllm_xargs=wishes, logits_processors=[]) == own


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (["Forced", "Other"], "holds 'Other', and no such processor is loaded. There is Forced, Favoured."),
        ([{"qualname": "os.system", "args": ["ls"]}], "a constructor, of 'os.system'"),
        ([{}], "Name a loaded one; vllm_xargs has arguments."),
        ("Forced", "logits_processors"),
        ([""], "must hold non-empty strings"),
    ],
    ids=str,
)
def test_what_is_no_loaded_name_is_refused(guarded: Server, path: str, wanted: Any, complaint: str) -> None:
    answer = guarded.post(path, **ENDPOINTS[path], logits_processors=wanted)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "logits_processors"
