"""Description of a model for its web page and the JSON API."""

from typing import Any

from regard.decoders import EnsembleDecoder
from regard.model_folder import TrainedModel
from regard.translator import Translator
from regard.version import __version__


def describe_model(name: str, translator: Translator) -> dict[str, Any]:
    """Return the architecture and the sizes of a model as a JSON object."""
    trained = translator.trained
    model, decoder = trained.config.model, trained.model.decoder
    return {
        "name": name,
        "kind": "ensemble" if trained.members else model.kind,
        "encoder": None if trained.members else model.encoder,
        "decoder": None if trained.members or model.kind == "transformer" else model.decoder,
        "attention": model.attention,
        "normalizer": model.normalizer,
        "right_to_left": model.right_to_left,
        "layers": decoder.attention_layers,
        "heads": decoder.attention_heads,
        "head_name": "member" if isinstance(decoder, EnsembleDecoder) else "head",
        "attention_layer": translator.attention_layer,
        "self_attention": _self_attention(trained),
        "parameters": trained.metadata.get("parameters"),
        "attribution": trained.metadata.get("attribution"),
        "source": {
            "unit": trained.config.source.unit,
            "vocabulary": len(translator.source),
            "features": translator.source.features is not None,
        },
        "target": {"unit": trained.config.target.unit, "vocabulary": len(translator.target)},
        "regard": __version__,
    }


def _self_attention(trained: TrainedModel) -> dict[str, int | None]:
    """Return the numbers of heads and of layers with self-attention; an ensemble has none."""
    model = trained.config.model
    encoder = not trained.members and model.encoder == "transformer"
    decoder = not trained.members and model.kind == "transformer"
    return {
        "heads": model.heads,
        "encoder": model.encoder_layers if encoder else 0,
        "decoder": model.decoder_layers if decoder else 0,
    }
