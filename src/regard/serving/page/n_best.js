// The best outputs with the score that ranks them and their probability.
import { element, formatPercent, helpButton } from "./dom.js";

export const EMPTY = "(empty output)";

export function nBest(view) {
  const outputs = view.translation.n_best ?? [view.translation];
  return element("div", {},
    element("div", { class: "n-best-head" }, element("span", {}),
      element("span", {}, "score", helpButton("score", "score")),
      element("span", {}, "probability", helpButton("probability", "probability"))),
    element("ol", { class: "n-best" }, ...outputs.map((output, rank) => element("li", {},
      element("button", {
        type: "button", "data-focus": `n-best ${rank}`, "aria-pressed": rank === view.rank,
        class: rank === view.rank ? "selected" : "", onclick: () => view.selectOutput(rank),
      },
      element("bdi", {}, output.text || EMPTY),
      element("span", { class: "number score" }, output.score.toFixed(2)),
      element("span", { class: "number probability" }, formatPercent(Math.exp(output.log_prob))))))));
}
