// The attention calculation of the selected step: scores, softmax, context.
import { displayToken, element, formatWeight, scrollBox } from "./dom.js";
import { headPlace } from "./interventions.js";

export async function calculation(view) {
  const { output, step } = view;
  const layer = view.layer ?? (view.model.layers > 1 || view.model.heads > 1 ? view.model.attention_layer : null);
  const location = layer === null ? "" : `, ${headPlace(view.model, layer, view.head ?? 0)}`; // it may change until the answer comes
  const result = await view.page.engine.explain(view.number, output.source, output.tokens, step, layer, view.head ?? 0);
  const row = (name, cells) => element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell)));
  const shift = result.shift ? ` (after subtracting ${result.shift.toFixed(2)})` : "";
  const context = result.context.map((value) => value.toFixed(3)).join(", ");
  const more = result.context_dim > result.context.length ? ", …" : "";
  return element("div", {},
    element("p", { class: "hint" }, `Score function: ${result.score}, ${result.formula}${location}. These values are computed for this output with no interventions applied.`),
    scrollBox("attention calculation", element("table", { class: "calculation" },
      element("thead", {}, element("tr", {}, element("td"), ...output.source_tokens.map((token, i) =>
        element("th", { scope: "col", "data-source": i }, element("bdi", {}, displayToken(token)))))),
      element("tbody", {},
        row("score", result.scores.map((score) => score.toFixed(3))),
        row(`exp${shift}`, result.exponentials.map((value) => value.toPrecision(4))),
        row(`÷ Z = ${result.partition.toPrecision(5)}`, result.weights.map(formatWeight))))),
    element("p", { class: "hint" }, `Context (${result.context_dim} values): ${context}${more}`));
}
