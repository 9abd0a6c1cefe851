"""The byte alphabet of byte-level BPE: one printable character for each of the 256 bytes.

A byte-level vocabulary spells bytes, not characters, and writes each byte as a character that survives in a
text file: printable Latin-1 bytes as themselves, the other 68 as U+0100 and following, in order ("Ġ" is a
space).
"""

from __future__ import annotations

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _alphabet() -> dict[str, int]:
    unprintable = [byte for byte in range(256) if byte not in _PRINTABLE]
    stand_ins = {chr(0x100 + index): byte for index, byte in enumerate(unprintable)}
    return {chr(byte): byte for byte in _PRINTABLE} | stand_ins


BYTE_OF_CHAR = _alphabet()


def token_bytes(token: str) -> bytes:
    """The bytes that a byte-level decoder gives for a token string.

    A token with any character outside the alphabet (an added token, say) stands for its own UTF-8 text.
    """
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode()
