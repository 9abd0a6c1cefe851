"""The tokenizer that a GGUF file describes in its metadata, rebuilt for the `tokenizers` library.

A GGUF file holds the vocabulary (`tokenizer.ggml.tokens`), the kind of each entry and either

- "gpt2": byte-level BPE, with its merges and the name of the rule that cuts text into words; or
- "llama": SentencePiece's BPE, with a score for each piece instead of merges. The merges follow from the
  scores: every way to put a piece together from two others, best piece first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.frontend.tokenizer.pre_tokenizers import pre_tokenizer_rule
from fathom.frontend.tokenizer.tokenizer import ChatTemplate, Tokenizer

logger = logging.getLogger(__name__)

_SPACE = "\u2581"
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class TokenType(IntEnum):
    """Kinds of vocabulary entries, by llama.cpp's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def tokenizer_from_gguf(path: Path, metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata (see GGUFFile).

    Raises:
        CheckpointError: the metadata lack or contradict something; the message names file and key.
        UnsupportedModelError: a kind of vocabulary or a word-cutting rule that Fathom does not know.
    """
    vocabulary = GGUFVocabulary(path, metadata)
    return Tokenizer(
        vocabulary.backend(),
        vocabulary.named_tokens(),
        chat_template=_chat_template(metadata),
    )


class GGUFVocabulary:
    """The `tokenizer.ggml.*` part of a GGUF file, checked, and the backend that it describes."""

    def __init__(self, path: Path, metadata: dict[str, Any]):
        self._path = path
        self._metadata = metadata
        self.model = self._get("model")
        self.tokens: list[str] = self._list("tokens")
        types = self._get("token_type", [TokenType.NORMAL] * len(self.tokens))
        self.types = [int(kind) for kind in types]
        if len(self.types) != len(self.tokens):
            raise self._corrupt(f"{len(self.tokens)} tokens but {len(self.types)} token types")

    def named_tokens(self) -> dict[str, str]:
        """ "bos_token" -> "<s>" and so on, for those that the file names."""
        ids = {name: self._token_id(key) for name, key in _NAMED_TOKENS.items()}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}

    def backend(self) -> tokenizers.Tokenizer:
        """The library's tokenizer.

        It is built anew each time: 262,144 tokens take 1.5 s, and parsing a saved tokenizer.json takes 1 s.
        """
        if self.model == "gpt2":
            return self._assemble(self._byte_level())
        if self.model == "llama":
            return self._assemble(self._sentencepiece())
        raise UnsupportedModelError(
            f"{self._path} has a vocabulary of kind {self.model!r}; Fathom reads 'gpt2' and 'llama'.",
            parameter="tokenizer.ggml.model",
            value=self.model,
            hint="Name a folder with the model's tokenizer.json with tokenizer=.",
        )

    def _byte_level(self) -> tokenizers.Tokenizer:
        """Byte-level BPE: merges as they stand in the file."""
        rule = pre_tokenizer_rule(self._rule_name())
        backend = self._bpe(self.tokens, self._merges(), ignore_merges=rule.ignore_merges)
        backend.pre_tokenizer = rule.build()
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        """SentencePiece's BPE: spaces are "\u2581", unknown characters become their bytes."""
        tokens = self._respelled()
        has_prefix = bool(self._get("add_space_prefix", True))
        backend = self._bpe(
            tokens,
            list(derive_merges(self._ranked_pieces(tokens))),
            byte_fallback=TokenType.BYTE in self.types,
            fuse_unk=True,
            unk_token=self.named_tokens().get("unk_token"),
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first" if has_prefix else "never", split=False
        )
        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        if has_prefix:
            steps.append(decoders.Strip(" ", 1, 0))
        backend.decoder = decoders.Sequence(steps)
        return backend

    def _bpe(self, tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        try:
            return tokenizers.Tokenizer(models.BPE(vocab, merges, **options))
        except Exception as error:  # the library raises plain Exception for a merge that the vocabulary lacks
            raise self._corrupt(f"vocabulary and merges do not fit together ({error})") from error

    def _assemble(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Add what is matched whole in the text, and what is put around it."""
        backend.add_tokens(
            [
                AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
                for token, kind in zip(self.tokens, self.types, strict=True)
                if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
                and backend.token_to_id(token) is not None  # not one that was respelled
            ]
        )
        before = self._wanted("add_bos_token", "bos_token_id")
        after = self._wanted("add_eos_token", "eos_token_id")
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, backend.token_to_id(token)) for token in {*before, *after}],
        )
        return backend

    def _wanted(self, flag: str, key: str) -> list[str]:
        """The token that goes before or after every text, if one does."""
        default = flag == "add_bos_token" and (self.model == "llama" or pre_tokenizer_rule(self._rule_name()).add_bos)
        token_id = self._token_id(key)
        return [self.tokens[token_id]] if token_id is not None and self._get(flag, default) else []

    def _respelled(self) -> list[str]:
        """Tokens as SentencePiece spells them: a run of spaces is written as such, but only in GGUF files."""
        return [
            token.replace(" ", _SPACE) if kind == TokenType.USER_DEFINED and not token.strip(" ") else token
            for token, kind in zip(self.tokens, self.types, strict=True)
        ]

    def _ranked_pieces(self, tokens: list[str]) -> list[str]:
        """Pieces that merging may give, best first; user-defined ones have no score and come before all."""
        scores = self._get("scores")
        if len(scores) != len(tokens):
            raise self._corrupt(f"{len(tokens)} tokens but {len(scores)} scores")
        kinds = self.types
        user_defined = [index for index, kind in enumerate(kinds) if kind == TokenType.USER_DEFINED]
        normal = [index for index, kind in enumerate(kinds) if kind == TokenType.NORMAL]
        normal.sort(key=[-float(score) for score in scores].__getitem__)
        return [tokens[index] for index in (*user_defined, *normal)]

    def _merges(self) -> list[tuple[str, str]]:
        """Pairs from "left right"; the space that parts them is never the first character."""
        pairs = []
        for merge in self._list("merges"):
            gap = merge.find(" ", 1)
            if gap < 0:
                raise self._corrupt(f"the merge {merge!r} is not a pair")
            pairs.append((merge[:gap], merge[gap + 1 :]))
        return pairs

    def _rule_name(self) -> str:
        name = self._get("pre", None)
        if name is None:
            logger.warning(
                "%s does not say how its tokenizer cuts text into words; GPT-2's rule is assumed.", self._path
            )
        return name or "default"

    def _token_id(self, key: str) -> int | None:
        token_id: int | None = self._get(key, None)
        if token_id is not None and not 0 <= token_id < len(self.tokens):
            raise self._corrupt(f"tokenizer.ggml.{key} is {token_id}, but there are {len(self.tokens)} tokens")
        return token_id

    def _list(self, key: str) -> list[str]:
        found = self._get(key)
        if not isinstance(found, list) or not found:
            raise self._corrupt(f"tokenizer.ggml.{key} is no list of strings")
        return found

    def _get(self, key: str, *default: Any) -> Any:
        try:
            return self._metadata[f"tokenizer.ggml.{key}"]
        except KeyError:
            if default:
                return default[0]
            raise self._corrupt(f"the metadata key tokenizer.ggml.{key} is missing") from None

    def _corrupt(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {problem}.", parameter="tokenizer", value=str(self._path))


def derive_merges(ranked_pieces: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every (left, right) of which both parts and the whole are pieces, in the order of the wholes.

    For one whole the longer left part comes first.
    """
    pieces = set(ranked_pieces)
    for piece in ranked_pieces:
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in pieces and (right := piece[cut:]) in pieces:
                yield left, right


def _chat_template(metadata: dict[str, Any]) -> ChatTemplate | None:
    """The file's template; with its names if there are several."""
    default = metadata.get("tokenizer.chat_template")
    named = {name: metadata[f"tokenizer.chat_template.{name}"] for name in metadata.get("tokenizer.chat_templates", ())}
    if not named:
        return default
    return named if default is None else {"default": default, **named}
