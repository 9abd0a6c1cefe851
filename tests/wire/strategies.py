"""Hypothesis strategies for every message, made from the type hints of its fields."""

from __future__ import annotations

import dataclasses
import types
from enum import IntEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fathom.sampling_params import RequestOutputKind, SamplingParams
from fathom.wire.messages import AddRequests, EngineCoreRequest

DTYPES = ("<i4", "<i8", "<f4", "<f8", "|b1", "|u1")

small_arrays = hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
large_arrays = hnp.arrays(
    st.sampled_from(DTYPES), st.tuples(st.integers(20, 40), st.integers(30, 40)), fill=st.nothing() | st.just(1)
)
arrays = st.one_of(small_arrays, large_arrays).flatmap(
    lambda array: st.sampled_from([array, array.T, array[::-1] if array.ndim else array])
)

numbers = st.integers(-(2**63), 2**64 - 1)
scalars = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
plain_data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that occurs in messages."""
    simple = {int: numbers, float: st.floats(), str: st.text(max_size=8), bool: st.booleans(), bytes: st.binary()}
    special = {np.ndarray: arrays, SamplingParams: sampling_params(), AddRequests: add_requests(), Any: plain_data}
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in special:
        return special[kind]
    if kind in simple:
        return simple[kind]
    if kind is types.NoneType:
        return st.none()
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return st.sampled_from(kind)
    fields = [field.name for field in _fields(kind)]
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in fields})


def sampling_params() -> st.SearchStrategy[SamplingParams]:
    """Valid parameters with any field set; a field that is added and not covered here fails."""
    token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=4)
    words = st.lists(st.text(min_size=1, max_size=4), max_size=3)
    optional = {
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 5),
        "temperature": st.floats(0.1, 2),
        "top_p": st.floats(0.1, 1),
        "top_k": st.integers(-1, 100),
        "min_p": st.floats(0, 1),
        "n": st.integers(1, 5),
        "seed": st.none() | numbers,
        "stop": st.none() | st.text(min_size=1, max_size=4) | words,
        "stop_token_ids": st.none() | token_ids,
        "ignore_eos": st.booleans(),
        "max_tokens": st.none() | st.integers(10, 100),
        "min_tokens": st.integers(0, 10),
        "logprobs": st.none() | st.integers(-1, 20),
        "prompt_logprobs": st.none() | st.integers(-1, 20),
        "detokenize": st.just(True),
        "skip_special_tokens": st.booleans(),
        "spaces_between_special_tokens": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "output_kind": st.sampled_from(RequestOutputKind),
        "logit_bias": st.none() | st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3),
        "allowed_token_ids": st.none() | st.lists(st.integers(0, 1000), min_size=1, max_size=3),
        "bad_words": st.none() | words,
        "skip_reading_prefix_cache": st.none() | st.booleans(),
        "logits_processors": st.none() | words,
        "extra_args": st.none() | st.dictionaries(st.text(max_size=3), plain_data, max_size=3),
        "eos_token_ids": token_ids,
        "bad_words_token_ids": st.lists(token_ids, max_size=3),
    }
    assert set(optional) == set(SamplingParams.__struct_fields__)
    return st.fixed_dictionaries({}, optional=optional).map(lambda fields: SamplingParams(**fields))


@st.composite
def add_requests(draw: st.DrawFn) -> AddRequests:
    prompt = hnp.arrays("<i4", st.integers(0, 300), elements=st.integers(0, 10), fill=st.just(3))
    prompts = draw(st.lists(prompt, min_size=1, max_size=3))
    params = draw(st.lists(sampling_params(), min_size=1, max_size=2))
    hints = get_type_hints(EngineCoreRequest)
    fields = {name: values(hints[name]) for name in EngineCoreRequest.__struct_fields__}
    fields["prompt"] = st.integers(0, len(prompts) - 1)
    fields["params"] = st.integers(0, len(params) - 1)
    return AddRequests(prompts, params, draw(st.lists(st.builds(EngineCoreRequest, **fields), max_size=4)))


def same(left: Any, right: Any) -> bool:
    """Equality that looks into arrays, and for which NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, msgspec.Struct) or dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in _fields(type(left)))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float):
        return left == right or (left != left and right != right)
    return bool(left == right)


def _fields(kind: Any) -> Any:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
