"""An attention layer with any score, in a PyTorch model of your own.

python examples/attention_layer.py
"""

import torch

import regard


def main() -> None:
    """Attend from two queries to three keys, first with dot scores, then with additive ones."""
    keys = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    query = torch.tensor([[[1.0, 2.0]]])

    dot = regard.Attention(regard.Dot())
    context, weights = dot(query, keys, need_weights=True)
    print("scores ", regard.Dot()(query, keys)[0, 0].tolist())
    print("weights", [round(weight, 4) for weight in weights[0, 0].tolist()])
    print("context", [round(value, 4) for value in context[0, 0].tolist()])

    torch.manual_seed(1)
    additive = regard.Attention(regard.Additive(query_dim=2, key_dim=2, hidden_dim=8))
    lengths = torch.tensor([2])  # the third key is padding: it never matters
    context, weights = additive(query, keys, key_lengths=lengths, need_weights=True)
    print("additive, two keys:", [round(weight, 4) for weight in weights[0, 0].tolist()])
    context.sum().backward()  # every parameter of the score learns


if __name__ == "__main__":
    main()
