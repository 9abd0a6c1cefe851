"""Tokenizers rebuilt from GGUF metadata, against transformers reading the same file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.frontend.tokenizer import load_tokenizer
from fathom.frontend.tokenizer.from_gguf import derive_merges, tokenizer_from_gguf
from fathom.frontend.tokenizer.pre_tokenizers import pre_tokenizer_rule
from tests.frontend import tiny_tokenizers

FIXED_TEXTS = [
    "Hello world, don't I'LL",
    "  two  spaces   three\n\n\n x\r\n\r\n\ty",
    "1234567 12 3.14 2024-01-02",
    "삼겹살 ď 👩‍👩‍👧‍👦 🇨🇭 日本語 ﷽ e\u0301 ½ ²",
    "<|im_start|>user\n<s>hi</s> <tool>é世<unk>",
    "\u2581\u2581x \u2581 <0x0A>",
    "",
    " ",
    "the" * 60,
]


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    alphabet = "abcthe XYZ  \n\t12é日본👩\u200d.,'\"<>|_\u2581\u0301-()"
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 50))) for _ in range(count)]


def vocabulary(backend: Backend) -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges of a library tokenizer, as a GGUF file states them."""
    state = json.loads(backend.to_str())
    tokens = [backend.id_to_token(token_id) for token_id in range(backend.get_vocab_size())]
    added = {token["content"]: 3 if token["special"] else 4 for token in state["added_tokens"]}
    types = [added.get(token, 6 if token.startswith("<0x") else 1) for token in tokens]
    return tokens, types, [" ".join(merge) for merge in state["model"]["merges"]]


def write_gguf(path: Path, model: str, **keys: Any) -> Path:
    """A GGUF file with a vocabulary, a tiny tensor and what transformers wants to see of a Llama."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for add in (
        writer.add_block_count,
        writer.add_context_length,
        writer.add_embedding_length,
        writer.add_feed_forward_length,
        writer.add_head_count,
        writer.add_head_count_kv,
    ):
        add(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_string(f"tokenizer.ggml.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level_keys(pre: str) -> dict[str, Any]:
    backend = tiny_tokenizers.byte_level_backend()
    tokens, types, merges = vocabulary(backend)
    tokens[tokens.index("<tool>é世")] = "<tool>"  # transformers ignores one that is not in the byte alphabet
    ids = {"bos_token_id": 0, "eos_token_id": 1, "unknown_token_id": 2}
    return {"pre": pre, "tokens": tokens, "token_type": types, "merges": merges, **ids}


def sentencepiece_keys() -> dict[str, Any]:
    backend = tiny_tokenizers.byte_fallback_backend()
    tokens, types, merges = vocabulary(backend)
    rank = {merge.replace(" ", ""): index for index, merge in enumerate(merges)}
    scores = [float(-rank.get(token, len(merges) + index)) for index, token in enumerate(tokens)]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {"tokens": tokens, "token_type": types, "scores": scores, **ids}


def assert_equal_to_transformers(path: Path, texts: list[str]) -> None:
    ours = load_tokenizer(path, "gguf")
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in texts:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), text
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "tekken", "dbrx"])
def test_byte_level_equals_transformers(tmp_path, pre, add_bos):
    path = write_gguf(tmp_path / "m.gguf", "gpt2", add_bos_token=add_bos, **byte_level_keys(pre))
    assert_equal_to_transformers(path, FIXED_TEXTS + random_texts(100))


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_sentencepiece_equals_transformers(tmp_path, flags):
    path = write_gguf(tmp_path / "m.gguf", "llama", **sentencepiece_keys(), **flags)
    assert_equal_to_transformers(path, FIXED_TEXTS + random_texts(100))


@pytest.mark.parametrize("prefix", [False, True])
def test_sentencepiece_equals_the_sentencepiece_library(tmp_path, prefix):
    model = train_sentencepiece(tmp_path, prefix)
    pieces = range(model.get_piece_size())
    keys = {
        "tokens": [model.id_to_piece(piece) for piece in pieces],
        "scores": [model.get_score(piece) for piece in pieces],
        "token_type": [piece_type(model, piece) for piece in pieces],
    }
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = write_gguf(tmp_path / "m.gguf", "llama", add_space_prefix=prefix, add_bos_token=False, **keys, **ids)
    tokenizer = load_tokenizer(path, "gguf")
    texts = [text for text in FIXED_TEXTS + tiny_tokenizers.CORPUS + random_texts(200) if "<s>" not in text]
    for text in texts:
        # Like transformers, and unlike SentencePiece, we put no space before a text that begins with one.
        if not (prefix and text.startswith((" ", "\u2581"))):
            ids = model.encode(text)
            assert tokenizer.encode(text) == ids, text
            assert tokenizer.decode(ids) == model.decode(ids), text


def train_sentencepiece(folder: Path, prefix: bool) -> sentencepiece.SentencePieceProcessor:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_tokenizers.CORPUS),
        model_prefix=str(folder / "spm"),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        user_defined_symbols=["<b>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


def piece_type(model: sentencepiece.SentencePieceProcessor, piece: int) -> int:
    if model.is_unknown(piece):
        return 2
    if model.is_control(piece):
        return 3
    if model.is_byte(piece):
        return 6
    return 4 if model.id_to_piece(piece) == "<b>" else 1


def test_user_defined_runs_of_spaces_are_spelled_as_the_text_is(tmp_path):
    keys = sentencepiece_keys()
    keys["tokens"] += ["    ", "<b>"]
    keys["token_type"] += [4, 4]
    keys["scores"] += [-1000.0, -1000.0]
    keys["tokens"] += ["\u2581\u2581"]
    keys["token_type"] += [1]
    keys["scores"] += [-1.0]
    path = write_gguf(tmp_path / "m.gguf", "llama", add_space_prefix=False, add_bos_token=False, **keys)
    tokenizer = load_tokenizer(path, "gguf")
    four_spaces, bold = (len(keys["tokens"]) - 3, len(keys["tokens"]) - 2)
    ids = tokenizer.encode("    <b>")
    assert ids == [four_spaces, bold]
    assert tokenizer.decode(ids) == "    <b>"


def test_smollm_cuts_each_digit_as_its_original_does():
    rule = pre_tokenizer_rule("smollm").build()
    original = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in FIXED_TEXTS + random_texts(100):
        assert rule.pre_tokenize_str(text) == original.pre_tokenize_str(text)


def test_a_llama3_file_that_does_not_say_so_wants_a_bos(tmp_path):
    keys = byte_level_keys("llama-bpe")
    path = write_gguf(tmp_path / "m.gguf", "gpt2", **keys)
    assert load_tokenizer(path, "gguf").encode("the")[0] == 0
    path = write_gguf(tmp_path / "n.gguf", "gpt2", add_bos_token=False, **keys)
    assert load_tokenizer(path, "gguf").encode("the")[0] != 0


def test_added_tokens_outside_the_byte_alphabet_are_matched_whole(tmp_path):
    keys = byte_level_keys("gpt-2")
    keys["tokens"] += ["<｜User｜>", "    "]
    keys["token_type"] += [3, 4]
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", "gpt2", **keys), "gguf")
    user, spaces = len(keys["tokens"]) - 2, len(keys["tokens"]) - 1
    assert tokenizer.encode("<｜User｜>    ") == [user, spaces]
    assert tokenizer.decode([user, spaces], skip_special_tokens=False) == "<｜User｜>    "
    assert user in tokenizer.all_special_ids


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("dbrx", False)])
def test_llama3_takes_a_word_that_is_a_token_whatever_the_merges(tmp_path, pre, whole):
    keys = byte_level_keys(pre)
    keys["tokens"] += ["qzq"]  # no merges lead to it
    keys["token_type"] += [1]
    path = write_gguf(tmp_path / "m.gguf", "gpt2", add_bos_token=False, **keys)
    assert (load_tokenizer(path, "gguf").encode("qzq") == [len(keys["tokens"]) - 1]) is whole


def test_derived_merges():
    pieces = ["ab", "abc", "bc", "a", "b", "c"]
    assert list(derive_merges(pieces)) == [("a", "b"), ("ab", "c"), ("a", "bc"), ("b", "c")]


def metadata(**changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {"model": "gpt2", **byte_level_keys("gpt-2"), **changes}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokens": None}, CheckpointError, "tokenizer.ggml.tokens is missing"),
        ({"merges": None}, CheckpointError, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, CheckpointError, "the merge 'ab' is not a pair"),
        ({"merges": ["qq zz"]}, CheckpointError, "do not fit together"),
        ({"token_type": [1]}, CheckpointError, "but 1 token types"),
        ({"bos_token_id": 10**6}, CheckpointError, "bos_token_id is 1000000"),
        ({"model": "llama"}, CheckpointError, "tokenizer.ggml.scores is missing"),
        ({"model": "bert"}, UnsupportedModelError, "kind 'bert'; Fathom reads 'gpt2' and 'llama'"),
        ({"pre": "nonesuch"}, UnsupportedModelError, "'nonesuch'.*llama-bpe"),
    ],
)
def test_contradictory_metadata_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(Path("m.gguf"), metadata(**changes))


def test_chat_templates():
    known = metadata()
    path = Path("m.gguf")
    assert tokenizer_from_gguf(path, known).chat_template is None
    known["tokenizer.chat_template"] = "d"
    assert tokenizer_from_gguf(path, known).chat_template == "d"
    known |= {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "t"}
    assert tokenizer_from_gguf(path, known).chat_template == {"default": "d", "tool_use": "t"}


def test_smollm2_equals_transformers(smollm2_path):
    """Apart from spaces before a digit, where transformers leaves out the rule that the file names."""
    texts = [text for text in FIXED_TEXTS + random_texts(500) if not any(char.isnumeric() for char in text)]
    assert_equal_to_transformers(smollm2_path, [*texts, "In 2024, 3.14 and x1"])
    ours = load_tokenizer(smollm2_path, "gguf")
    assert [ours.id_to_token(token_id) for token_id in ours.encode("a   7")] == ["a", "ĠĠĠ", "7"]
