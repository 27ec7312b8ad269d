"""What the rows of a training have in common."""

import pytest

from trainer.data.rows import Conversation
from trainer.data.trained_with import Common
from trainer.tests.conftest import with_chat_template

USER = {"role": "user", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}
PLAIN = {"role": "assistant", "content": "b"}
THINKING = {**PLAIN, "reasoning_content": "c"}
UNLEARNED = {**THINKING, "weight": 0}
THINKS = "{% for m in messages %}{{ m.role }}{{ m.reasoning_content }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[USER, PLAIN]], ("none", None, "none")),
        ([[SYSTEM, USER, THINKING], [SYSTEM, USER, UNLEARNED, USER, THINKING]], ("same", "s", "all")),
        ([[SYSTEM, USER, THINKING], [USER, PLAIN]], ("varies", None, "some")),
        ([[SYSTEM, USER, PLAIN], [{**SYSTEM, "content": "t"}, USER, UNLEARNED]], ("varies", None, "none")),
        ([[USER, {**PLAIN, "content": "<think>c</think>b"}]], ("none", None, "all")),
    ],
)
def test_system_prompt_and_thoughts(tokenizer, rows, expected):
    common = Common()
    for line, messages in enumerate(rows):
        common.add(Conversation(messages, line))
    data = common.as_data(with_chat_template(tokenizer, THINKS))
    assert (data["system_prompt"], data["system_prompt_text"], data["thoughts"]) == expected


def test_tools_and_a_template_without_thoughts(tokenizer):
    common = Common()
    common.add(Conversation([USER, PLAIN], 1, [{"type": "function"}]))
    template = with_chat_template(tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert common.as_data(template) == {
        "system_prompt": "none",
        "system_prompt_text": None,
        "tools": "all",
        "thoughts": None,
        "thoughts_asked": False,
    }
