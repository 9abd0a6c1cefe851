"""Small tokenizers of each decoder kind, made on the spot."""

from __future__ import annotations

import json

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from fathom.frontend.tokenizer import Tokenizer

CORPUS = [
    "The capital of France is Paris. The capital of Spain is Madrid, and one two three four five.",
    "def f(x):\n    return x * 2\n\n\nprint(f(12), 'done')",
    "삼겹살 ď 👩‍👩‍👧‍👦 🇨🇭 日本語 ﷽ naïve café e\u0301",
    "Hello world, hello there; the the the then thence.",
] * 4
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def byte_level() -> Tokenizer:
    """GPT-2's kind, with an added token that is no special one."""
    return Tokenizer(byte_level_backend(), SPECIAL)


def byte_level_backend() -> Backend:
    """What `byte_level` wraps."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<unk>", "<|im_start|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<tool>é世"])
    return backend


def byte_fallback(strip: bool = False) -> Tokenizer:
    """Gemma's kind; with strip=True Llama 2's, which drops the first space of a text."""
    return Tokenizer(byte_fallback_backend(strip), SPECIAL)


def byte_fallback_backend(strip: bool = False) -> Backend:
    """What `byte_fallback` wraps; adds a BOS."""
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=40
    )
    trained.train_from_iterator(CORPUS, trainer)
    state = json.loads(trained.to_str())["model"]
    vocab = dict(state["vocab"])
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    merges = [tuple(merge) for merge in state["merges"]]
    backend = Backend(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        "\u2581", prepend_scheme="first" if strip else "never", split=False
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return backend


def metaspace() -> Tokenizer:
    """A decoder without a fast path of its own."""
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, SPECIAL)


def windowed_fallback() -> Tokenizer:
    """Byte fallback in an order that only the general way of decoding recognises."""
    backend = byte_fallback_backend()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Replace("\u2581", " "), decoders.Fuse()])
    return Tokenizer(backend, SPECIAL)


def windowed_bytes() -> Tokenizer:
    """A byte-level decoder in a form that only the general way of decoding recognises."""
    backend = byte_level_backend()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return Tokenizer(backend, SPECIAL)
