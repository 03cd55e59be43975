"""From a text to a picture of its heads, in Python. Takes about a minute on two CPU cores.

Run: python examples/train_and_look.py [FILE.txt]
"""

import sys
from pathlib import Path

import numpy as np
import torch

from headwise import generate, load_model
from headwise.model.generation import default_prompt
from headwise.report.figures import save_figure
from headwise.report.heatmap import heatmaps
from headwise.training import RunConfig, train

data = sys.argv[1] if len(sys.argv) > 1 else "python-docs"
folder = Path("runs") / f"example-{Path(data).stem}"

config = RunConfig.from_toml(overrides={"data": data, "max_steps": 300, "eval_every": 100})
result = train(config, folder, resume=folder.exists())
print(f"validation loss {result.val_loss:.3f} after {result.steps} steps")

model, tokenizer = load_model(folder)
text = generate(model, tokenizer, default_prompt(tokenizer), max_new_tokens=40, temperature=0.8, seed=0)
print(text)

ids = tokenizer.encode(text)[:32]
_, weights = model(torch.tensor([ids]), return_weights=True)
figure = heatmaps(weights, tokenizer.labels(ids), visible=np.tri(len(ids), dtype=bool))
save_figure(figure, folder / "heads.png")
print(f"drew {folder / 'heads.png'}")
