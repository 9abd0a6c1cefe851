"""How byte-level vocabularies cut text into words before merging, by the name that GGUF files give the rule.

A GGUF file names the rule (`tokenizer.ggml.pre`) and leaves its regular expressions to the reader. Each rule
is a list of expressions applied in turn, as in the tokenizer.json of the models that it is named after.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from fathom.errors import UnsupportedModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ONE_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizerRule:
    """One rule.

    patterns: each cuts what the one before left into its matches and what lies between.
    ignore_merges: a word that is a token as a whole is that token, whatever the merges say.
    add_bos: whether a BOS is wanted when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The library's pre-tokenizer: these cuts, then bytes in the byte alphabet."""
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_NAMES = {
    PreTokenizerRule((_GPT2,)): "default gpt-2 gpt2 phi-2 olmo mpt jais roberta-bpe",
    PreTokenizerRule((_ONE_DIGIT, _GPT2)): "smollm starcoder refact command-r codeshell exaone",
    PreTokenizerRule((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    PreTokenizerRule((_LLAMA3,)): "dbrx smaug-bpe",
    PreTokenizerRule((_QWEN2,)): "qwen2 deepseek-r1-qwen stablelm2 megrez kormo",
    PreTokenizerRule((_TEKKEN,), ignore_merges=True): "tekken",
}
_RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}


def pre_tokenizer_rule(name: str) -> PreTokenizerRule:
    """The rule of a `tokenizer.ggml.pre` name.

    Raises:
        UnsupportedModelError: no such rule; guessing one would give wrong ids without a sign.
    """
    try:
        return _RULES[name]
    except KeyError:
        raise UnsupportedModelError(
            f"The GGUF file cuts text by the rule {name!r}, which Fathom does not know; "
            f"it knows {', '.join(sorted(_RULES))}.",
            parameter="tokenizer.ggml.pre",
            value=name,
            hint="Name a folder with the model's tokenizer.json with tokenizer=.",
        ) from None
