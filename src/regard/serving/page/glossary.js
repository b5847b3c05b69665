// Explanations of terms, displayed when an element with `data-help` is hovered or focused.
import { element } from "./dom.js";

export const GLOSSARY = {
  end: "</s> marks the end of a sequence. Every source ends with it, and an output is complete when the model predicts it.",
  start: "<s> marks the start of a sequence: the decoder's input before the first output token.",
  beam: "The number of hypotheses that beam search keeps at every step, but at least the number of outputs. A value of 1 with one output is greedy search, which always selects the most probable token.",
  outputs: "The number of best complete outputs to list.",
  weights: "The attention weights of one step: the share of each source token in the context vector from which the next token is predicted.",
  sum: "The weights of a step are normalised to sum to 1. A pinned weight keeps its value, and the others share the rest in proportion to their original values. The sum differs in models without a normaliser and where heads are ablated; in models with posterior attention, pins set the weights before the output token is known, and the bars show those after it.",
  alignment: "Lines connect each output token with the source tokens that it attends to. The thicker the line, the higher the weight.",
  "next-token": "The probability distribution over the vocabulary at this step, given the source and the output so far. If there are interventions, the probabilities before and after them are shown.",
  heads: "Every layer of a Transformer has several heads, each with its own attention weights. Ablating a head replaces its output with zeros.",
  members: "An ensemble averages the predictions of several models, its members, each with its own attention weights. Ablating a member replaces the output of its attention with zeros.",
  score: "The log-probability divided by the length penalty (5 + length) / 6. Outputs are ranked by this score.",
  probability: "The probability of the complete output: the product of the probabilities of its tokens, including </s>. If the right-to-left members of an ensemble rescore outputs, it is the geometric mean of this product and of theirs, weighted by the number of members.",
  tree: "The hypotheses of beam search. The percentage is the probability of a token given the tokens before it.",
  unknown: "This token is not in the model's vocabulary, so the model replaces it with the unknown token.",
};

const MARGIN = 8; // pixels between the tooltip, the element and the edges of the window

export function installTooltips() {
  const tooltip = element("div", { id: "tooltip", role: "tooltip", hidden: true });
  document.querySelector("main").append(tooltip);
  let owner = null;
  const hide = () => {
    owner?.removeAttribute("aria-describedby");
    owner = null;
    tooltip.hidden = true;
  };
  const show = (event) => {
    const target = event.target.closest?.("[data-help]");
    if (target === owner || (!target && owner === document.activeElement)) return;
    hide();
    if (!target || !(target.dataset.help in GLOSSARY)) return;
    owner = target;
    tooltip.textContent = GLOSSARY[target.dataset.help];
    tooltip.hidden = false;
    target.setAttribute("aria-describedby", "tooltip");
    place(tooltip, target.getBoundingClientRect());
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("click", (event) => { if (event.target.closest("button.help")) show(event); });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", () => { if (owner) place(tooltip, owner.getBoundingClientRect()); }, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}

// Below the element, or above it where there is no room; inside the window.
function place(tooltip, box) {
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.max(MARGIN, Math.min(box.left + box.width / 2 - width / 2, innerWidth - width - MARGIN));
  const below = box.bottom + MARGIN;
  const top = below + height + MARGIN <= innerHeight ? below : Math.max(MARGIN, box.top - height - MARGIN);
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${top}px`;
}
