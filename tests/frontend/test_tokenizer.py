"""Tokenizers from model folders, against transformers reading the same files."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from fathom.errors import CheckpointError, UnsupportedModelError, ValidationError
from fathom.frontend.tokenizer import Tokenizer, check_text, load_tokenizer
from fathom.frontend.tokenizer.text_stream import MOST_REMEMBERED, TextDecoder
from tests.frontend import tiny_tokenizers

TEXTS = [
    "The capital of France",
    "  two  spaces\n\n\tand a tab ",
    "삼겹살 ď 👩‍👩‍👧‍👦 🇨🇭 日本語 ﷽ e\u0301",
    "<s>typed<|im_start|>user<sep></s> <extra>x",
    "",
]
BACKENDS = {
    "byte_level": tiny_tokenizers.byte_level_backend,
    "byte_fallback": tiny_tokenizers.byte_fallback_backend,
    "byte_fallback_strip": lambda: tiny_tokenizers.byte_fallback_backend(strip=True),
}


@pytest.fixture(params=sorted(BACKENDS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model folder as transformers writes it, with truncation and padding on in tokenizer.json."""
    backend = BACKENDS[request.param]()
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token=AddedToken("</s>", special=True, normalized=False),
        unk_token="<unk>",
        pad_token="<pad>",  # not in the vocabulary: gets the next id
        additional_special_tokens=["<extra>"],
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def test_ids_and_text_equal_transformers(folder):
    ours, theirs = load_tokenizer(folder, "safetensors"), PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
            for skip in (True, False):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert ours.vocab_size == len(theirs)


def test_special_tokens_equal_transformers(folder):
    ours, theirs = load_tokenizer(folder, "safetensors"), PreTrainedTokenizerFast.from_pretrained(folder)
    names = ["bos_token", "eos_token", "unk_token", "pad_token"]
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    names = ["bos_token_id", "eos_token_id", "pad_token_id"]
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert set(theirs.all_special_ids) <= ours.all_special_ids
    hidden = [i for i in range(ours.vocab_size) if theirs.decode([i]) and not theirs.decode([i], True)]
    assert ours.all_special_ids == frozenset(hidden)
    assert ours.chat_template == theirs.chat_template


def test_older_folders_name_special_tokens_in_a_file_of_their_own(tmp_path):
    tiny_tokenizers.byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    bos = {"content": "<s>", "lstrip": False}
    edit(tmp_path / "special_tokens_map.json", bos_token=bos, eos_token="</s>")
    tokenizer = load_tokenizer(tmp_path, "safetensors")
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "</s>", None)
    assert tokenizer.pad_token_id is None


def test_added_tokens_listed_only_in_the_config(folder):
    new_id = load_tokenizer(folder, "safetensors").vocab_size
    listed = {str(new_id): {"content": "<think>", "special": False, "normalized": False}}
    edit(folder / "tokenizer_config.json", added_tokens_decoder=listed)
    tokenizer = load_tokenizer(folder, "safetensors")
    assert tokenizer.encode("<think>", add_special_tokens=False)[-1] == new_id
    assert tokenizer.decode([new_id]) == "<think>"


@pytest.mark.parametrize("folder", ["byte_level"], indirect=True)
def test_chat_templates_in_all_their_places(folder):
    (folder / "chat_template.jinja").unlink()
    config = folder / "tokenizer_config.json"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    for entry, expected in [(None, None), ("x", "x"), (named, {"default": "a", "tool_use": "b"})]:
        edit(config, chat_template=entry)
        assert load_tokenizer(folder, "safetensors").chat_template == expected
    (folder / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer(folder, "safetensors").chat_template == "from the file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("r")
    expected = {"default": "from the file", "rag": "r"}
    assert load_tokenizer(folder, "safetensors").chat_template == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("folder", ["byte_level"], indirect=True)
def test_a_truncated_file_is_refused_by_name(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(folder, "safetensors")


def test_a_folder_without_tokenizer_json(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"holds no tokenizer\.json\."):
        load_tokenizer(tmp_path, "safetensors")
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"only tokenizer\.model\. Write one with transformers"):
        load_tokenizer(tmp_path, "safetensors")


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_token_strings_are_single_decodes(kind):
    tokenizer = Tokenizer(BACKENDS[kind](), tiny_tokenizers.SPECIAL)
    ids = [*range(tokenizer.vocab_size + 2), 0, 1]
    expected = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]
    assert tokenizer.token_strings(ids[::2]) == expected[::2]
    assert tokenizer.token_strings(ids) == expected
    assert tokenizer.token_strings([]) == []


def test_ids_outside_the_vocabulary():
    tokenizer = tiny_tokenizers.byte_level()
    assert tokenizer.decode([tokenizer.vocab_size, 10**6]) == ""
    assert tokenizer.id_to_token(10**6) is None
    for bad in (-1, 2**40):
        with pytest.raises(ValidationError, match=f"^{bad} is no token id"):
            tokenizer.decode([5, bad])


def test_lone_surrogates_are_refused_by_field():
    tokenizer = tiny_tokenizers.byte_level()
    with pytest.raises(ValidationError, match=r"prompt holds a lone surrogate U\+D83D at character 2\."):
        tokenizer.encode("x \ud83d y")
    with pytest.raises(ValidationError, match="prompt"):
        tokenizer.encode_batch(["fine", "\udcf0"])
    with pytest.raises(ValidationError) as caught:
        check_text("\udcf0", "messages")
    assert caught.value.parameter == "messages"
    check_text("paired \U0001f600, NUL \x00, BOM \ufeff", "messages")


def test_what_is_remembered_of_tokens_does_not_grow_with_the_vocabulary() -> None:
    """More tokens than are remembered, met one by one and all at once, say the same the second time."""
    vocab = {"<unk>": 0, **{f"w{number}": number + 1 for number in range(MOST_REMEMBERED + 1000)}}
    backend = Backend(models.WordLevel(vocab, unk_token="<unk>"))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, {"unk_token": "<unk>"})
    every = list(range(len(vocab)))
    for _ in range(2):
        stream = tokenizer.text_stream()
        assert "".join(stream.push([token]) for token in every[1:]) == "".join(list(vocab)[1:])
        assert tokenizer.token_strings(every) == list(vocab)
        assert [tokenizer.token_strings([token]) for token in every] == [[token] for token in vocab]
    remembered, found = [], [vars(tokenizer)]
    while found:
        kept = found.pop()
        remembered += [kept] if isinstance(kept, dict) and every[-1] in kept else []
        found += [held for held in gc.get_referents(kept) if isinstance(held, dict | TextDecoder)]
    assert remembered
    assert max(map(len, remembered)) <= MOST_REMEMBERED


def test_no_text_is_longer_than_its_tokens_can_spell(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, "safetensors")
    for text in [*TEXTS, "\u03b1\u0313\u0300\u0345" * 50]:
        assert len(text) <= tokenizer.most_characters(len(tokenizer.encode(text, add_special_tokens=False)))
    assert tokenizer.most_characters(0) == 0
