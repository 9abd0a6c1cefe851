"""Flags of `vllm serve` that are about its server, and that Fathom's lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fathom.compat.options import require_neutral

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "chat_template_content_format": ("auto",),
    "disable_access_log_for_endpoints": (None, "", []),
    "disable_fastapi_docs": (False,),
    "disable_frontend_multiprocessing": (False, True),
    "disable_uvicorn_access_log": (False, True),  # there is none
    "enable_force_include_usage": (False,),
    "enable_offline_docs": (False,),
    "enable_per_request_metrics": (False,),
    "enable_prompt_tokens_details": (False, True),  # they are always there, as are these three
    "enable_request_id_headers": (False, True),
    "enable_server_load_tracking": (False, True),
    "enable_tokenizer_info_endpoint": (False, True),
    "enable_ssl_refresh": (False,),
    "exclude_tools_when_tool_choice_none": (False,),
    "grpc": (False,),
    "grpc_port": (None,),
    "h11_max_header_count": (None, 256),
    "h11_max_incomplete_event_size": (None, 4 << 20),
    "headless": (False,),
    "log_config_file": (None,),
    "log_error_stack": (False, True),  # of errors that nobody expected, always
    "lora_modules": (None, []),
    "max_log_len": (None, 0),  # prompts and answers are never logged
    "middleware": (None, []),
    "return_tokens_as_token_ids": (False,),
    "sse_keep_alive_interval": (0,),
    "ssl_ciphers": (None,),
    "tokens_only": (False,),
    "tool_parser_plugin": (None, ""),
    "trust_request_mm_kwargs": (False,),
}
"""Each with the values that change nothing."""

_WAYS_OUT = {
    "disable_fastapi_docs": "There are no such pages; /openapi.json needs the key, like everything, if there is one.",
    "enable_force_include_usage": "Ask for it in requests: stream_options {'include_usage': true}.",
    "enable_per_request_metrics": "Ask for them in requests: explain, or the header X-Fathom-Explain.",
    "enable_ssl_refresh": "Start the server again to have it read a new certificate, or let a proxy do TLS.",
    "exclude_tools_when_tool_choice_none": "Leave tools out of such requests.",
    "grpc": "Fathom speaks HTTP only.",
    "headless": "An engine is always served by the command that starts it; see --api-server-count.",
    "log_config_file": "Set FATHOM_LOGGING_LEVEL and --uvicorn-log-level, and send stderr where you want it.",
    "lora_modules": "Fathom has no adapters yet; serve a merged checkpoint.",
    "middleware": "Put a proxy before the server, see --root-path and --uds.",
    "return_tokens_as_token_ids": "It is a field of requests.",
    "sse_keep_alive_interval": "Raise your proxy's timeout instead.",
    "ssl_ciphers": "Let a proxy do TLS; Python's choice of ciphers is in force here.",
}


def check_vllm_server_flags(given: dict[str, Any]) -> None:
    """Let those pass that change nothing.

    Raises:
        ConfigError: one asks for something that the server does not do.
    """
    for name, value in given.items():
        require_neutral(name, value, _NEUTRAL[name], _WAYS_OUT.get(name))


def vllm_only_server_flags() -> Iterable[tuple[str, tuple[Any, ...]]]:
    """Flags without a counterpart, each with the values that change nothing."""
    return _NEUTRAL.items()
