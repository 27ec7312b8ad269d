"""Recomputes a job in float32 with transformers and peft alone, and compares what the job reported and delivered:
`python tests/numbers/independent.py JOB.json` prints one JSON line.

JOB.json has the job's paths and settings as its API shows them, and its events. Nothing of the trainer is imported: the
rows are rendered with the chat template, one document at a time, and the formulas are those of the papers.
"""

import json
import math
import os
import random
import sys
from pathlib import Path

# A thread that waits sleeps soon: on a busy machine it would block the core that the thread it waits for needs.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", GOMP_SPINCOUNT="2000")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig


class Document:
    """A text to learn: token ids [length], and where its answer begins. The answer is learned, and its end token."""

    def __init__(self, tokenizer, messages: list[dict]) -> None:
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template(messages, tokenize=False).rstrip("\n")
        assert whole.startswith(prompt)
        self.start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
        self.ids = torch.tensor(tokenizer(whole, add_special_tokens=False).input_ids)

    @property
    def answer(self) -> torch.Tensor:
        return self.ids[self.start :]

    def followed_by_answer_of(self, other: "Document") -> "Document":
        joined = object.__new__(Document)
        joined.start, joined.ids = self.start, torch.cat([self.ids[: self.start], other.answer])
        return joined

    def logits(self, model) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 logits [learned, vocabulary] and the learned ids [learned]."""
        logits = model(input_ids=self.ids[None], use_cache=False).logits[0].float()
        return logits[self.start - 1 : -1], self.ids[self.start :]


class Row:
    def __init__(self, tokenizer, row: dict) -> None:
        self.label = row.get("label")
        if "messages" in row:
            conversations = [row["messages"]]
        else:
            conversations = [[*row["prompt"], row[answer]] for answer in ("chosen", "rejected")]
        self.documents = [Document(tokenizer, messages) for messages in conversations]
        # Log-probabilities of the answers, and of another row's answer, at the start.
        self.reference: list[float] = []
        self.mismatched: Document | None = None


def log_probability(model, document: Document) -> torch.Tensor:
    return -cross_entropy(*document.logits(model), reduction="sum")


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def in_batches(items: list, size: int) -> list[list]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def epoch_batches(count: int, training: dict, epoch: int, objective: str) -> list[list[int]]:
    """The batches of an epoch as the trainer makes them: rows of `kto` stay together."""
    size, seed = training["batch_size"], training["seed"]
    if objective != "kto" or epoch == 0:
        return in_batches(shuffled(count, seed, epoch), size)
    first = in_batches(shuffled(count, seed, 0), size)
    return [first[index] for index in shuffled(len(first), seed, epoch)]


def nearest_other(row: Row, rows: list[Row]) -> Row | None:
    """The nearest of `rows` before the row, in a circle, that has another answer."""
    answer, at = row.documents[0].answer, rows.index(row)
    others = [other for other in [*rows[at + 1 :], *rows[:at]] if not torch.equal(other.documents[0].answer, answer)]
    return others[-1] if others else None


def pair_up(batches: list[list[Row]]) -> None:
    """Gives each row the answer of another row of its batch, or of all batches where its own has no other answer."""
    rows = [row for batch in batches for row in batch]
    for batch in batches:
        for row in batch:
            other = nearest_other(row, batch) or nearest_other(row, rows)
            assert other, "All rows have the same answer."
            row.mismatched = row.documents[0].followed_by_answer_of(other.documents[0])


@torch.no_grad()
def add_references(model, rows: list[Row]) -> None:
    for row in rows:
        documents = [*row.documents, *([row.mismatched] if row.mismatched else [])]
        row.reference = [float(log_probability(model, document)) for document in documents]


def learning_rate(step: int, steps: int, training: dict) -> float:
    peak, warmup = training["learning_rate"], math.ceil(steps * training["warmup_ratio"])
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def loss_of_batch(model, batch: list[Row], objective: str, options: dict, backward: bool) -> tuple[float, list[float]]:
    """The batch's loss, and the rewards: margins of pairs, or of rated answers the rewards."""
    total, rewards = 0.0, []
    beta = options.get("beta", 0.1)
    if objective == "sft":
        targets = sum(len(row.documents[0].ids) - row.documents[0].start for row in batch)
    if objective == "kto":
        with torch.no_grad():
            moves = [float(log_probability(model, row.mismatched)) - row.reference[1] for row in batch]
        moved = max(0.0, sum(moves) / len(moves))
    for row in batch:
        if objective == "sft":
            loss = cross_entropy(*row.documents[0].logits(model), reduction="sum") / targets
        elif objective == "dpo":
            chosen, rejected = (log_probability(model, document) for document in row.documents)
            margin = beta * ((chosen - row.reference[0]) - (rejected - row.reference[1]))
            rewards.append(float(margin.detach()))
            loss = -logsigmoid(margin) / len(batch)
        else:
            reward = beta * (log_probability(model, row.documents[0]) - row.reference[0])
            rewards.append(float(reward.detach()))
            sign = 1 if row.label else -1
            loss = (1 - torch.sigmoid(sign * (reward - beta * moved))) / len(batch)
        total += float(loss.detach())
        if backward:
            loss.backward()
    return total, rewards


def margin_of(rows: list[Row], rewards: list[float], objective: str) -> float:
    if objective == "dpo":
        return sum(rewards) / len(rewards)
    good = [reward for row, reward in zip(rows, rewards, strict=True) if row.label]
    bad = [reward for row, reward in zip(rows, rewards, strict=True) if not row.label]
    return sum(good) / len(good) - sum(bad) / len(bad)


@torch.no_grad()
def judge(model, rows: list[Row], objective: str, options: dict, batch_size: int) -> dict[str, float]:
    """The validation figures of a model."""
    model.eval()
    if objective == "sft":
        loss, exact, targets = 0.0, 0, 0
        for row in rows:
            logits, ids = row.documents[0].logits(model)
            loss += float(cross_entropy(logits, ids, reduction="sum"))
            exact += bool((logits.argmax(-1) == ids).all())
            targets += len(ids)
        return {"validation_loss": loss / targets, "validation_exact": exact / len(rows)}
    loss, rewards = 0.0, []
    for batch in in_batches(rows, batch_size):
        part, found = loss_of_batch(model, batch, objective, options, backward=False)
        loss, rewards = loss + part * len(batch), rewards + found
    return {"validation_loss": loss / len(rows), "validation_reward_margin": margin_of(rows, rewards, objective)}


@torch.no_grad()
def answers_of(model, tokenizer, prompts: list[str], tokens: int) -> list[str]:
    answers = []
    for prompt in prompts:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = model.generate(**ids, max_new_tokens=tokens, do_sample=False, temperature=None, top_p=None)
        answers.append(tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


def load_base(path: str, quantized: bool = False):
    options = {}
    if quantized:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)


def train(model, rows: list[Row], job: dict) -> tuple[list[float], float]:
    """The loss of each step, and the first step's norm of the gradient."""
    training, objective = job["training"], job["objective"]
    per_epoch = math.ceil(len(rows) / training["batch_size"])
    steps = per_epoch * training["epochs"]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1.0, betas=(0.9, 0.999), weight_decay=0.0)
    losses, first_norm = [], math.nan
    model.train()
    for step in range(steps):
        epoch, index = divmod(step, per_epoch)
        batch = [rows[row] for row in epoch_batches(len(rows), training, epoch, objective)[index]]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, training)
        loss, _ = loss_of_batch(model, batch, objective, job["options"], backward=True)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, 1.0))
        if step == 0:
            first_norm = norm
        losses.append(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, first_norm


def model_to_train(job: dict):
    """The model of the job's method, with the adapter's start as peft makes it from the job's seed."""
    if job["method"] == "full":
        return load_base(job["base"])
    model = load_base(job["base"], quantized=job["method"] == "qlora")
    lora = job["lora"]
    torch.manual_seed(job["training"]["seed"])
    config = LoraConfig(
        r=lora["r"], lora_alpha=lora["alpha"], target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def read_rows(path: str, tokenizer) -> list[Row]:
    return [Row(tokenizer, json.loads(line)) for line in Path(path).read_text().splitlines()]


def prepared(model, rows: list[Row], batches: list[list[Row]], objective: str) -> None:
    if objective == "kto":
        pair_up(batches)
    if objective != "sft":
        add_references(model, rows)


def compare(job: dict) -> dict:
    torch.set_num_threads(job.get("threads", 2))
    tokenizer = AutoTokenizer.from_pretrained(job["base"])
    objective, size = job["objective"], job["training"]["batch_size"]
    rows, held_out = read_rows(job["rows"], tokenizer), read_rows(job["validation"], tokenizer)
    batches = [[rows[index] for index in batch] for batch in epoch_batches(len(rows), job["training"], 0, objective)]

    model = model_to_train(job)
    prepared(model, rows, batches, objective)
    losses, norm = train(model, rows, job)

    # The rest is about the model that is served: the result on the base as it is.
    base = load_base(job["base"])
    prepared(base, held_out, in_batches(held_out, size), objective)
    if job["method"] == "full":
        own, delivered = model, load_base(job["result"])
    else:
        weights = {name: value.detach().clone() for name, value in model.state_dict().items() if ".lora_" in name}
        own = delivered = PeftModel.from_pretrained(base, job["result"])
    figures = judge(delivered, held_out, objective, job["options"], size)
    answers = answers_of(delivered, tokenizer, job["prompts"], job["answer_tokens"])
    if job["method"] != "full":
        own.load_state_dict(weights, strict=False)
    own_figures = judge(own, held_out, objective, job["options"], size)
    return {"losses": losses, "first_norm": norm, "delivered": figures, "own": own_figures, "answers": answers}


if __name__ == "__main__":
    print(json.dumps(compare(json.loads(Path(sys.argv[1]).read_text()))))
