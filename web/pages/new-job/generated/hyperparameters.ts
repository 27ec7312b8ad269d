// Written by `npm run docs` from contract/hyperparameters.ts. Do not edit.
import type { HyperparameterGroup, HyperparameterInfo } from '../fields.ts'

export const method: HyperparameterInfo = { "name": "method", "description": "An adapter (`lora`), an adapter on the base in 4 bits (`qlora`), or all weights (`full`).", "type": "choice", "choices": [ "lora", "qlora", "full" ], "default": "lora" }

export const groups: readonly HyperparameterGroup[] = [
  {
    "name": "method_options",
    "entries": [
      { "name": "objective", "description": "What is learned: answers (`sft`), which of two answers is better (`dpo`), from answers rated as good or bad (`kto`), or from the scores that graders give the answers of the model itself (`reinforcement`). The rows must be of that kind; `reinforcement` takes the prompts of conversations and rated answers, too.", "type": "choice", "choices": [ "sft", "dpo", "kto", "reinforcement" ], "default": "sft" },
      { "name": "beta", "description": "For `dpo` and `kto`: how strongly the model is kept near the model that it starts from. Smaller: it may move further.", "type": "number", "above": 0, "maximum": 10, "default": 0.1 },
      { "name": "loss_type", "description": "For `dpo`: `sigmoid` (the loss of the paper), `ipo` (against overfitting to clear preferences) or `robust` (for preferences of which a known share, `label_smoothing`, is wrong).", "type": "choice", "choices": [ "sigmoid", "ipo", "robust" ], "default": "sigmoid" },
      { "name": "label_smoothing", "description": "For `dpo` with `sigmoid` or `robust`: the share of the preferences that is assumed to be wrong.", "type": "number", "minimum": 0, "maximum": 0.49, "default": 0 },
      { "name": "sft_weight", "description": "For `dpo`: weight of an added loss that teaches the chosen answers as `sft` does.", "type": "number", "minimum": 0, "maximum": 100, "default": 0 },
      { "name": "desirable_weight", "description": "For `kto`: weight of the answers rated as good. Raise it where they are few.", "type": "number", "above": 0, "maximum": 100, "default": 1 },
      { "name": "undesirable_weight", "description": "For `kto`: weight of the answers rated as bad. Raise it where they are few.", "type": "number", "above": 0, "maximum": 100, "default": 1 },
      { "name": "policy_loss", "description": "For `reinforcement`: what is minimized. `dapo` (mean over all tokens, clipped further upwards than downwards), `grpo` (mean of the means of answers), `dr_grpo` (sums over a constant, scores not divided by their deviation), `gspo` (ratios of whole answers), `cispo` (clips weights, never gradients) or `rloo` (scores less the mean of the others, no clipping).", "type": "choice", "choices": [ "dapo", "grpo", "dr_grpo", "gspo", "cispo", "rloo" ], "default": "dapo" },
      { "name": "group_size", "description": "For `reinforcement`: answers to each prompt in a step, which are compared with each other.", "type": "integer", "minimum": 2, "maximum": 64, "default": 8 },
      { "name": "max_tokens", "description": "For `reinforcement`: most tokens of an answer. A longer one is cut and graded as it is.", "type": "integer", "minimum": 1, "maximum": 4096, "default": 256 },
      { "name": "clip_low", "description": "For `reinforcement`: how far below 1 the ratio of probabilities may fall before it is clipped.", "type": "number", "above": 0, "maximum": 1, "default_words": "0.2; 0.0003 for `gspo`; 1 (none) for `cispo`" },
      { "name": "clip_high", "description": "For `reinforcement`: how far above 1 the ratio of probabilities may rise before it is clipped.", "type": "number", "above": 0, "maximum": 100, "default_words": "0.28 for `dapo`; 0.2 for `grpo` and `dr_grpo`; 0.0004 for `gspo`; 4 for `cispo`" },
      { "name": "importance_cap", "description": "For `reinforcement`: the most that a token weighs to correct the difference between the probabilities of the engine, which samples, and those of the trainer.", "type": "number", "minimum": 1, "maximum": 100, "default": 2 },
      { "name": "updates_per_step", "description": "For `reinforcement`: into how many updates the answers of a step are divided.", "type": "integer", "minimum": 1, "maximum": 16, "default": 1 },
      { "name": "refill_rounds", "description": "For `reinforcement`: how often further prompts are taken in a step for those whose answers all have the same score, and so teach nothing.", "type": "integer", "minimum": 0, "maximum": 10, "default": 2 },
      { "name": "evaluation_samples", "description": "For `reinforcement`: answers to each held-out prompt in an evaluation.", "type": "integer", "minimum": 1, "maximum": 64, "default": 1 }
    ]
  },
  {
    "name": "lora_config",
    "entries": [
      { "name": "r", "description": "Rank of the adapter: how much it can learn, and how large it is.", "type": "integer", "minimum": 8, "maximum": 64, "default": 16 },
      { "name": "alpha", "description": "Scale of the adapter: what it adds is multiplied by alpha / r.", "type": "integer", "minimum": 1, "maximum": 1024, "default_words": "twice `r`" },
      { "name": "dropout", "description": "Share of the adapter’s inputs that each training step drops.", "type": "number", "minimum": 0, "maximum": 0.5, "default": 0 },
      { "name": "target_modules", "description": "Names of the linear layers that get an adapter, such as `q_proj`; `all-linear` for all. With `projector` the layers between the vision tower and the language model of a base that reads pictures are trained, too, with all their weights. Full training takes `[\"all-linear\", \"projector\"]` for that, and no other of these settings.", "type": "list", "most": 100, "default_words": "all linear layers" },
      { "name": "experts", "description": "Whether the experts of a mixture get adapters too, one for each: they learn more, and take the memory and the size of many adapters. The router that chooses among them stays as it is. Needs a `dropout` of 0.", "type": "boolean", "default_words": "where their adapters fit into a tenth of the memory for training" }
    ]
  },
  {
    "name": "training_config",
    "entries": [
      { "name": "epochs", "description": "Number of passes over the whole dataset.", "type": "integer", "minimum": 1, "maximum": 50, "default": 2 },
      { "name": "batch_size", "description": "Examples per optimizer step; with `reinforcement` prompts.", "type": "integer", "minimum": 1, "maximum": 256, "default": 4 },
      { "name": "learning_rate", "description": "Learning rate at its peak; it falls to 0 along a cosine.", "type": "number", "above": 0, "maximum": 0.1, "default_words": "by the size of the base: 0.001 to 0.0002; a tenth of it for `full`, and a tenth for `dpo`, `kto` and `reinforcement`" },
      { "name": "warmup_ratio", "description": "Share of the steps in which the learning rate rises to its peak.", "type": "number", "minimum": 0, "maximum": 0.5, "default": 0.05 },
      { "name": "seed", "description": "Seed of the order of the rows, of the held-out rows and of new weights.", "type": "integer", "minimum": 0, "maximum": 4294967295, "default": 42 },
      { "name": "max_length", "description": "Tokens at which rows are cut; at most the context of the base.", "type": "integer", "minimum": 8, "maximum": 10000000, "default_words": "2,048, or the context where that is less" }
    ]
  },
  {
    "name": "evaluation_config",
    "entries": [
      { "name": "validation_split", "description": "Share of the rows that is held out and evaluated during the training.", "type": "number", "above": 0, "maximum": 0.5, "default_words": "none is held out" },
      { "name": "validation_dataset_id", "description": "A dataset to evaluate instead of a share of the rows.", "type": "string", "default_words": "none" },
      { "name": "every_steps", "description": "Optimizer steps from one evaluation to the next.", "type": "integer", "minimum": 1, "maximum": 1000000, "default_words": "at the end of each epoch" },
      { "name": "early_stopping_patience", "description": "End after this many evaluations without a better loss, or reward; the best state is the result.", "type": "integer", "minimum": 1, "maximum": 100, "default_words": "train to the end" },
      { "name": "sample_prompts", "description": "Prompts answered at each evaluation, with the answer of the base: a text, or messages.", "type": "list", "most": 8, "default_words": "none" },
      { "name": "keep_checkpoints", "description": "How many of the newest evaluated states become models.", "type": "integer", "minimum": 0, "maximum": 10, "default": 0 }
    ]
  }
]
