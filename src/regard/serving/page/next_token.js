// The probabilities of the next token at one step, before and after an intervention.
import { END, FONT_FAMILY, displayToken, element, formatPercent, panel, textWidth } from "./dom.js";
import { changesDistribution } from "./interventions.js";

const ROWS = 10;
const DELAY = 120; // milliseconds that the slider rests before the distribution is requested

export class NextToken {
  constructor(view) {
    this.view = view;
    this.subject = element("p", { class: "hint" });
    this.rows = element("div");
    this.key = null; // of the distribution that is shown
    this.after = element("p", { class: "hint" });
    this.node = panel("Next token", { help: "next-token", name: "next-token" }, this.subject, this.rows, this.after);
    this.before = new Map(); // distributions without interventions, by text and output so far
  }

  render() {
    clearTimeout(this.timer);
    const { output, step, interventions } = this.view;
    const distribution = output.top_logprobs?.[step];
    this.node.hidden = !distribution;
    if (!distribution) return;
    const prefix = output.tokens.slice(0, step);
    this.subject.textContent = `What the model predicts after “${["<s>", ...prefix.slice(-3).map(displayToken)].slice(prefix.length > 3 ? 1 : 0).join(" ")}”. Click a token to force it.`;
    const key = this.key = JSON.stringify([output.source, prefix]);
    const changed = changesDistribution(interventions, step);
    this.show(distribution, changed ? this.before.get(key) ?? [] : null);
    this.showEnd();
    if (changed && !this.before.has(key)) this.timer = setTimeout(() => this.request(key, prefix), DELAY);
  }

  async request(key, prefix) {
    const { view } = this;
    try {
      this.before.set(key, await view.page.engine.nextTokens(view.number, view.output.source, prefix));
    } catch ({ message }) { // requested again at the next change
      if (key === this.key) this.after.textContent = `The probabilities before the intervention are missing: ${message}`;
      return;
    }
    view.keepFocus(() => this.render());
  }

  // `before`: null without interventions, empty while it is being requested.
  show(now, before) {
    const { view } = this;
    const chosen = view.output.tokens[view.step] ?? null;
    const probabilities = (list) => new Map(list.map(({ token, log_prob: logProb }) => [token, Math.exp(logProb)]));
    const [after, earlier] = [probabilities(now), probabilities(before ?? [])];
    const highest = (token) => Math.max(after.get(token) ?? 0, earlier.get(token) ?? 0);
    const tokens = [...new Set([...after.keys(), ...earlier.keys()])].sort((a, b) => highest(b) - highest(a)).slice(0, ROWS);
    const widths = tokens.map((token) => textWidth(displayToken(token ?? END), `700 13px ${FONT_FAMILY}`));
    const row = (token) => element("tr", { class: token === chosen ? "chosen" : "" },
      element("th", { scope: "row" }, this.label(token, token === chosen)),
      before && cell(earlier, token, "before", before.length > 0),
      cell(after, token, before ? "after" : "", true));
    const forced = view.step < view.interventions.prefix.length;
    this.rows.replaceChildren(element("table", { style: { "--label": `${Math.min(120, Math.max(...widths) + 16)}px` } },
      element("caption", {}, forced ? "The token at this step is forced by the prefix." : ""),
      before && element("thead", {}, element("tr", {}, element("td"),
        element("th", { scope: "col" }, "before"), element("th", { scope: "col", class: "after" }, "after"))),
      element("tbody", {}, ...tokens.map(row))));
  }

  label(token, isChosen) {
    if (token === null) return element("span", { class: "token end", tabindex: 0, "data-help": "end" }, END);
    const { view } = this;
    return element("button", {
      type: "button", class: "token", "data-focus": `next ${token}`,
      "aria-label": `${displayToken(token)}: ${isChosen ? "selected in this output" : "force this token"}`,
      onclick: () => view.forcePrefix([...view.output.tokens.slice(0, view.step), token]),
    }, element("bdi", {}, displayToken(token)));
  }

  // At the last token: the probability that the output ends there.
  showEnd() {
    const { tokens, top_logprobs: all } = this.view.output;
    const last = this.view.step === tokens.length - 1 ? all[tokens.length] : undefined;
    const entries = (last ?? []).slice(0, 3).flatMap(({ token, log_prob: logProb }, n) => [
      n ? ", " : "Most probable after this token: ", element("bdi", {}, token === null ? END : displayToken(token)), ` ${formatPercent(Math.exp(logProb))}`,
    ]);
    this.after.replaceChildren(...entries, last ? "." : "");
  }
}

// A token that is not among the listed ones is less probable than the last of them.
function cell(probabilities, token, name, known) {
  if (!known) return element("td", { class: name }, element("span", { class: "value" }, "…"));
  const probability = probabilities.get(token);
  const value = probability === undefined ? `< ${formatPercent(Math.min(...probabilities.values())).replace("< ", "")}` : formatPercent(probability);
  return element("td", { class: name, "data-probability": probability?.toFixed(4) },
    element("span", { class: "meter", style: { "--weight": probability ?? 0 } }),
    element("span", { class: "value" }, value));
}
