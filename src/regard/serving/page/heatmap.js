// The attention heatmap: source across, output down. A table, so that screen readers can read it.
import { direction, displayToken, element, formatWeight } from "./dom.js";

const MAX_COLUMNS_WITH_VALUES = 12;
const MAX_HORIZONTAL_LABEL = 9;
const INVERTED_ABOVE = 0.45; // weights whose cell needs the background colour as text colour

export function heatmap(view) {
  const { source_tokens: source, tokens } = view.output;
  const wide = source.length > MAX_COLUMNS_WITH_VALUES;
  const rotated = wide || source.some((token) => token.length > MAX_HORIZONTAL_LABEL);
  const head = element("tr", {}, element("td"), ...source.map((token, i) =>
    element("th", { scope: "col", "data-source": i }, element("bdi", {}, displayToken(token)))));
  const rows = tokens.map((token, t) =>
    element("tr", { class: t === view.step ? "selected" : "", "data-step": t },
      element("th", { scope: "row", "data-target": t, onclick: () => view.selectStep(t) }, element("bdi", {}, displayToken(token))),
      ...view.weights[t].map((weight, i) =>
        element("td", {
          "data-source": i,
          "data-target": t,
          style: { "--weight": Math.min(1, Math.max(0, weight)) },
          class: weight > INVERTED_ABOVE ? "inverted" : "",
          title: `${token} attends to ${source[i]}: ${weight.toFixed(3)}`,
          onclick: () => view.selectStep(t),
        }, formatWeight(weight)))));
  return element("div", { class: "scroll" },
    element("table", { class: `heatmap ${wide ? "" : "with-values"} ${rotated ? "rotated-labels" : ""}`, dir: direction(source) },
      element("caption", {}, "Columns are source tokens; rows are output tokens. A stronger colour means a higher weight."),
      element("thead", {}, head), element("tbody", {}, ...rows)));
}
