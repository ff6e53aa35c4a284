#!/usr/bin/env python3
"""Losses of a few AdamW steps in transformers on a GPU, beside which `untied train` of the same model and rows is put.

  untied model init --model tiny --out model          # or any checkpoint
  python3 bench/transformers_losses.py --model model --write-rows rows.jsonl --context 1024 --steps 10
  untied train --device cuda --model model --data rows.jsonl --context 1024 --steps 10 --schedule constant --lr 1e-3 --out out --log out.jsonl
  python3 bench/transformers_losses.py --model model --rows rows.jsonl --steps 10 --lr 1e-3 --dtype bf16 --beside out.jsonl

Every row is one sequence of the whole context, so both read the same tokens in the same order. fp32: all in fp32, without TF32.
bf16: fp32 master weights, whose bf16 copies compute, as untied has it. Prints both losses and their difference, step by step.
"""
import argparse
import json
import random

import torch
from transformers import AutoModelForCausalLM


def write_rows(path: str, vocabulary: int, context: int, count: int) -> None:
    """Rows that can be learnt: a walk over the vocabulary with some noise."""
    source = random.Random(1)
    with open(path, "w") as file:
        for _ in range(count):
            token, row = source.randrange(vocabulary), []
            for _ in range(context):
                row.append(token)
                token = source.randrange(vocabulary) if source.random() < 0.1 else (3 * token + 7) % vocabulary
            file.write(json.dumps({"input_ids": row}) + "\n")


def train(model, rows: list[list[int]], steps: int, lr: float, dtype: torch.dtype) -> list[float]:
    master = {name: p.detach().float().clone().requires_grad_() for name, p in model.named_parameters()}
    decays = [p for p in master.values() if p.ndim >= 2]
    others = [p for p in master.values() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(steps):
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(master[name].to(dtype))
        ids = torch.tensor([rows[step % len(rows)]], device="cuda")
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
        model.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            master[name].grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(master.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--rows")
    arguments.add_argument("--write-rows")
    arguments.add_argument("--context", type=int, default=1024)
    arguments.add_argument("--steps", type=int, default=10)
    arguments.add_argument("--lr", type=float, default=1e-3)
    arguments.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    arguments.add_argument("--beside", help="the --log of untied's run")
    a = arguments.parse_args()
    if a.write_rows:
        with open(f"{a.model}/config.json") as file:
            write_rows(a.write_rows, json.load(file)["vocab_size"], a.context, a.steps)
        return
    with open(a.rows) as file:
        rows = [json.loads(line)["input_ids"] for line in file]
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype).cuda()
    theirs = train(model, rows, a.steps, a.lr, dtype)
    ours = [None] * a.steps
    if a.beside:
        with open(a.beside) as file:
            records = [json.loads(line) for line in file]
        ours = [r["loss"] for r in records if r["kind"] == "step"]
    print(f"{a.dtype}  step  transformers  untied  difference")
    for step, (t, o) in enumerate(zip(theirs, ours), 1):
        print(f"{step:10d}  {t:12.6f}  " + (f"{o:.6f}  {o / t - 1:+.1e}" if o is not None else "-"))


if __name__ == "__main__":
    main()
