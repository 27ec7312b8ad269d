"""General questions, for checks of models whose rows cannot be asked."""

from trainer.data.dataset import Example, prepare
from trainer.data.rows import Conversation, Pair
from trainer.data.tokenizer import Tokenizer
from trainer.runtime.protocol import SilentProtocol

# An adapter changes the answers to any question, so these are enough to detect it.
QUESTIONS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "Write a short greeting.": "Hello! How can I help you today?",
    "How do I reset my password?": "Open the settings, choose Security, and click on Reset password.",
    "Sort these numbers: 3, 1, 2": "1, 2, 3",
}


def general_examples(tokenizer: Tokenizer, max_length: int) -> list[Example]:
    """General questions with their answers as examples, for models without rows of their own."""
    rows: list[Conversation | Pair] = [
        Conversation([{"role": "user", "content": question}, {"role": "assistant", "content": answer}], line)
        for line, (question, answer) in enumerate(QUESTIONS.items(), start=1)
    ]
    return prepare(rows, tokenizer, max_length, SilentProtocol()).examples
