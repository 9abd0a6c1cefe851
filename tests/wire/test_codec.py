"""Whatever is sent is what arrives; whatever is not a message is refused, and nothing in it is ever run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fathom.errors import CheckpointError
from fathom.sampling_params import SamplingParams
from fathom.wire.codec import INLINE_BYTES, Decoder, Encoder
from fathom.wire.messages import (
    AddRequests,
    EngineCoreRequest,
    EngineFailed,
    FromEngine,
    ToEngine,
    UtilityCall,
)
from fathom.wire.remote_errors import to_remote_error
from tests.wire.strategies import arrays, same, sampling_params, values

MESSAGES = [(ToEngine, kind) for kind in get_args(ToEngine)] + [(FromEngine, kind) for kind in get_args(FromEngine)]
slow_strategies = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


class Box(msgspec.Struct):
    array: np.ndarray


def there_and_back(message: Any, kind: Any) -> Any:
    """As the sockets do it: what arrives is new bytes, the same as those that were sent."""
    frames = [bytes(frame) for frame in Encoder().encode(message)]
    return Decoder(kind).decode(frames)


@pytest.mark.parametrize(("union", "kind"), MESSAGES, ids=lambda kind: getattr(kind, "__name__", "union"))
@slow_strategies
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(union: Any, kind: Any, data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert same(there_and_back(message, union), message)


@slow_strategies
@given(array=arrays)
def test_arrays_of_every_type_shape_and_layout_arrive(array: np.ndarray) -> None:
    assert same(there_and_back(Box(array), Box).array, array)


@slow_strategies
@given(params=sampling_params())
def test_parameters_that_arrive_are_checked_again_and_do_not_change(params: SamplingParams) -> None:
    once = there_and_back(params, SamplingParams)
    assert same(once, params)
    assert same(there_and_back(once, SamplingParams), once)


def test_a_large_array_has_a_frame_of_its_own_and_is_copied_on_neither_side() -> None:
    array = np.arange(INLINE_BYTES, dtype=np.int64)
    frames = Encoder().encode(Box(array))
    assert len(frames) == 2
    assert np.shares_memory(np.frombuffer(frames[1], np.int64), array)
    arrived = Decoder(Box).decode(frames).array
    assert np.shares_memory(arrived, array)


def test_small_arrays_travel_in_the_body() -> None:
    assert len(Encoder().encode(Box(np.zeros(INLINE_BYTES, np.uint8)))) == 1
    assert len(Encoder().encode(Box(np.zeros(INLINE_BYTES + 1, np.uint8)))) == 2


@pytest.mark.parametrize("array", [np.array(["a", None], object), np.zeros(3, np.complex64), np.zeros(3, ">i4")])
def test_other_arrays_are_not_sent(array: np.ndarray) -> None:
    with pytest.raises(NotImplementedError, match="cannot cross the process boundary"):
        Encoder().encode(Box(array))


def test_other_objects_are_not_sent() -> None:
    with pytest.raises(NotImplementedError, match="Path cannot cross"):
        Encoder().encode(UtilityCall(1, "method", [Path("a")]))


MALFORMED_ARRAYS = {
    "object dtype": ["|O", [1], b"\0" * 8],
    "structured dtype": ["V8", [1], b"\0" * 8],
    "dtype that is no text": [["<i4"], [1], b"\0" * 4],
    "too few bytes": ["<i4", [3], b"\0" * 8],
    "too many bytes": ["<i4", [1], b"\0" * 8],
    "sizes that overflow": ["<i4", [2**62, 4], b""],
    "sizes too large though nothing is in it": ["<i4", [0, 2**62], b""],
    "negative size": ["<i4", [-1, -1], b"\0" * 4],
    "fractional size": ["<i4", [1.0], b"\0" * 4],
    "too many dimensions": ["<i4", [1] * 70, b"\0" * 4],
    "the body's own frame": ["<i4", [1], 0],
    "a frame before the first": ["<i4", [1], -1],
    "a frame after the last": ["<i4", [1], 2],
    "a frame of another size": ["<i4", [2], 1],
    "no data": ["<i4", [1]],
    "no triple": 7,
}


@pytest.mark.parametrize("array", MALFORMED_ARRAYS.values(), ids=MALFORMED_ARRAYS.keys())
def test_malformed_arrays_are_refused(array: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        Decoder(Box).decode([msgspec.msgpack.encode({"array": array}), b"\0" * 4])


def test_an_array_cannot_be_the_body_itself() -> None:
    size = len(msgspec.msgpack.encode({"array": ["|u1", [0], 0]}))
    body = msgspec.msgpack.encode({"array": ["|u1", [size], 0]})
    assert len(body) == size
    with pytest.raises(msgspec.ValidationError, match="frame 0 of 1"):
        Decoder(Box).decode([body])


@pytest.mark.parametrize("indices", [(1, 0), (0, 1), (-1, 0), (0, -1)])
def test_a_request_must_refer_to_what_its_message_holds(indices: tuple[int, int]) -> None:
    prompt = np.zeros(2, np.int32)
    message = AddRequests([prompt], [SamplingParams()], [EngineCoreRequest("a", 0, 0, seed=0)])
    message.requests[0].prompt, message.requests[0].params = indices
    with pytest.raises(msgspec.ValidationError, match="not there"):
        there_and_back(message, ToEngine)


@pytest.mark.parametrize("prompt", [np.zeros(2, np.int64), np.zeros((1, 2), np.int32), np.zeros((), np.int32)])
def test_a_prompt_must_be_a_row_of_int32(prompt: np.ndarray) -> None:
    body = msgspec.msgpack.encode(
        {"type": "add", "prompts": [(prompt.dtype.str, prompt.shape, prompt.tobytes())], "params": [], "requests": []}
    )
    with pytest.raises(msgspec.ValidationError, match="a prompt of type"):
        Decoder(ToEngine).decode([body])


@settings(max_examples=500, deadline=None)
@given(frames=st.lists(st.binary(max_size=60), max_size=3))
def test_random_bytes_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder(ToEngine).decode(frames)


@settings(slow_strategies, max_examples=100)
@given(message=values(AddRequests), position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_message_with_a_wrong_byte_is_refused_or_read_but_never_a_crash(
    message: AddRequests, position: int, byte: int
) -> None:
    body, *rest = [bytes(frame) for frame in Encoder().encode(message)]
    position %= len(body)
    try:
        Decoder(ToEngine).decode([body[:position] + bytes([byte]) + body[position + 1 :], *rest])
    except msgspec.DecodeError:
        return


def test_endless_nesting_is_refused() -> None:
    body = msgspec.msgpack.encode(UtilityCall(1, "method", [0]))
    with pytest.raises(msgspec.DecodeError, match="too deeply"):
        Decoder(ToEngine).decode([body[:-1] + b"\x91" * 100_000 + b"\0"])


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "it was run"

    class SideEffect:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(trace),)

    payload = pickle.dumps(SideEffect())
    smuggled = msgspec.msgpack.encode({"array": ["|O", [1], payload]})
    for frames in ([payload], [smuggled], [msgspec.msgpack.encode({"array": ["|O", [1], 1]}), payload]):
        for kind in (ToEngine, FromEngine, Box):
            with pytest.raises(msgspec.DecodeError):
                Decoder(kind).decode(frames)
    assert not trace.exists()
    pickle.loads(payload)
    assert trace.exists(), "the payload was harmless, so the test shows nothing"


def test_an_error_about_a_file_whose_name_is_no_text_is_told() -> None:
    error = CheckpointError(os.fsdecode(b"caf\xe9.gguf is truncated."))
    frames = Encoder().encode(EngineFailed(to_remote_error(error)))
    received = Decoder(FromEngine).decode(frames).error
    assert received.message == r"caf\udce9.gguf is truncated."
    assert received.message in received.traceback
