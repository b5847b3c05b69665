"""Translate lines: python translate.py < lines. Needs numpy, onnxruntime, tokenizers."""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

try:
    import numpy as np
    import onnxruntime
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"translate.py needs {error.name}: pip install numpy onnxruntime tokenizers")
from tokens import BOS, EOS, PAD, UNK, Tokenizer

MAX_TOKENS = 10_000


class Model:
    def __init__(self, folder):
        for name, expected in json.loads(Path(folder, "checksums.json").read_text()).items():
            if hashlib.sha256(Path(folder, name).read_bytes()).hexdigest() != expected:
                raise ValueError(f"{name} is damaged; export the model again")
        files = (Path(folder, f"{name}.json") for name in ("model", "dictionary"))
        self.info, self.listed = (json.loads(file.read_text("utf-8")) for file in files)
        self.source, self.target = Tokenizer(self.info["source"]), Tokenizer(self.info["target"])
        graphs = (Path(folder, f"{name}.onnx") for name in ("encoder", "decoder"))
        self.encoder, self.decoder = map(onnxruntime.InferenceSession, graphs)

    def translate(self, line, beam_size=5, n_best=1):
        """Return the best outputs, one if beam_size is 1: text, log_prob and, of a search, tokens, score, attention."""
        line = line[:-1].removesuffix("\r") if line.endswith("\n") else line
        key = self.source.normalize(self.source.parse(line)[0]).strip()
        found = [{"text": text, "log_prob": 0.0} for text in self.listed.get(key, [""] * (not key))]
        return found[:n_best] or self.search(line, beam_size, n_best)

    def search(self, line, beam_size, n_best):
        tokens, ids = self.source.encode(line)
        beam_size = max(beam_size, n_best) if beam_size > 1 else 1  # greedy search remains greedy
        if len(ids) > MAX_TOKENS:
            raise ValueError(f"a text has {len(ids)} tokens, above {MAX_TOKENS}; split the text")
        info, vocabulary = self.info, len(self.target.tokens)
        features = len(self.source.features(line))  # which a model that copies tokens does not copy
        copied = tokens[: len(tokens) - features]
        names = self.target.tokens + [t for t in dict.fromkeys(copied) if t not in self.target.ids]
        known = {name: id for id, name in enumerate(names)} | self.target.ids
        copies = [*map(known.get, copied), *[PAD] * features, EOS]
        limit = min(info["longest_target"], MAX_TOKENS) + 2 * len(copies)
        divisors = [((5 + n) / 6) ** info["length_penalty"] for n in range(limit + 2)]
        rows = run(self.encoder, {"source": [[*ids, EOS]], "lengths": [len(copies)]})
        rows |= {"copies": np.array([copies]), "pinned": np.full((1, len(copies)), np.nan, "f")}
        unattended = np.zeros((beam_size, 1, 1, 0))
        fixed = {"ablated": np.zeros((info["layers"], info["heads"]), bool)}
        beams, finished = [([BOS], 0.0, [])], []  # ids, log-probability and attention
        for step in range(limit + 1):
            last = [path[-1] if path[-1] < vocabulary else UNK for path, _, _ in beams]
            output = run(self.decoder, rows | fixed | {"token": last, "step": step})
            if output["log_probs"].shape[1] != vocabulary + info["copying"] * len(copies):
                raise ValueError("model.json does not fit decoder.onnx; export the model again")
            weights = output.get("weights", unattended)[:, info["attention_layer"]].mean(1)
            totals = output["log_probs"] + np.array([[total] for _, total, _ in beams])
            totals[:, [PAD, BOS] if step < limit else np.arange(totals.shape[1]) != EOS] = -np.inf
            candidates = (-totals).argsort(axis=None)[: 2 * beam_size if beam_size > 1 else 1]
            candidates = candidates[totals.flat[candidates] > -np.inf]
            if np.isnan(totals).any() or not (candidates.size or finished):
                raise ValueError(
                    "the log-probabilities are infinite or NaN; export the model again"
                )
            parents, following = [], []
            for parent, id in zip(*np.unravel_index(candidates, totals.shape), strict=True):
                (path, _, attention), total = beams[parent], float(totals[parent, id])
                if id == EOS:
                    kept = [*attention, weights[parent]][info["attention_delay"] :][: len(path) - 1]
                    found = {"tokens": [names[id] for id in path[1:]], "attention": kept}
                    found |= {"log_prob": total, "score": total / divisors[step + 1]}
                    finished.append(found | {"text": self.target.decode(found["tokens"])})
                elif len(following) < beam_size:
                    parents.append(parent)
                    following.append(([*path, int(id)], total, [*attention, weights[parent]]))
            finished = sorted(finished, key=lambda output: -output["score"])[:n_best]
            bound = following[0][1] / divisors[-1] if following else -np.inf
            if not following or (len(finished) == n_best and finished[-1]["score"] >= bound):
                return finished
            rows |= {name.replace("next", "state"): value for name, value in output.items()}
            rows, beams = {name: value[parents] for name, value in rows.items()}, following


def run(session, feeds):
    inputs = {node.name: np.asarray(feeds[node.name]) for node in session.get_inputs()}
    return {node.name: out for node, out in zip(session.get_outputs(), session.run(None, inputs))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--beam-size",
        type=int,
        default=5,
        choices=range(1, 101),
        metavar="K",
        help="1 to 100 (default 5)",
    )
    parser.add_argument("--confidence", action="store_true", help="append probability and margin")
    args, model = parser.parse_args(), Model(Path(__file__).parent)
    if sys.stdout is None:
        raise ValueError("standard output is closed")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    for number, data in enumerate(open(0, "rb"), start=1):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            if "\0" in line:
                raise ValueError("it contains NUL; convert the lines to UTF-8 first")
            outputs = model.translate(line, args.beam_size, 2 if args.confidence else 1)
        except UnicodeDecodeError:
            raise ValueError(
                f"line {number}: not UTF-8; convert the lines to UTF-8 first"
            ) from None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        first, *others = [(output["text"], float(np.exp(output["log_prob"]))) for output in outputs]
        margin = first[1] - max((other for text, other in others if text != first[0]), default=0)
        columns = [f"{first[1]:.6f}", f"{margin:.6f}"] if args.confidence else []
        print(first[0].translate(dict.fromkeys(b"\t\r\n", " ")), *columns, sep="\t", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception as error:  # a damaged folder, or lines that are not UTF-8
        sys.exit(f"translate.py: {type(error).__name__}: {error}")
