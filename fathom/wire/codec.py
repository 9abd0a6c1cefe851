"""Encode and decode messages: msgpack for the structure, arrays beside it in frames of their own, uncopied.

A message is one or more frames. The first is the msgpack body; an array in it is (dtype, shape, data), where
data is the bytes themselves if they are few, or the number of the frame that holds them. Only numbers can
travel: nothing that a peer sends is ever unpickled or looked up by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

INLINE_BYTES = 16_384
"""Up to which an array is copied into the body: a frame more takes both sides longer."""
_DTYPES = {name: np.dtype(name) for name in ("<i4", "<i8", "<f4", "<f8", "|b1", "|u1")}

Message = TypeVar("Message")
Frame = bytes | bytearray | memoryview


class Encoder:
    """Turns messages into frames. Not thread-safe."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_array)

    def encode(self, message: Any) -> list[Frame]:
        """The message's frames; arrays are referenced, so they must not change until the frames are sent."""
        frames: list[Frame] = [b""]
        self._frames = frames
        frames[0] = self._encoder.encode(message)
        return frames

    def _encode_array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{type(value).__name__} cannot cross the process boundary")
        if value.dtype.str not in _DTYPES:
            raise NotImplementedError(f"arrays of {value.dtype} cannot cross the process boundary")
        if value.nbytes <= INLINE_BYTES:
            return (value.dtype.str, value.shape, value.tobytes())
        self._frames.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return (value.dtype.str, value.shape, len(self._frames) - 1)


class Decoder(Generic[Message]):
    """Turns frames back into a message of the given type (a struct or a union of tagged structs)."""

    def __init__(self, kind: Any) -> None:
        self._frames: Sequence[Frame] = ()
        self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=self._decode_array)

    def decode(self, frames: Sequence[Frame]) -> Message:
        """The message; its large arrays are read-only views of the frames.

        Raises:
            msgspec.DecodeError (of which msgspec.ValidationError is one): the frames are not such a message.
        """
        if not frames:
            raise msgspec.DecodeError("a message without frames")
        self._frames = frames
        try:
            return self._decoder.decode(frames[0])  # type: ignore[no-any-return]
        except RecursionError as error:
            raise msgspec.DecodeError("a message nested too deeply") from error
        finally:
            self._frames = ()

    def _decode_array(self, kind: type, value: Any) -> Any:
        if kind is not np.ndarray:
            raise NotImplementedError(f"cannot decode {kind}")
        # By hand, since msgspec.convert takes several times as long as all the rest.
        name, shape, data = value
        dtype = _DTYPES.get(name)
        if dtype is None:
            raise ValueError(f"array of type {name!r}")
        source: Frame
        if type(data) is bytes:
            source = data
        elif type(data) is int and 0 < data < len(self._frames):
            source = self._frames[data]
        else:
            raise ValueError(f"array in frame {data!r} of {len(self._frames)}")
        array: np.ndarray = np.ndarray(shape, dtype, source)  # raises if that is no shape, or needs more bytes
        if array.nbytes != len(source):
            raise ValueError(f"array of shape {shape} and type {name} in {len(source)} bytes")
        return array
