"""ModelRunner: runs one step of the model on one device.

    execute_model(step)
        1. apply the step's differences to the persistent rows           InputBatch
        2. flatten the scheduled tokens of all rows into one batch       kernels/step_rows
        3. run the model: every token in one forward, whoever's it is
        4. project the last hidden state of each row that is complete to logits
    sample_tokens()
        5. choose a token per complete row, append it to its row
        6. report tokens, logprobs and errors

Of several stages only the last one has logits, and what it has chosen reaches the others with a later step.

The two halves are apart so that a step can be launched and the next one be scheduled before its tokens are asked for.
On a device that runs behind the host nothing here waits for it: sample_tokens returns a PendingOutput, and the next
step takes the tokens as its inputs on the device (LastTokens). Only where a request's sampling looks at its output
tokens (TokenSource.reads_output) are they waited for, when the next step's forward pass has been launched.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch

from fathom.kernels.attention import AttentionKernel, paged_attention
from fathom.kernels.gpu import to_device
from fathom.kernels.kv_cache import KVCache
from fathom.kernels.step_rows import make_step_rows
from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.models.decoder import CausalLM
from fathom.step import ModelRunnerOutput, PendingOutput, SchedulerOutput
from fathom.worker.device import Device
from fathom.worker.forward_batch import ForwardBatch, StepInputs
from fathom.worker.graph_buckets import Bucket, GraphBuckets
from fathom.worker.graphs import CUDAGraphs
from fathom.worker.input_batch import InputBatch
from fathom.worker.input_buffers import InputBuffers
from fathom.worker.last_tokens import LastTokens
from fathom.worker.launched_tokens import LaunchedTokens, step_output
from fathom.worker.prompt_logprobs import PromptLogprobs
from fathom.worker.recorded_steps import RecordedSteps
from fathom.worker.replay import NoReplay, Replay
from fathom.worker.sample.logprobs import LogprobsMode
from fathom.worker.sample.shared import TokenSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduledRows:
    """Which rows a step computes. While steps are composed alike, as when all rows decode, they share this.

    scheduled: request id -> tokens to compute. rows: the batch's row of each request, in order. num_tokens: of all.
    """

    scheduled: dict[str, int]
    rows: list[int]
    num_tokens: int


@dataclass(slots=True)
class PendingStep:
    """What execute_model leaves for sample_tokens. logits: [complete rows, vocab]; rows: their rows in the batch."""

    logits: torch.Tensor
    rows: list[int]


class ModelRunner:
    """Owns the batch's rows and the KV cache; holds the model and the sampler.

    Args:
        model: on `device`, with forward, compute_logits.
        sampler: the logits pipeline, or whatever tells of its choices.
        kv_specs: what each layer stores.
        kv_cache: layout of the pool to allocate.
        use_graphs: replay steps, once `record_steps` is called (RecordedSteps).
        buckets: sizes of steps that are captured as graphs, once `capture_graphs` is called; None for none.
        is_last_stage: whether the model has a head here; else it sends its hidden states on and knows no logits.
        attend_by: the kernel of every layer's attention.
    """

    def __init__(
        self,
        model: CausalLM,
        sampler: TokenSource,
        device: Device,
        kv_specs: list[LayerKVSpec],
        kv_cache: KVCacheConfig,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        logprobs_mode: LogprobsMode,
        use_graphs: bool,
        is_last_stage: bool = True,
        buckets: GraphBuckets | None = None,
        attend_by: AttentionKernel = paged_attention,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.device = device
        self.block_size = kv_cache.block_size
        self.max_model_len = max_model_len
        self.batch = InputBatch(max_num_seqs, max_model_len, kv_cache)
        max_blocks = -(-max_model_len // kv_cache.block_size)
        self.buffers = InputBuffers(max_num_batched_tokens, max_num_seqs, max_blocks, len(kv_cache.groups), device)
        self._step_rows = [make_step_rows(self.batch.arrays, step, self.block_size) for step in self.buffers.steps]
        self._scheduled = ScheduledRows({}, [], 0)
        self.prompt_logprobs = PromptLogprobs(model, device, logprobs_mode)
        page_bytes = kv_specs[0].page_bytes(kv_cache.block_size)
        self.kv_blocks = device.empty_blocks(kv_cache.num_blocks, kv_cache.layers_per_group * page_bytes)
        self.kv_caches, self.group_of_layer = _kv_caches(self.kv_blocks, kv_specs[0], device, kv_cache)
        self.graphs: CUDAGraphs | None = None
        self._recorded = RecordedSteps(model, max_num_seqs, max_num_batched_tokens) if use_graphs else None
        self._replay: Replay = self._recorded or NoReplay()
        if buckets is not None:
            self._replay = self.graphs = CUDAGraphs(model, device.graph_capture(), buckets)
        self._is_last_stage = is_last_stage
        self._attend_by = attend_by
        self._pending: PendingStep | None = None
        self._last_tokens = (
            LastTokens(max_num_seqs, device.torch_device) if device.runs_behind and is_last_stage else None
        )
        self._untold: deque[LaunchedTokens] = deque()  # steps whose tokens the processors are yet to be told

    def execute_model(self, step: SchedulerOutput) -> None:
        """Run the forward pass of a step and keep the logits of the rows that it completes."""
        self._pending = None
        self.prompt_logprobs.drop(step.finished_request_ids)
        if not self._is_last_stage:
            self.batch.set_tokens(step.sampled_tokens)
        batch_update = self.batch.apply(step)
        scheduled = self._scheduled
        if batch_update is not None or scheduled.scheduled != step.num_scheduled_tokens:
            scheduled = self._scheduled = self._choose_rows(step.num_scheduled_tokens)
        num_reqs = len(scheduled.rows)
        if self.device.runs_behind:
            self.buffers.begin_step()
        num_complete = self._step_rows[self.buffers.turn].flatten(num_reqs)
        try:
            logits = self._forward(scheduled, num_complete)
        finally:  # rows have changed, whatever becomes of the step
            if self.device.runs_behind:
                self.buffers.end_step()
                self._tell_processors()
            self.sampler.update_state(batch_update)
        rows = scheduled.rows
        if num_complete < num_reqs:
            rows = list(compress(rows, self.buffers.step.complete))
        self._pending = PendingStep(logits, rows)

    def sample_tokens(self) -> ModelRunnerOutput | PendingOutput:
        """Sample from the last execute_model's logits and append the tokens to their rows."""
        pending, self._pending = self._pending, None
        assert pending is not None, "sample_tokens without execute_model"
        batch, step_rows = self.batch, self._step_rows[self.buffers.turn]
        if self._last_tokens is not None:
            return self._launch_sampling(pending, self._last_tokens)
        output = self.sampler.forward(pending.logits, pending.rows, step_rows.uniforms)
        step_rows.append(len(self._scheduled.rows), output.token_ids)
        sampled = batch.note_tokens(pending.rows, output.token_ids)
        return step_output(sampled, output, batch.request_ids, self.prompt_logprobs.take_complete(batch))

    def _launch_sampling(self, pending: PendingStep, last_tokens: LastTokens) -> LaunchedTokens:
        """The same for tokens that stay on the device: the host appends, and reports, what it does not know yet."""
        batch, rows = self.batch, pending.rows
        samples = self.sampler.launch(pending.logits, rows, self._step_rows[self.buffers.turn].uniforms)
        last_tokens.put(rows, batch.slots[rows], samples.token_ids)
        batch.expect_tokens(rows)
        launched = LaunchedTokens(
            samples.copied(self.device.copy_to_host),
            self.prompt_logprobs.take_complete(batch),
            self.device.mark(),
            list(batch.request_ids),
            [(batch.output_ids[row], len(batch.output_ids[row]) - 1) for row in rows],
        )
        self._untold.append(launched)
        return launched

    def _tell_processors(self) -> None:
        """Let the processors know tokens: of every step so far if they look at them, else of those that are done."""
        while self._untold and (len(self._untold) > 1 or self.sampler.reads_output):
            self._untold.popleft().tell_processors()

    def padded_inputs(self, rows: int, tokens: int) -> StepInputs:
        """What has been flattened, padded to so many rows and tokens, as the device's tensors."""
        self.buffers.pad(len(self._scheduled.rows), self._scheduled.num_tokens, rows, tokens)
        return self._step_inputs(rows, tokens)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_tokens, hidden_size] -> [complete rows, vocab_size] float32; scores prompt tokens as well."""
        step, num_reqs = self.buffers.step, len(self._scheduled.rows)
        query_start = step.query_start_loc[: num_reqs + 1]
        self.prompt_logprobs.collect(self.batch, step.rows[:num_reqs], query_start, hidden)
        last_tokens = query_start[1:][step.complete[:num_reqs]].astype(np.int64) - 1
        if len(last_tokens) < len(hidden):
            hidden = hidden[to_device(last_tokens, hidden.device)]
        return self.model.compute_logits(hidden).to(torch.float32)

    def record_steps(self) -> None:
        """Record what steps replay, if they are to; on the null block, which nobody reads."""
        if self._recorded is not None:
            self._scheduled = ScheduledRows({}, [], 0)
            self._recorded.record(self)

    def capture_graphs(self, buckets: list[Bucket], show_progress: bool = False) -> None:
        """Capture the graphs of these buckets, the largest one first; on the null block, which nobody reads."""
        assert self.graphs is not None
        self._scheduled = ScheduledRows({}, [], 0)
        self.buffers.begin_step()
        self.graphs.capture(buckets, self, show_progress)
        self.buffers.end_step()

    def _choose_rows(self, num_scheduled_tokens: dict[str, int]) -> ScheduledRows:
        """The batch's rows of the scheduled requests, also written to where `_step_rows` reads them."""
        row_of = self.batch.row_of
        pairs = sorted((row_of[request_id], count) for request_id, count in num_scheduled_tokens.items())
        rows, counts = [row for row, _ in pairs], [count for _, count in pairs]
        self.buffers.step.rows[: len(rows)] = rows
        self.buffers.step.counts[: len(rows)] = counts
        return ScheduledRows(num_scheduled_tokens, rows, sum(counts))

    def _forward(self, scheduled: ScheduledRows, num_complete: int) -> torch.Tensor:
        """The logits of complete rows: [num_complete, vocab] float32."""
        num_reqs = len(scheduled.rows)
        if self._replay.cover(num_reqs, scheduled.num_tokens, num_complete):
            return self._replay.run(num_reqs, scheduled.num_tokens, num_complete, self)
        return self._call_model(scheduled)

    @torch.inference_mode()
    def _call_model(self, scheduled: ScheduledRows) -> torch.Tensor:
        """The same, call by call."""
        inputs = self._step_inputs(len(scheduled.rows), scheduled.num_tokens)
        hidden = self.model(inputs.input_ids, inputs.positions, inputs.batch)
        return self.logits(hidden) if self._is_last_stage else hidden[:0]

    def _step_inputs(self, num_reqs: int, num_tokens: int) -> StepInputs:
        """What has been written for so many requests and tokens, as the device's tensors."""
        buffers, turn = self.buffers, self.buffers.turn
        tables = buffers.tables_on_device(num_reqs, num_tokens)
        input_ids = buffers.input_ids.on_device(turn, num_tokens)
        if self._last_tokens is not None:
            self._last_tokens.fill_in(input_ids)
        return StepInputs(
            input_ids=input_ids,
            positions=buffers.positions.on_device(turn, num_tokens),
            batch=ForwardBatch(
                query_start_loc=buffers.query_start_loc.on_device(turn, num_reqs + 1),
                seq_lens=buffers.seq_lens.on_device(turn, num_reqs),
                kv_caches=self.kv_caches,
                tables=[tables[group] for group in self.group_of_layer],
                paged_attention=self._attend_by,
            ),
        )


def _kv_caches(
    blocks: torch.Tensor, spec: LayerKVSpec, device: Device, config: KVCacheConfig
) -> tuple[list[KVCache], list[int]]:
    """Per layer its cache, and the index of its group. All layers store the same, but for their windows.

    The i-th layers of all groups share their pages, since no block belongs to two groups at once.
    """
    caches = [
        KVCache.of_pages(layer, spec, config.block_size, device.keys_by_token)
        for layer in blocks.split(spec.page_bytes(config.block_size), dim=1)
    ]
    place = {
        layer: (index, group_index)
        for group_index, group in enumerate(config.groups)
        for index, layer in enumerate(group.layers)
    }
    layers = range(len(place))
    return [caches[place[layer][0]] for layer in layers], [place[layer][1] for layer in layers]
