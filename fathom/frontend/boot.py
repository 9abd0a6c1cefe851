"""Boot: the caller's part of starting an engine, in the order that lets it overlap with the engine's own.

caller                                   engine process
EngineProcess ------ spawn ------------> import torch
prepare: resolve the model, read configs,     |
         have the weights paged in            |
make_client -------- StartEngine ------> load weights, create the KV cache
load the tokenizer                            |
wait_ready <-------- EngineReady ------- warm up
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from fathom import env
from fathom.config import EngineConfig
from fathom.errors import ConfigError, UnsupportedModelError
from fathom.frontend.input_processor import InputProcessor
from fathom.frontend.sampling_defaults import default_sampling_params
from fathom.frontend.tokenizer.load import load_tokenizer
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.hardware import detect_hardware
from fathom.model_config import load_generation_config, load_model_config
from fathom.plugins import load_general_plugins
from fathom.resolve import resolve
from fathom.sampling_params import SamplingParams
from fathom.weights.page_in import page_in
from fathom.weights.resolve import ResolvedModel, resolve_model
from fathom.wire.messages import EngineReady, EngineSetup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What the caller knows before the engine is ready. default_params: of requests that bring none."""

    setup: EngineSetup
    model: ResolvedModel
    default_params: SamplingParams


def uses_own_process(config: EngineConfig) -> bool:
    """Whether the engine gets a process of its own: as configured, else as the environment says."""
    configured = config.runtime.multiprocess
    return env.enable_multiprocessing() if configured is None else configured


def ready_timeout_s(config: EngineConfig) -> float:
    configured = config.runtime.ready_timeout_s
    return env.engine_ready_timeout() if configured is None else configured


def prepare(config: EngineConfig) -> Prepared:
    """Resolve the model and every "auto" of the config; weights are only asked to be paged in.

    Raises:
        ModelNotFoundError, UnsupportedModelError, CheckpointError, ConfigError: before anything was started.
    """
    load_general_plugins()
    dummy = config.model.load_format == "dummy"
    model = resolve_model(
        config.model.model,
        config.model.revision,
        need_weights=not dummy,
        show_progress=config.runtime.show_progress,
    )
    default_params = _default_params(config, model)
    if not dummy:
        page_in(model)
    model_config = load_model_config(model)
    resolved, reasons = resolve(config, model_config, detect_hardware())
    for reason in reasons:
        logger.info("chose %s", reason)
    return Prepared(EngineSetup(resolved, model_config, str(model.path), model.format), model, default_params)


def load_caller_tokenizer(prepared: Prepared) -> Tokenizer | None:
    """The tokenizer, from where the config says or from the model; None if dummy weights come without one."""
    options = prepared.setup.config.model
    if options.tokenizer is not None:
        folder = Path(options.tokenizer).expanduser()
        if (folder / "tokenizer.json").is_file():
            return load_tokenizer(folder, "safetensors")
        source = resolve_model(options.tokenizer, options.revision, need_weights=False)
        return load_tokenizer(source.path, source.format)
    try:
        return load_tokenizer(Path(prepared.setup.model_path), prepared.model.format)
    except UnsupportedModelError:
        if options.load_format != "dummy":
            raise
        logger.warning("the model has no tokenizer; prompts must be token ids")
        return None


def fitted_config(config: EngineConfig, ready: EngineReady) -> EngineConfig:
    """The config as the engine runs it: max_model_len may have been cut, and the step been sized."""
    return config.replace(max_model_len=ready.max_model_len, max_num_batched_tokens=ready.max_num_batched_tokens)


def make_input_processor(
    prepared: Prepared, config: EngineConfig, tokenizer: Tokenizer | None, front: str = ""
) -> InputProcessor:
    """The InputProcessor of a running engine, or of one of its fronts."""
    if config.model.max_model_len is None:
        raise ConfigError("the config is not resolved", parameter="max_model_len")
    model_config = prepared.setup.model_config
    seed: int | str | None = config.model.seed
    if front and seed is not None:
        seed = f"{seed} {front}"
    return InputProcessor(
        tokenizer,
        vocab_size=model_config.vocab_size,
        max_model_len=config.model.max_model_len,
        max_logprobs=config.model.max_logprobs,
        eos_token_ids=_eos_token_ids(prepared, tokenizer),
        default_params=prepared.default_params,
        seed=seed,
        by_priority=config.scheduler.scheduling_policy == "priority",
        logits_processors=config.model.logits_processors,
    )


def _eos_token_ids(prepared: Prepared, tokenizer: Tokenizer | None) -> list[int]:
    """The model's end-of-sequence ids and the tokenizer's own, which some configs leave out."""
    ids = list(prepared.setup.model_config.eos_token_ids)
    if tokenizer is not None and tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    return ids


def _default_params(config: EngineConfig, model: ResolvedModel) -> SamplingParams:
    """The sampling defaults of the model's authors, or the neutral ones if the config says so."""
    if config.model.generation_config == "none":
        return SamplingParams()
    return default_sampling_params(load_generation_config(model), str(model.path / "generation_config.json"))
