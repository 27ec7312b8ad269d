// The service, the trainer and the engine must cut a text into the same tokens: where they differ, a model is trained on one thing
// and asked another, and nothing says so.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../server/config.ts'
import { tokenCounter } from '../server/datasets/tokens.ts'
import { startApp, type TestApp } from './support/service.ts'

const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const models = path.join(root, '.local/models')
const texts = [
  'plain words',
  '12 2026 3.14 1,000,000 0x1F',
  'Grüße, naïve façade, œuvre',
  'emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 and 日本語 العربية हिन्दी',
  'def f(x):\n    return x ** 2\n\n\n\tpass  # tabs\tand  spaces   ',
  "it's we'll I'd they've CamelCase snake_case kebab-case",
  '<|im_end|> <|im_start|> </s> literal',
  ' leading and trailing ',
  'zero\u200bwidth, \u00a0nbsp, combining e\u0301',
  '½ ² ① Ⅷ ٣ ३',
  'x',
]

let app: TestApp
before(async () => {
  app = await startApp({ TUNERY_MODELS_DIR: models })
})
after(() => app.stop())

test('the service, transformers and the engine count the same tokens for difficult texts', async () => {
  const hf = path.join(models, base, 'hf')
  const count = await tokenCounter(hf)
  const script = `
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
render = lambda text: tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
print(json.dumps([len(tokenizer.encode(render(text), add_special_tokens=False)) for text in json.loads(sys.argv[2])]))`
  const python = path.join(root, '.local/python/bin/python')
  const trainer: number[] = JSON.parse(
    execFileSync(python, ['-c', script, hf, JSON.stringify(texts)], { encoding: 'utf8', env: { ...process.env, HF_HUB_OFFLINE: '1' } }),
  )
  // The engine's prompt ends with the beginning of the answer: <|im_start|>, ass, istant and a line break.
  const beginning = 4
  for (const [index, content] of texts.entries()) {
    const { body } = await app.api('POST', '/chat/completions', { model: base, messages: [{ role: 'user', content }], max_tokens: 1 })
    assert.equal(count([{ role: 'user', content }]), trainer[index], `service and trainer: ${content}`)
    assert.equal(body.usage.prompt_tokens - beginning, trainer[index], `engine and trainer: ${content}`)
  }
})
