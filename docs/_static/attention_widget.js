"use strict";
/* One attention step over vectors in the plane, which the reader changes.
 *
 * A page contains <div class="attention-widget" data-query="1,2" data-keys="1,0;0,1;1,1" data-score="dot">.
 * `regardAttention.attend` computes scores, weights and context in float64, as `regard.explain` does.
 */
const regardAttention = (() => {
  const LIMIT = 3;
  const UNIT = 52; // pixels
  const SVG = "http://www.w3.org/2000/svg";
  const MAX_KEYS = 6;
  const SUBSCRIPTS = "₀₁₂₃₄₅₆";

  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const norm = (a) => Math.max(Math.sqrt(dot(a, a)), 1e-12); // the cosine of the vector 0 is 0
  const times = (matrix, vector) => matrix.map((row) => dot(row, vector));
  const transposed = (matrix) => matrix[0].map((_, i) => matrix.map((row) => row[i]));
  const tanhScore = (v, a, b) => dot(v, a.map((x, i) => Math.tanh(x + b[i])));
  const identity = () => [[1, 0], [0, 1]];

  /* Formulas as in lesson 3; `parameters` are the default values. */
  const SCORES = {
    dot: { formula: "s · h", parameters: () => ({}), compute: dot },
    scaled_dot: {
      formula: "s · h / √D, D = 2",
      parameters: () => ({}),
      compute: (s, h) => dot(s, h) / Math.sqrt(s.length),
    },
    cosine: {
      formula: "s · h / (|s| |h| τ)",
      parameters: () => ({ τ: [[1]] }),
      compute: (s, h, p) => dot(s, h) / (norm(s) * norm(h) * p.τ[0][0]),
    },
    bilinear: {
      formula: "sᵀ W h",
      parameters: () => ({ W: identity() }),
      compute: (s, h, p) => dot(s, times(p.W, h)),
    },
    inner_product: {
      formula: "sᵀ W h, W = A Aᵀ",
      parameters: () => ({ A: identity() }),
      compute: (s, h, p) => dot(times(transposed(p.A), s), times(transposed(p.A), h)),
    },
    additive: {
      formula: "v · tanh(W s + U h)",
      parameters: () => ({ W: identity(), U: identity(), v: [[1, 1]] }),
      compute: (s, h, p) => tanhScore(p.v[0], times(p.W, s), times(p.U, h)),
    },
    concat: {
      formula: "v · tanh(W [s; h])",
      parameters: () => ({ W: [[1, 0, 1, 0], [0, 1, 0, 1]], v: [[1, 1]] }),
      compute: (s, h, p) => tanhScore(p.v[0], times(p.W, [...s, ...h]), p.v[0].map(() => 0)),
    },
  };

  /* Return scores, exponentials, their sum, weights and context of one query. */
  function attend(name, query, keys, parameters = SCORES[name].parameters()) {
    const scores = keys.map((key) => SCORES[name].compute(query, key, parameters));
    const largest = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - largest));
    const sum = powers.reduce((a, b) => a + b, 0);
    const weights = powers.map((power) => power / sum);
    const context = query.map((_, d) => dot(weights, keys.map((key) => key[d])));
    return { scores, partition: sum * Math.exp(largest), weights, context };
  }

  function html(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  function svg(name, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const shown = (value) => (Number.isFinite(value) ? value.toFixed(4).replace("-", "−") : "undefined");
  const limited = (value) => Math.max(-LIMIT, Math.min(LIMIT, Math.round(value * 10) / 10));
  const vectorName = (i) => (i < 0 ? "s" : `h${SUBSCRIPTS[i + 1]}`);
  const parsed = (text) => text.split(";").map((row) => row.split(",").map(Number));

  class Widget {
    constructor(root) {
      this.root = root;
      this.reset();
      this.build();
      this.update();
    }

    reset() {
      const { query, keys, score } = this.root.dataset;
      this.query = parsed(query)[0];
      this.keys = parsed(keys);
      this.choose(score);
    }

    choose(score) {
      this.score = score;
      this.parameters = SCORES[score].parameters();
    }

    vector(i) {
      return i < 0 ? this.query : this.keys[i];
    }

    build() {
      const names = Object.keys(SCORES).map((name) => html("option", { value: name }, name));
      this.select = html("select", {}, ...names);
      this.select.addEventListener("change", () => {
        this.choose(this.select.value);
        this.update(true);
      });
      this.formula = html("span", { class: "formula-text" });
      this.parameterBox = html("div", { class: "parameters" });
      this.table = html("table", { class: "vectors" });
      this.result = html("output", { class: "result" });
      this.plane = svg("svg", {
        viewBox: `${-LIMIT * UNIT - 16} ${-LIMIT * UNIT - 16} ${2 * LIMIT * UNIT + 32} ${2 * LIMIT * UNIT + 32}`,
        role: "group",
        "aria-label": "query, keys and context in the plane",
      });
      this.drawGrid();
      this.cloud = this.plane.appendChild(svg("g"));
      this.points = this.plane.appendChild(svg("g"));
      this.mark = this.plane.appendChild(svg("g", { class: "context" }));
      const button = (label, act) => {
        const element = html("button", { type: "button" }, label);
        element.addEventListener("click", () => {
          act();
          this.update(true);
        });
        return element;
      };
      this.add = button("Add a key", () => this.keys.push([limited(1 - this.keys.length), 1.5]));
      this.remove = button("Remove a key", () => this.keys.pop());
      const reset = button("Reset", () => this.reset());
      this.root.replaceChildren(
        html("div", { class: "plane" }, this.plane),
        html(
          "div",
          { class: "numbers" },
          html("label", {}, "score ", this.select),
          this.formula,
          this.parameterBox,
          html("div", { class: "scroll" }, this.table),
          this.result,
          html("div", { class: "buttons" }, this.add, this.remove, reset),
        ),
      );
      this.plane.addEventListener("pointermove", (event) => this.drag(event));
      for (const name of ["pointerup", "pointercancel"]) {
        this.plane.addEventListener(name, () => (this.dragged = undefined));
      }
      this.rebuild();
    }

    drawGrid() {
      for (let i = -LIMIT; i <= LIMIT; i++) {
        const at = i * UNIT;
        const end = LIMIT * UNIT;
        const line = { class: i === 0 ? "axis" : "grid" };
        this.plane.append(
          svg("line", { ...line, x1: at, x2: at, y1: -end, y2: end }),
          svg("line", { ...line, x1: -end, x2: end, y1: at, y2: at }),
        );
      }
    }

    /* Create the elements whose number depends on the score and the keys. */
    rebuild() {
      this.points.replaceChildren();
      this.handles = [...this.keys.keys(), -1].map((i) => this.handle(i));
      const head = ["", "x", "y", "score e", "weight α"].map((text) => html("th", { scope: "col" }, text));
      this.rows = [-1, ...this.keys.keys()].map((i) => this.row(i));
      this.table.replaceChildren(
        html("thead", {}, html("tr", {}, ...head)),
        html("tbody", {}, ...this.rows.map((row) => row.element)),
      );
      this.parameterBox.replaceChildren(
        ...Object.entries(this.parameters).map(([letter, rows]) => this.matrix(letter, rows)),
      );
      this.add.disabled = this.keys.length >= MAX_KEYS;
      this.remove.disabled = this.keys.length <= 1;
    }

    handle(i) {
      const shape = svg("circle", { r: 7 });
      const label = svg("text", { x: 11, y: -9 }, vectorName(i));
      const group = svg("g", { class: i < 0 ? "handle query" : "handle key", tabindex: 0, role: "button" }, shape, label);
      group.addEventListener("pointerdown", (event) => {
        this.dragged = i;
        this.plane.setPointerCapture(event.pointerId);
        group.focus();
        event.preventDefault();
      });
      group.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
        if (!move) return;
        event.preventDefault();
        event.stopPropagation(); // the page turns on arrow keys
        const vector = this.vector(i);
        move.forEach((change, d) => (vector[d] = limited(vector[d] + change / 10)));
        this.update();
      });
      this.points.append(group);
      return { i, group, shape };
    }

    drag(event) {
      if (this.dragged === undefined) return;
      const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(
        this.plane.getScreenCTM().inverse(),
      );
      const vector = this.vector(this.dragged);
      vector[0] = limited(x / UNIT);
      vector[1] = limited(-y / UNIT);
      this.update();
    }

    row(i) {
      const inputs = [0, 1].map((d) => this.input(this.vector(i), d, `${vectorName(i)} ${"xy"[d]}`));
      const score = html("td", { class: "number" });
      const bar = html("span", { class: "bar" });
      const weight = html("span", { class: "number" });
      const cells = inputs.map((input) => html("td", {}, input));
      const name = html("th", { scope: "row" }, i < 0 ? "query s" : `key ${vectorName(i)}`);
      const element = html("tr", {}, name, ...cells);
      if (i >= 0) element.append(score, html("td", {}, weight, bar));
      return { i, inputs, score, bar, weight, element };
    }

    input(vector, d, label) {
      const element = html("input", { type: "number", step: 0.1, min: -LIMIT, max: LIMIT, "aria-label": label });
      element.addEventListener("input", () => {
        if (!Number.isFinite(element.valueAsNumber)) return;
        vector[d] = Math.max(-LIMIT, Math.min(LIMIT, element.valueAsNumber));
        this.update();
      });
      element.addEventListener("keydown", (event) => event.stopPropagation());
      element.refresh = () => {
        if (document.activeElement !== element) element.value = vector[d];
      };
      return element;
    }

    matrix(letter, rows) {
      const lines = rows.map((row, i) =>
        html("tr", {}, ...row.map((_, d) => {
          const input = this.input(row, d, `${letter} row ${i + 1} column ${d + 1}`);
          input.refresh();
          return html("td", {}, input);
        })),
      );
      return html("div", { class: "matrix" }, `${letter} = `, html("table", {}, ...lines));
    }

    update(isRebuilt = false) {
      if (isRebuilt) this.rebuild();
      const { scores, partition, weights, context } = attend(this.score, this.query, this.keys, this.parameters);
      this.select.value = this.score;
      this.formula.textContent = `e = ${SCORES[this.score].formula}`;
      for (const { i, inputs, score, bar, weight } of this.rows) {
        inputs.forEach((input) => input.refresh());
        if (i < 0) continue;
        score.textContent = shown(scores[i]);
        weight.textContent = shown(weights[i]);
        bar.style.width = `${Number.isFinite(weights[i]) ? 4 * weights[i] : 0}em`;
      }
      for (const { i, group, shape } of this.handles) {
        const [x, y] = this.vector(i);
        group.setAttribute("transform", `translate(${x * UNIT} ${-y * UNIT})`);
        group.setAttribute("aria-label", `${vectorName(i)}, ${x}, ${y}; arrow keys move it`);
        if (i >= 0) shape.setAttribute("r", 5 + 7 * Math.sqrt(weights[i] || 0));
      }
      this.drawContext(weights, context);
      this.result.dataset.numbers = JSON.stringify({ scores, partition, weights, context });
      const terms = weights.map((weight, i) => `${Number.isFinite(weight) ? weight.toFixed(2) : "?"} ${vectorName(i)}`);
      this.result.replaceChildren(
        html("div", {}, `Z = Σ exp(e) = ${shown(partition)}`),
        html("div", {}, `c = ${terms.join(" + ")}`),
        html("div", { class: "context" }, `c = [${context.map(shown).join(", ")}]`),
      );
    }

    /* Draw a line from every key to the context, as wide as its weight. */
    drawContext(weights, context) {
      this.cloud.replaceChildren();
      this.mark.replaceChildren();
      if (!context.every(Number.isFinite)) return;
      const [x, y] = [context[0] * UNIT, -context[1] * UNIT];
      const lines = this.keys.map((key, i) =>
        svg("line", { class: "share", x1: key[0] * UNIT, y1: -key[1] * UNIT, x2: x, y2: y, "stroke-width": 1 + 8 * weights[i] }),
      );
      const arrow = svg("line", { class: "query-line", x1: 0, y1: 0, x2: this.query[0] * UNIT, y2: -this.query[1] * UNIT });
      this.cloud.append(arrow, ...lines);
      this.mark.append(
        svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10 }),
        svg("text", { x: x - 20, y: y + 17 }, "c"),
      );
    }
  }

  for (const root of document.querySelectorAll(".attention-widget")) root.widget = new Widget(root);
  return { SCORES, attend };
})();
