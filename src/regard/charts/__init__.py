"""Arrays and labels in; a page, a picture, data or terminal text out.

picture.py what every chart can do · heatmap.py attention · lines.py figures against a length ·
terminal.py attention as text · labels.py tokens as they can be shown
"""

from regard.charts.heatmap import Chart, heatmap
from regard.charts.lines import Lines
from regard.charts.picture import MissingGlyphWarning, Picture
from regard.charts.terminal import terminal_heatmap

__all__ = ["Chart", "Lines", "MissingGlyphWarning", "Picture", "heatmap", "terminal_heatmap"]
