"""ModelConfig, and the one place that reads foreign configuration keys.

`from_hf_config` reads a Hugging Face config.json (old and new spellings), `from_gguf` a GGUF header.
Everything else in the engine sees only ModelConfig.
"""

from fathom.model_config.gguf import from_gguf
from fathom.model_config.hugging_face import from_hf_config
from fathom.model_config.load import load_generation_config, load_model_config
from fathom.model_config.values import ModelConfig, RopeConfig

__all__ = [
    "ModelConfig",
    "RopeConfig",
    "from_gguf",
    "from_hf_config",
    "load_generation_config",
    "load_model_config",
]
