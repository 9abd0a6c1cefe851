"""Tokenizer: text to token ids and back, over the `tokenizers` library, without transformers.

Results equal those of transformers' tokenizer for the same files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from fathom.errors import ValidationError
from fathom.frontend.tokenizer.text_stream import MOST_REMEMBERED, TextDecoder, TextStream

ChatTemplate = str | dict[str, str]
_MOST_COMPOSED = 4
"""Characters that normalisation (NFC) may make one of."""


class TokenizedText(dict[str, list[int]]):
    """What calling a tokenizer gives: "input_ids" and "attention_mask", as transformers has them."""

    @property
    def input_ids(self) -> list[int]:
        return self["input_ids"]


class Tokenizer:
    """One model's tokenizer, with the methods of transformers' that callers of an engine use.

    Args:
        backend: the library's tokenizer; truncation and padding are switched off, named tokens made special.
        special_tokens: "bos_token", "eos_token", "unk_token", "pad_token" and so on, by name, as chat
            templates see them.
        extra_special_tokens: further tokens that decode leaves out with skip_special_tokens.
        chat_template: the model's template, or several by name ("default", "tool_use"), or None.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        extra_special_tokens: Sequence[str] = (),
        chat_template: ChatTemplate | None = None,
    ):
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self.compiled_templates: dict[str, Any] = {}  # source -> CompiledTemplate; kept here by render_chat
        backend.no_truncation()
        backend.no_padding()
        backend.add_special_tokens(list(dict.fromkeys([*special_tokens.values(), *extra_special_tokens])))
        self._backend = backend
        self._token_strings: dict[int, str] = {}
        self._longest_token: int | None = None  # counted when it is asked for
        self.all_special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._text_decoder = TextDecoder(backend, self.all_special_ids)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens.get("unk_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens.get("pad_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        return self._id_of(self.pad_token)

    @property
    def all_special_tokens(self) -> list[str]:
        """In the order of their ids."""
        added = self._backend.get_added_tokens_decoder()
        return [added[token_id].content for token_id in sorted(self.all_special_ids)]

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(self, text: str, add_special_tokens: bool = True) -> TokenizedText:
        """`encode`, in a dictionary."""
        ids = self.encode(text, add_special_tokens)
        return TokenizedText(input_ids=ids, attention_mask=[1] * len(ids))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Fathom's tokenizer has no {name!r}; "
            "for all that transformers has, use transformers.AutoTokenizer.from_pretrained(...) of the same model"
        )

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """A conversation as the prompt's text, or with `tokenize` as its ids; as transformers' of this name.

        Raises:
            ValidationError: as render_chat.
        """
        from fathom.frontend.chat_template import render_chat  # which builds on this module

        text = render_chat(
            self,
            conversation,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=variables,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        add_special_tokens adds what the model wants around a text (often a BOS); pass False for text that has
        it already, such as the output of a chat template.

        Raises:
            ValidationError: the text holds a lone surrogate.
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of each text, on all cores.

        Other threads go on meanwhile: the library lets go of the interpreter's lock for batches, and for them only.
        """
        for text in texts:
            check_text(text, "prompt")
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids that the vocabulary lacks give nothing, and no spaces are put in between.

        Raises:
            ValidationError: an id is negative, or larger than any id can be.
        """
        try:
            return self._backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]
        except OverflowError:
            bad = next(token_id for token_id in token_ids if not 0 <= token_id < 2**32)
            raise ValidationError(f"{bad} is no token id.", parameter="token_ids", value=bad) from None

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """`decode` of each."""
        return [self.decode(token_ids, skip_special_tokens) for token_ids in sequences]

    def most_characters(self, num_tokens: int) -> int:
        """No longer text can come out as so few tokens."""
        if self._longest_token is None:
            self._longest_token = max(map(len, self._backend.get_vocab()))
        return num_tokens * self._longest_token * _MOST_COMPOSED

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """`decode([id], skip_special_tokens=False)` of each id, remembered for the next time."""
        known = self._token_strings
        try:
            return [known[token_id] for token_id in token_ids]
        except KeyError:
            missing = list({token_id for token_id in token_ids if token_id not in known})
        if len(known) + len(missing) > MOST_REMEMBERED:
            known, missing = {}, list(set(token_ids))
        texts = self._backend.decode_batch([[token_id] for token_id in missing], skip_special_tokens=False)
        known.update(zip(missing, texts, strict=True))
        self._token_strings = known if len(known) <= MOST_REMEMBERED else {}
        return [known[token_id] for token_id in token_ids]

    def token_bytes(self, token_id: int) -> bytes:
        """One id's bytes of UTF-8, which may be part of a character; special tokens have their spelling's."""
        return self._text_decoder.token_bytes(token_id)

    def text_stream(self, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> TextStream:
        """Incremental decode of the output that follows a prompt."""
        return self._text_decoder.stream(prompt_token_ids, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of an id ("Ġthe"), or None."""
        return self._backend.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a vocabulary entry in its own spelling, or None."""
        return self._backend.token_to_id(token)

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """`id_to_token` of each."""
        return [self.id_to_token(token_id) for token_id in token_ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """`token_to_id` of one, or of each."""
        return self.token_to_id(tokens) if isinstance(tokens, str) else [self.token_to_id(token) for token in tokens]

    def get_vocab(self) -> dict[str, int]:
        """Every token in the vocabulary's own spelling, added ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)


def check_text(text: str, parameter: str) -> None:
    """Refuse what cannot be written as UTF-8: half of a surrogate pair.

    Raises:
        ValidationError: names the parameter and the place.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(
            f"{parameter} holds a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}.",
            parameter=parameter,
            value=text[error.start],
            hint="Send the character as UTF-8, or as both halves of its \\u escape.",
        ) from None
