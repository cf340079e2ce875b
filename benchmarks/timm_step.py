# SPDX-License-Identifier: Apache-2.0
"""Times training steps of a model of timm, as `vit_jax.benchmark step` does ours.

  python benchmarks/timm_step.py --model=vit_small_patch16_224 --batch_size=16
  python benchmarks/timm_step.py --model=vit_large_patch16_224 --batch_size=256 \
      --device=cuda --dtype=bfloat16 --compile --steps=50

Forward, backward and AdamW on a batch that lies on the device, cross-entropy over 1,000
classes; bfloat16 is autocast over float32 parameters. It needs torch and timm, which
`make bench-peers` installs into an environment of its own, and prints one JSON line.
"""

import argparse
import json
import statistics
import sys
import time
import types


def main() -> None:
    """Times the model that the command line names."""
    args = parse()
    # timm imports torchvision, whose operators may be missing beside a torch for CPUs;
    # the module that fails only describes them to the compiler.
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, types.ModuleType(name))
    import timm
    import torch

    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    model = timm.create_model(args.model, num_classes=1000).to(device).train()
    side = model.patch_embed.img_size[0]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, weight_decay=0.1, fused=device.type == "cuda"
    )
    image = torch.randn(args.batch_size, 3, side, side, device=device)
    label = torch.randint(0, 1000, (args.batch_size,), device=device)
    run = torch.compile(model) if args.compile else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            device.type, torch.bfloat16, enabled=args.dtype == "bfloat16"
        ):
            loss = torch.nn.functional.cross_entropy(run(image), label)
        loss.backward()
        optimizer.step()
        loss.item()  # Waits for the device.

    seconds = []
    for _ in range(args.warmup + args.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    timed = seconds[args.warmup :]
    rate = args.batch_size * len(timed) / sum(timed)
    result = {
        "benchmark": "step",
        "peer": f"timm {timm.__version__}, torch {torch.__version__}",
        "model": args.model,
        "resolution": side,
        "dtype": args.dtype,
        "compiled": args.compile,
        "batch_size": args.batch_size,
        "steps": len(timed),
        "images_per_second": round(rate, 2),
        "median_step_ms": round(1000 * statistics.median(timed), 2),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))


def parse() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not told")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--tf32", action="store_true", help="float32 products in TF32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
