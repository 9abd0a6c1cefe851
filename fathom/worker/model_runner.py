"""ModelRunner: runs one step of the model on one device.

    execute_model(step)
        1. apply the step's differences to the persistent rows           InputBatch
        2. flatten the scheduled tokens of all rows into one batch       _prepare_inputs
        3. run the model: every token in one forward, whoever's it is
        4. project the last hidden state of each row that is complete to logits
    sample_tokens()
        5. choose a token per complete row, append it to its row
        6. report tokens, logprobs and errors

The two halves are apart so that a step can be launched and the next one be scheduled before its tokens are asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch

from fathom.kernels.kv_cache import KVCache
from fathom.kernels.sampling import NO_TOKEN
from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.models.decoder import CausalLM
from fathom.step import ModelRunnerOutput, SchedulerOutput
from fathom.worker.device import Device
from fathom.worker.forward_batch import BlockTables, ForwardBatch, StepInputs
from fathom.worker.graphs import StepGraphs
from fathom.worker.input_batch import InputBatch
from fathom.worker.input_buffers import InputBuffers
from fathom.worker.prompt_logprobs import PromptLogprobs
from fathom.worker.sample.logprobs import LogprobsMode
from fathom.worker.sample.sampler import Sampler

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PreparedStep:
    """What a step computes. rows: [num_reqs], the batch's row of each scheduled request, in order.

    num_scheduled: [num_reqs]. complete: [num_reqs] bool, whose last token this step computes.
    query_start: [num_reqs + 1].
    """

    inputs: StepInputs
    rows: np.ndarray
    num_scheduled: np.ndarray
    query_start: np.ndarray
    complete: np.ndarray


@dataclass(slots=True)
class PendingStep:
    """What execute_model leaves for sample_tokens. logits: [complete rows, vocab]; rows: their rows in the batch."""

    logits: torch.Tensor
    rows: np.ndarray


class ModelRunner:
    """Owns the batch's rows and the KV cache; holds the model and the sampler.

    Args:
        model: on `device`, with forward, compute_logits.
        sampler: the logits pipeline.
        kv_specs: what each layer stores.
        kv_cache: layout of the pool to allocate.
        use_graphs: record decode steps and replay them (StepGraphs), where the device can.
    """

    def __init__(
        self,
        model: CausalLM,
        sampler: Sampler,
        device: Device,
        kv_specs: list[LayerKVSpec],
        kv_cache: KVCacheConfig,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        logprobs_mode: LogprobsMode,
        use_graphs: bool,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.device = device
        self.block_size = kv_cache.block_size
        self.batch = InputBatch(max_num_seqs, max_model_len, kv_cache)
        max_blocks = -(-max_model_len // kv_cache.block_size)
        self.buffers = InputBuffers(
            max_num_batched_tokens, max_num_seqs, max_blocks, len(kv_cache.groups), device.torch_device
        )
        self.prompt_logprobs = PromptLogprobs(model, logprobs_mode)
        self.kv_caches, self.group_of_layer = _allocate_kv_caches(kv_specs[0], device, kv_cache)
        self.graphs = StepGraphs(model, max_num_seqs) if use_graphs else None
        self._pending: PendingStep | None = None

    @torch.inference_mode()
    def execute_model(self, step: SchedulerOutput) -> None:
        """Run the forward pass of a step and keep the logits of the rows that it completes."""
        self._pending = None
        self.prompt_logprobs.drop(step.finished_request_ids)
        self.sampler.update_state(self.batch.apply(step))
        prepared = self._prepare_inputs(step.num_scheduled_tokens)
        with torch.profiler.record_function(step.annotation):
            hidden, logits = self._forward(prepared)
        self.prompt_logprobs.collect(self.batch, prepared.rows, prepared.query_start, hidden)
        self.batch.num_computed_tokens[prepared.rows] += prepared.num_scheduled
        self._pending = PendingStep(logits, prepared.rows[prepared.complete])

    @torch.inference_mode()
    def sample_tokens(self) -> ModelRunnerOutput:
        """Sample from the last execute_model's logits and append the tokens to their rows."""
        pending, self._pending = self._pending, None
        assert pending is not None, "sample_tokens without execute_model"
        batch, rows = self.batch, pending.rows
        with torch.profiler.record_function("sample_tokens"):
            output = self.sampler.forward(pending.logits, rows, batch.uniforms)
        has_token = output.token_ids != NO_TOKEN
        rows, token_ids = rows[has_token], output.token_ids[has_token]
        batch.append_tokens(rows, token_ids)
        sampled = {batch.request_ids[row]: token for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True)}
        return ModelRunnerOutput(
            sampled_token_ids=sampled,
            logprobs=output.logprobs,
            logprobs_rows={batch.request_ids[row]: index for index, row in enumerate(output.logprobs_rows)},
            prompt_logprobs=self.prompt_logprobs.take_complete(self.batch),
            errors={batch.request_ids[row]: message for row, message in output.errors.items()},
        )

    def _forward(self, step: PreparedStep) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [num_tokens, hidden_size], logits [complete rows, vocab]."""
        inputs = step.inputs
        if self.graphs is not None and self.graphs.covers(step.num_scheduled, step.complete):
            return self.graphs.run(inputs)
        hidden = self.model(inputs.input_ids, inputs.positions, inputs.batch)
        last_tokens = torch.from_numpy(step.query_start[1:][step.complete] - 1)
        return hidden, self.model.compute_logits(hidden[last_tokens.to(hidden.device)])

    def _prepare_inputs(self, num_scheduled_tokens: dict[str, int]) -> PreparedStep:
        """Flatten the scheduled tokens, row after row, and say where their keys and values go and lie.

        A row's new tokens are those at positions num_computed .. num_computed + scheduled - 1.
        """
        batch, buffers = self.batch, self.buffers
        scheduled = np.zeros(batch.num_rows, np.int64)
        for request_id, count in num_scheduled_tokens.items():
            scheduled[batch.row_of[request_id]] = count
        rows = scheduled.nonzero()[0]
        counts = scheduled[rows]
        num_reqs = len(rows)
        query_start = np.zeros(num_reqs + 1, np.int64)
        counts.cumsum(out=query_start[1:])
        num_tokens = int(query_start[-1])
        computed = batch.num_computed_tokens[rows]
        seq_lens = computed + counts
        row_of_token, positions = rows, computed
        if num_tokens > num_reqs:
            row_of_token = rows.repeat(counts)
            positions = np.arange(num_tokens) + (computed - query_start[:-1]).repeat(counts)

        buffers.input_ids.host[:num_tokens] = batch.token_ids[row_of_token, positions]
        buffers.positions.host[:num_tokens] = positions
        buffers.query_start_loc.host[: num_reqs + 1] = query_start
        buffers.seq_lens.host[:num_reqs] = seq_lens
        tables = self._block_tables(rows, row_of_token, positions, int(seq_lens.max()))
        forward_batch = ForwardBatch(
            query_start_loc=buffers.query_start_loc.on_device(num_reqs + 1),
            seq_lens=buffers.seq_lens.on_device(num_reqs),
            kv_caches=self.kv_caches,
            tables=[tables[group] for group in self.group_of_layer],
        )
        return PreparedStep(
            inputs=StepInputs(
                input_ids=buffers.input_ids.on_device(num_tokens),
                positions=buffers.positions.on_device(num_tokens),
                batch=forward_batch,
            ),
            rows=rows,
            num_scheduled=counts,
            query_start=query_start,
            complete=seq_lens == batch.num_tokens[rows],
        )

    def _block_tables(
        self, rows: np.ndarray, row_of_token: np.ndarray, positions: np.ndarray, longest: int
    ) -> list[BlockTables]:
        """Per KV group: each request's blocks, and the slot (block * block_size + offset) of each new token."""
        width = -(-longest // self.block_size)
        block_of_token, offset = np.divmod(positions, self.block_size)
        tables = []
        buffers = zip(self.batch.block_tables, self.buffers.block_tables, self.buffers.slot_mappings, strict=True)
        for table, block_table, slot_mapping in buffers:
            block_table.host[: len(rows), :width] = table[rows, :width]
            slot_mapping.host[: len(positions)] = (
                table[row_of_token, block_of_token] * np.int64(self.block_size) + offset
            )
            tables.append(
                BlockTables(
                    block_table=block_table.on_device(len(rows))[:, :width],
                    slot_mapping=slot_mapping.on_device(len(positions)),
                )
            )
        return tables


def _allocate_kv_caches(spec: LayerKVSpec, device: Device, config: KVCacheConfig) -> tuple[list[KVCache], list[int]]:
    """Per layer its cache, and the index of its group. All layers store the same, but for their windows.

    The i-th layers of all groups share their pages, since no block belongs to two groups at once.
    """
    page_bytes = spec.page_bytes(config.block_size)
    blocks = device.empty_blocks(config.num_blocks, config.layers_per_group * page_bytes)
    caches = [KVCache.of_pages(layer, spec, config.block_size) for layer in blocks.split(page_bytes, dim=1)]
    place = {
        layer: (index, group_index)
        for group_index, group in enumerate(config.groups)
        for index, layer in enumerate(group.layers)
    }
    layers = range(len(place))
    return [caches[place[layer][0]] for layer in layers], [place[layer][1] for layer in layers]
