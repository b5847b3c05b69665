// The ONNX modules of a model: one source encoded, and decoded step by step.

const int64 = (numbers) => BigInt64Array.from(numbers, BigInt);

export class Model {
  // `ort`: ONNX Runtime; `encoder`, `decoder`: its sessions; `description`: the content of model.json;
  // `vocabulary`: the number of target tokens in it.
  constructor(ort, encoder, decoder, description, vocabulary) {
    Object.assign(this, { ort, encoder, decoder, description, vocabulary });
  }

  tensor(type, values, dims) {
    return new this.ort.Tensor(type, values, dims);
  }

  // What `beamSearch` decodes: `step` and `select`. `ids` and `copies` include the end of the source. The weights of a
  // step are those of all heads, as nested arrays, or with `averaged` the average over the heads of the displayed layer.
  async decoding({ ids, copies, pins, ablated }, averaged = false) {
    const { layers, heads, attention_layer: displayed } = this.description;
    const weightsOf = (values) => averaged ? average(part({ data: values, dims: [layers] }, displayed), heads) : nested(values, [layers, heads, ids.length]);
    const mask = Uint8Array.from({ length: layers * heads }, (_, i) => Number(ablated.some(([layer, head]) => layer * heads + head === i)));
    const encoded = await this.encoder.run({
      source: this.tensor("int64", int64(ids), [1, ids.length]),
      lengths: this.tensor("int64", int64([ids.length]), [1]),
    });
    const memory = withPrefix(encoded, "memory.");
    const repeated = new Map(); // what does not change between steps, by the number of rows
    const fixed = (count) => {
      const all = Array(count).fill(0);
      if (!repeated.has(count)) repeated.set(count, {
        ...mapValues(memory, (value) => this.gather(value, all)),
        copies: copies && this.tensor("int64", int64(all.flatMap(() => copies)), [count, copies.length]),
        ablated: this.tensor("bool", mask, [layers, heads]),
      });
      return repeated.get(count);
    };
    let states = withPrefix(encoded, "state.");
    return {
      step: async (tokens, number) => {
        const count = tokens.length;
        const pinned = ids.map((_, i) => pins[number]?.[i] ?? NaN);
        const outputs = await this.run({
          ...fixed(count), ...states,
          token: this.tensor("int64", int64(tokens), [count]),
          step: this.tensor("int64", int64([number]), []),
          pinned: this.tensor("float32", Float32Array.from(tokens.flatMap(() => pinned)), [count, ids.length]),
        });
        if (outputs.log_probs.dims[1] !== this.vocabulary + (copies?.length ?? 0)) throw new Error("model.json does not fit decoder.onnx: export the model again");
        states = Object.fromEntries(Object.entries(withPrefix(outputs, "next.")).map(([name, value]) => [name.replace("next.", "state."), value]));
        return tokens.map((_, row) => ({
          logProbs: part(outputs.log_probs, row),
          weights: outputs.weights ? weightsOf(part(outputs.weights, row)) : null,
        }));
      },
      select: (rows) => {
        states = mapValues(states, (value) => this.gather(value, rows));
      },
    };
  }

  // A step of the decoder; inputs that it has no use for are absent from its graph.
  run(inputs) {
    return this.decoder.run(Object.fromEntries(this.decoder.inputNames.map((name) => [name, inputs[name]])));
  }

  gather(tensor, rows) {
    const [, ...rest] = tensor.dims;
    const size = rest.reduce((product, dim) => product * dim, 1);
    const data = new tensor.data.constructor(rows.length * size);
    rows.forEach((row, i) => data.set(part(tensor, row), i * size));
    return this.tensor(tensor.type, data, [rows.length, ...rest]);
  }
}

const mapValues = (tensors, change) => Object.fromEntries(Object.entries(tensors).map(([name, value]) => [name, change(value)]));
const withPrefix = (tensors, prefix) => Object.fromEntries(Object.entries(tensors).filter(([name]) => name.startsWith(prefix)));

// The values of one row.
const part = ({ data, dims: [count] }, row) => data.subarray((row * data.length) / count, ((row + 1) * data.length) / count);

// The average of `count` rows of flat values.
function average(values, count) {
  const size = values.length / count;
  return Float32Array.from({ length: size }, (_, i) => {
    let total = 0;
    for (let head = 0; head < count; head++) total += values[head * size + i];
    return total / count;
  });
}

// Flat values as nested arrays of this shape.
export function nested(values, [count, ...rest]) {
  if (!rest.length) return [...values];
  const size = values.length / count;
  return Array.from({ length: count }, (_, i) => nested(values.subarray(i * size, (i + 1) * size), rest));
}
