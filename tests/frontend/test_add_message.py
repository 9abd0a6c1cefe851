"""Batches: a prompt and a set of parameters are in the message once, however many requests share them."""

from __future__ import annotations

from fathom.frontend.add_message import build_add_message
from fathom.frontend.engine import REQUESTS_PER_MESSAGE
from fathom.frontend.input_processor import InputProcessor, ProcessedRequest
from fathom.frontend.output_processor import OutputProcessor
from fathom.sampling_params import SamplingParams
from fathom.wire.codec import Encoder
from fathom.wire.messages import AddRequests


def process(prompts: list[list[int]], params: list[SamplingParams | None]) -> list[ProcessedRequest]:
    processor = InputProcessor(
        None,
        vocab_size=100,
        max_model_len=2000,
        max_logprobs=20,
        eos_token_ids=[1],
        default_params=SamplingParams(),
        seed=0,
        by_priority=False,
        logits_processors=[],
    )
    return processor.process([str(index) for index in range(len(prompts))], prompts, params)


def build(prompts: list[list[int]], params: list[SamplingParams | None]) -> AddRequests:
    requests = process(prompts, params)
    return build_add_message(requests, OutputProcessor(None).add_requests(requests))


def test_four_answers_send_their_prompt_once() -> None:
    message = build([[5, 6, 7]], [SamplingParams(n=4, seed=9)])
    assert [prompt.tolist() for prompt in message.prompts] == [[5, 6, 7]]
    assert len(message.params) == 1
    assert [(r.request_id, r.prompt, r.params, r.seed, r.choice) for r in message.requests] == [
        (f"{choice}_0", 0, 0, 9, choice) for choice in range(4)
    ]


def test_shared_parameters_are_sent_once_and_others_apart() -> None:
    shared, other = SamplingParams(temperature=0.5), SamplingParams(temperature=0.7)
    message = build([[5], [6], [7], [8], [9]], [shared, other, shared, None, None])
    assert [params.temperature for params in message.params] == [0.5, 0.7, 1.0]
    assert [request.params for request in message.requests] == [0, 1, 0, 2, 2]
    assert [request.prompt for request in message.requests] == [0, 1, 2, 3, 4]
    assert [params.eos_token_ids for params in message.params] == [[1]] * 3


def test_requests_without_a_seed_get_one_each() -> None:
    message = build([[5], [6]], [SamplingParams(n=2), SamplingParams(n=2)])
    seeds = [request.seed for request in message.requests]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_a_thousand_prompts_are_a_handful_of_messages_of_few_bytes() -> None:
    params = SamplingParams(n=4)
    requests = process([[5] * 1000] * 1000, [params] * 1000)
    engine_ids = OutputProcessor(None).add_requests(requests)
    assert -(-1000 // REQUESTS_PER_MESSAGE) <= 5
    message = build_add_message(requests[:REQUESTS_PER_MESSAGE], engine_ids[:REQUESTS_PER_MESSAGE])
    assert len(message.requests) == 4 * REQUESTS_PER_MESSAGE
    num_bytes = sum(map(len, Encoder().encode(message)))
    assert num_bytes - 4 * 1000 * REQUESTS_PER_MESSAGE < 60 * len(message.requests)
