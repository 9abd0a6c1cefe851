"""The weights of a GGUF file as a float32 safetensors folder.  convert_for_vllm.py MODEL.gguf FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    source, folder = Path(sys.argv[1]), sys.argv[2]
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    dense = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    AutoModelForCausalLM.from_pretrained(**where, **dense).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    main()
