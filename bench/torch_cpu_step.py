#!/usr/bin/env python3
"""Times one full fp32 training step of a small Llama in plain PyTorch on the CPU.

The step is transformers' LlamaForCausalLM with sdpa attention: forward, loss, backward, clip to norm
1.0 and AdamW, with a batch of one sequence. It is the yardstick for untied's CPU step on the same
machine and shape. Prints one JSON line with medians over the timed steps, after the warm-up ones.
cpu_seconds counts the process's CPU time over all its threads: on a machine that others load, it is
the steadier number for --threads 1.

  .venv/bin/python bench/torch_cpu_step.py --context 4096 --threads 1

tests/fixtures/requirements.txt tells how to make .venv.
"""

import argparse
import json
import statistics
import time


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time a PyTorch CPU training step of a small Llama.")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--ffn", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.kv_heads,
        intermediate_size=arguments.ffn,
        vocab_size=arguments.vocab,
        max_position_embeddings=arguments.context,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).train()
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    tokens = torch.randint(0, arguments.vocab, (1, arguments.context))

    def step() -> tuple[float, float]:
        """The wall and CPU seconds of one step."""
        start, start_cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.perf_counter() - start, time.process_time() - start_cpu

    for _ in range(arguments.warmup):
        step()
    times, cpu_times = zip(*(step() for _ in range(arguments.steps)))
    seconds = statistics.median(times)
    print(
        json.dumps(
            {
                "seconds": round(seconds, 4),
                "tokens_per_second": round(arguments.context / seconds, 1),
                "min_seconds": round(min(times), 4),
                "max_seconds": round(max(times), 4),
                "cpu_seconds": round(statistics.median(cpu_times), 4),
                "threads": arguments.threads,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "context": arguments.context,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
