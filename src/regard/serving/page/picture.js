// The heatmap and the alignment as standalone SVG documents, for download.
import { FONT_FAMILY, displayToken, svgElement, textWidth } from "./dom.js";
import { isDrawn } from "./weights.js";

const [ACCENT, EDITED, TEXT, RULE] = ["#08519c", "#b93a0b", "#1f2933", "#d5dbe1"];
const FONT = `15px ${FONT_FAMILY}`;
const CELL = 38;
const MARGIN = 16;
const INVERTED_ABOVE = 0.774;

// Below the children stands the note, if there is one.
function picture(minWidth, bottom, note, ...children) {
  const width = note ? Math.max(minWidth, textWidth(note, FONT) + 2 * MARGIN) : minWidth;
  const height = note ? bottom + MARGIN + 15 : bottom;
  return svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT_FAMILY, "font-size": 15, fill: TEXT },
    svgElement("rect", { width, height, fill: "#fff" }), ...children,
    note && svgElement("text", { x: MARGIN, y: height - MARGIN, fill: EDITED }, note));
}

const decoration = (token, unknown) => unknown.includes(token) && `underline dotted ${EDITED}`;

export function heatmapPicture({ rows, columns, weights, unknown, note }) {
  const widths = (tokens) => tokens.map((token) => textWidth(displayToken(token), FONT));
  const longest = Math.max(0, ...widths(columns));
  const rotated = longest > CELL;
  const [left, top] = [MARGIN + 8 + Math.max(0, ...widths(rows)), MARGIN + 8 + (rotated ? longest : 15)];
  const heads = columns.map((token, i) => svgElement("text", {
    transform: `translate(${left + (i + 0.5) * CELL + (rotated ? 5 : 0)},${top - 8})${rotated ? " rotate(-90)" : ""}`,
    "text-anchor": rotated ? "start" : "middle", "text-decoration": decoration(token, unknown),
  }, displayToken(token)));
  const body = rows.flatMap((token, t) => [
    svgElement("text", { x: left - 8, y: top + t * CELL + 24, "text-anchor": "end" }, displayToken(token)),
    ...weights[t].flatMap((weight, i) => [
      svgElement("rect", { x: left + i * CELL + 1, y: top + t * CELL + 1, width: CELL - 2, height: CELL - 2, rx: 3, fill: ACCENT, "fill-opacity": weight.toFixed(4), stroke: RULE, "stroke-width": 0.5 }),
      svgElement("text", { x: left + (i + 0.5) * CELL, y: top + t * CELL + 23, "text-anchor": "middle", "font-size": 12, fill: weight > INVERTED_ABOVE ? "#fff" : "#000" }, weight < 0.005 ? "0" : weight.toFixed(2)),
    ]),
  ]);
  return picture(left + columns.length * CELL + MARGIN, top + rows.length * CELL + MARGIN, note, ...heads, ...body);
}

export function alignmentPicture({ rows, columns, weights, unknown, note }) {
  const place = (tokens) => {
    let x = 0;
    const centers = tokens.map((token) => { const width = textWidth(displayToken(token), FONT) + 20; x += width; return x - width / 2; });
    return { centers, width: x };
  };
  const [above, below] = [place(columns), place(rows)];
  const width = Math.max(above.width, below.width) + 2 * MARGIN;
  const line = ({ centers, width: own }) => centers.map((x) => x + (width - own) / 2);
  const [from, to] = [line(above), line(below)];
  const text = (tokens, xs, y, marked = []) => tokens.map((token, n) => svgElement("text", { x: xs[n], y, "text-anchor": "middle", "text-decoration": decoration(token, marked) }, displayToken(token)));
  const paths = weights.flatMap((row, t) => row.flatMap((weight, i) => !isDrawn(weight, row) ? [] : [svgElement("path", {
    d: `M${from[i]},44 C${from[i]},100 ${to[t]},100 ${to[t]},156`, fill: "none", stroke: ACCENT, "stroke-linecap": "round",
    "stroke-width": (1 + 6 * Math.min(1, weight)).toFixed(2), "stroke-opacity": (0.15 + 0.75 * Math.min(1, weight)).toFixed(2),
  })]));
  return picture(width, 200, note, ...paths, ...text(columns, from, 34, unknown), ...text(rows, to, 176));
}
