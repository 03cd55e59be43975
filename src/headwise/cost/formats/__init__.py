"""Reading the `config.json` of Hugging Face models: one reader per `model_type`, and no guessing."""
