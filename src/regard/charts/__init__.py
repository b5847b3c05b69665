"""Charts of attention weights and metrics: HTML, SVG, PNG, JSON and terminal text.

base.py saving and display · heatmap.py attention weights · line_chart.py metrics ·
diagrams.py encoder-decoder and self-attention · attention_steps.py score, normalise, weighted sum ·
drawing.py boxes, lines, text · terminal.py heatmaps as text · labels.py tokens as labels
"""

from regard.charts.attention_steps import AttentionSteps, attention_steps
from regard.charts.base import Chart, MissingGlyphWarning
from regard.charts.diagrams import encoder_decoder, self_attention
from regard.charts.drawing import Diagram
from regard.charts.heatmap import Heatmap, heatmap
from regard.charts.line_chart import LineChart, Point
from regard.charts.terminal import terminal_heatmap

__all__ = [
    "AttentionSteps",
    "Chart",
    "Diagram",
    "Heatmap",
    "LineChart",
    "MissingGlyphWarning",
    "Point",
    "attention_steps",
    "encoder_decoder",
    "heatmap",
    "self_attention",
    "terminal_heatmap",
]  # fmt: skip
