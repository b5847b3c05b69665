// The attention heatmap: what is attended to across, what attends down. A table, so that screen readers can read it.
import { FONT_FAMILY, direction, displayToken, element, formatWeight, isolatedToken, position, scrollBox, textWidth } from "./dom.js";

const MAX_COLUMNS_WITH_VALUES = 14;
const MIN_CELL_WITH_VALUE = 34; // pixels
const MIN_CELL = 13; // below it, the heatmap scrolls
const MAX_LABEL = 140;
const INVERTED_ABOVE = 0.7616; // here black and white text have the same contrast, above 4.5 : 1, in both themes

// `step` and `onSelect` belong to rows that are steps of the output.
export function heatmap({ rows, columns, weights, unknown, note, width, step = null, onSelect = null }) {
  const font = `14px ${FONT_FAMILY}`;
  const longest = (tokens) => Math.max(0, ...tokens.map((token) => textWidth(displayToken(token), font)));
  const label = Math.min(longest(rows) + 16, MAX_LABEL, width / 3);
  const cell = (width - label) / columns.length;
  const withValues = columns.length <= MAX_COLUMNS_WITH_VALUES && cell >= MIN_CELL_WITH_VALUE;
  const rotated = longest(columns) + 6 > cell;
  const cross = step !== null;
  const places = columns.map((_, i) => position(columns, i));
  const head = element("tr", {}, element("td"), ...columns.map((token, i) =>
    element("th", { scope: "col", class: unknown.includes(token) ? "unknown" : "", ...(cross ? { "data-source": i } : {}) }, element("bdi", {}, displayToken(token)))));
  const body = rows.map((token, t) => {
    const query = `${isolatedToken(token)}${position(rows, t)}`;
    return element("tr", cross ? { class: t === step ? "selected" : "", "data-step": t } : {},
      element("th", { scope: "row", ...(cross ? { "data-target": t, onclick: () => onSelect(t) } : {}) }, element("bdi", {}, displayToken(token))),
      ...(weights[t] ?? []).map((weight, i) =>
        element("td", {
          ...(cross ? { "data-source": i, "data-target": t, onclick: () => onSelect(t) } : {}),
          style: { "--weight": Math.min(1, Math.max(0, weight)) },
          class: `cell ${weight > INVERTED_ABOVE ? "inverted" : ""} ${weight < 0.005 ? "zero" : ""}`,
          title: `${query} attends to ${isolatedToken(columns[i])}${places[i]}: ${weight.toFixed(3)}`,
        }, formatWeight(weight))));
  });
  return scrollBox("heatmap",
    element("table", {
      class: `heatmap ${withValues ? "with-values" : ""} ${rotated ? "rotated-labels" : ""} ${cell < 16 ? "dense" : ""}`,
      dir: direction(columns), style: { "--label": `${Math.ceil(label)}px`, "min-width": `${Math.ceil(label + columns.length * MIN_CELL)}px` },
    },
    element("caption", { dir: "ltr" }, "A stronger colour means a higher weight. ", element("span", { class: "ablated-note" }, note)),
    element("thead", {}, head), element("tbody", {}, ...body)));
}
