"""Run by a Python that has llama_cpp: a GGUF file's logits and greedy tokens for given prompts.

    python llama_cpp_runner.py MODEL.gguf PROMPTS.json OUT.npz

PROMPTS holds {"prompts": [text or list of ids], "num_tokens": n}. OUT holds, for prompt i, `ids_i`,
`logits_i` after each of the ids and after each greedy token but the last, and `greedy_i`.
"""

import json
import sys

import numpy as np
from llama_cpp import Llama


def main(model: str, prompts: str, out: str) -> None:
    with open(prompts, encoding="utf-8") as file:
        wanted = json.load(file)
    # fp32 keys and values: their own rounding is not what is tested. One token at a time: matrix
    # kernels for AMX crash on some virtual machines, on llama.cpp's own files as well.
    options = {"n_ctx": 128, "n_batch": 1, "n_threads": 1, "type_k": 0, "type_v": 0}
    llama = Llama(model, logits_all=True, verbose=False, **options)
    results = {}
    for i, prompt in enumerate(wanted["prompts"]):
        is_text = isinstance(prompt, str)
        ids = llama.tokenize(prompt.encode(), add_bos=True, special=True) if is_text else prompt
        llama.reset()
        llama.eval(ids)
        greedy: list[int] = []
        while len(greedy) < wanted["num_tokens"]:
            if greedy:
                llama.eval(greedy[-1:])
            greedy.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
        results |= {f"ids_{i}": ids, f"greedy_{i}": greedy}
        results[f"logits_{i}"] = np.array(llama.scores[: llama.n_tokens])
    np.savez(out, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
