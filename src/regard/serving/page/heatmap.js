// The map: source across, output down, darker for more attention. A table, so that it can be read aloud.
import { direction, element, share, spelled } from "./dom.js";

const FEW = 12; // columns whose cells have room for numbers

export function heatmap(view) {
  const { source_tokens: source, tokens } = view.output;
  const numbers = source.length <= FEW ? "numbers" : "";
  const long = source.length > FEW || source.some((token) => token.length > 9) ? "long" : "";
  const head = element("tr", {}, element("td"), ...source.map((token, i) =>
    element("th", { scope: "col", "data-source": i }, element("bdi", {}, spelled(token)))));
  const rows = tokens.map((token, t) =>
    element("tr", { class: t === view.step ? "chosen" : "", "data-step": t },
      element("th", { scope: "row", "data-target": t, onclick: () => view.choose(t) }, element("bdi", {}, spelled(token))),
      ...view.rows[t].map((weight, i) =>
        element("td", {
          "data-source": i,
          "data-target": t,
          style: { "--weight": Math.min(1, Math.max(0, weight)) },
          class: weight > 0.45 ? "dark" : "",
          title: `${token} looks at ${source[i]}: ${weight.toFixed(3)}`,
          onclick: () => view.choose(t),
        }, share(weight)))));
  return element("div", { class: "scroll" },
    element("table", { class: `heatmap ${numbers} ${long}`, dir: direction(source) },
      element("caption", {}, "source across, output down: the darker, the more it looked there"),
      element("thead", {}, head), element("tbody", {}, ...rows)));
}
