"""Arrays and labels in; a page, a picture, data or terminal text out.

picture.py what every chart can do · heatmap.py attention · lines.py figures against a length ·
diagrams.py encoder and decoder, self-attention · moves.py score, normalise, average ·
drawing.py boxes, lines, words · terminal.py attention as text · labels.py tokens as they can be shown
"""

from regard.charts.diagrams import encoder_decoder, self_attention
from regard.charts.drawing import Diagram
from regard.charts.heatmap import Chart, heatmap
from regard.charts.lines import Lines, Point
from regard.charts.moves import ThreeMoves, three_moves
from regard.charts.picture import MissingGlyphWarning, Picture
from regard.charts.terminal import terminal_heatmap

__all__ = [
    "Chart", "Diagram", "Lines", "MissingGlyphWarning", "Picture", "Point", "ThreeMoves",
    "encoder_decoder", "heatmap", "self_attention", "terminal_heatmap", "three_moves",
]  # fmt: skip
