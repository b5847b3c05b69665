// The three moves of the chosen step, in numbers, asked of the server when they are looked at.
import { explain } from "./api.js";
import { element, share, spelled } from "./dom.js";

export async function moves(view) {
  const { output, step } = view;
  const layer = view.layer ?? (view.model.layers > 1 || view.model.heads > 1 ? view.model.attention_layer : null);
  const walk = await explain(view.number, output.source, output.tokens, step, layer, view.head ?? 0);
  const row = (name, cells) => element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell)));
  const which = layer === null ? "" : `, layer ${layer}, head ${view.head ?? 0}`;
  const shift = walk.shift ? ` (after taking off ${walk.shift.toFixed(2)})` : "";
  return element("div", {},
    element("p", { class: "hint" }, `${walk.score}${which}: score ${walk.formula}. What the model itself sees at this step of this output.`),
    element("div", { class: "scroll" }, element("table", { class: "moves" },
      element("thead", {}, element("tr", {}, element("td"), ...output.source_tokens.map((token, i) =>
        element("th", { scope: "col", "data-source": i }, element("bdi", {}, spelled(token)))))),
      element("tbody", {},
        row("score", walk.scores.map((score) => score.toFixed(3))),
        row(`exp${shift}`, walk.exponentials.map((power) => power.toPrecision(4))),
        row(`÷ Z = ${walk.partition.toPrecision(5)}`, walk.weights.map(share))))),
    element("p", { class: "hint" }, `context, ${walk.context_dim} numbers: ${walk.context.map((number) => number.toFixed(3)).join(", ")}${walk.context_dim > walk.context.length ? ", …" : ""}`));
}
