"""Arrays and labels in; a page, a picture, data or terminal text out.

picture.py what every chart can do · heatmap.py attention · lines.py figures against a length ·
diagrams.py encoder and decoder, self-attention · moves.py score, normalise, average ·
drawing.py boxes, lines, words · terminal.py attention as text · labels.py tokens as they can be shown
"""

from regard.charts.attention_steps import AttentionSteps, attention_steps
from regard.charts.base import Chart, MissingGlyphWarning
from regard.charts.diagrams import encoder_decoder, self_attention
from regard.charts.drawing import Diagram
from regard.charts.heatmap import Heatmap, heatmap
from regard.charts.lines import Lines, Point
from regard.charts.terminal import terminal_heatmap

__all__ = [
    "AttentionSteps",
    "Chart",
    "Diagram",
    "Heatmap",
    "Lines",
    "MissingGlyphWarning",
    "Point",
    "attention_steps",
    "encoder_decoder",
    "heatmap",
    "self_attention",
    "terminal_heatmap",
]  # fmt: skip
