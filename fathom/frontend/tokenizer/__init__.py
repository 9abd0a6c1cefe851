"""Tokenizers: read from a model folder or rebuilt from a GGUF file's metadata."""

from fathom.frontend.tokenizer.load import load_tokenizer
from fathom.frontend.tokenizer.tokenizer import Tokenizer, check_text

__all__ = ["Tokenizer", "check_text", "load_tokenizer"]
