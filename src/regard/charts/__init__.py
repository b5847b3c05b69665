"""Charts of attention weights and metrics, as HTML, SVG, PNG, PDF, JSON or terminal text.

Each chart is a module: heatmap.py, line_chart.py, diagrams.py (encoder-decoder, self-attention),
attention_steps.py (score, normalise, weighted sum), animation.py (encoder-decoder), terminal.py.
They share base.py (saving), vega.py (charts made with Altair), svg.py (charts as plain SVG),
labels.py (tokens as labels), text.py (widths, titles on several lines) and fonts.py.
"""

from regard.charts.animation import Animation, animated_encoder_decoder
from regard.charts.attention_steps import attention_steps
from regard.charts.base import Chart, MissingGlyphWarning
from regard.charts.diagrams import encoder_decoder, self_attention
from regard.charts.heatmap import Heatmap, heatmap
from regard.charts.line_chart import LineChart, Point
from regard.charts.svg import Diagram
from regard.charts.terminal import terminal_heatmap

__all__ = [
    "Animation",
    "Chart",
    "Diagram",
    "Heatmap",
    "LineChart",
    "MissingGlyphWarning",
    "Point",
    "animated_encoder_decoder",
    "attention_steps",
    "encoder_decoder",
    "heatmap",
    "self_attention",
    "terminal_heatmap",
]  # fmt: skip
