"""Sequence models that show where they look.

Three doors: a layer (`regard.Attention`), a translator (`regard.Translator`), a command (`regard`).
Names are imported on first use, so that `import regard` stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.alignment import Alignment
    from regard.attention import Attention, AttentionOutput, MultiHeadAttention, SelfAttention
    from regard.charts import Heatmap, heatmap
    from regard.config import Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
    from regard.errors import (
        ConfigError,
        DataError,
        ExtraError,
        FolderError,
        RegardError,
        ShapeError,
    )
    from regard.evaluation import Report, evaluate
    from regard.explanation import Explanation, explain
    from regard.scores import (
        Additive,
        Bilinear,
        Concat,
        Cosine,
        Dot,
        InnerProduct,
        ScaledDot,
        make_score,
    )
    from regard.training import train
    from regard.translation import Translation
    from regard.translator import Translator

_HOMES: dict[str, str] = {
    "Additive": "scores",
    "Alignment": "alignment",
    "AttentionOutput": "attention",
    "Attention": "attention",
    "Bilinear": "scores",
    "Heatmap": "charts",
    "Concat": "scores",
    "Config": "config",
    "ConfigError": "errors",
    "Cosine": "scores",
    "DataConfig": "config",
    "DataError": "errors",
    "Dot": "scores",
    "Explanation": "explanation",
    "ExtraError": "errors",
    "FolderError": "errors",
    "InnerProduct": "scores",
    "ModelConfig": "config",
    "MultiHeadAttention": "attention",
    "RegardError": "errors",
    "Report": "evaluation",
    "ScaledDot": "scores",
    "SelfAttention": "attention",
    "ShapeError": "errors",
    "TextConfig": "config",
    "TrainingConfig": "config",
    "Translation": "translation",
    "Translator": "translator",
    "evaluate": "evaluation",
    "explain": "explanation",
    "heatmap": "charts",
    "make_score": "scores",
    "train": "training",
}

__all__ = [
    "Additive",
    "Alignment",
    "Attention",
    "AttentionOutput",
    "Bilinear",
    "Concat",
    "Config",
    "ConfigError",
    "Cosine",
    "DataConfig",
    "DataError",
    "Dot",
    "Explanation",
    "ExtraError",
    "FolderError",
    "Heatmap",
    "InnerProduct",
    "ModelConfig",
    "MultiHeadAttention",
    "RegardError",
    "Report",
    "ScaledDot",
    "SelfAttention",
    "ShapeError",
    "TextConfig",
    "TrainingConfig",
    "Translation",
    "Translator",
    "evaluate",
    "explain",
    "heatmap",
    "make_score",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
