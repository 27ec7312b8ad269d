// The service, the trainer and the engine must tokenize a text identically. Otherwise a model silently gets other
// tokens at inference than in training.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gemma3, packaged } from '../support/bases.ts'
import { full } from '../support/full.ts'
import { appOfTests } from '../support/service.ts'

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

const answer = { role: 'assistant', content: 'yes' }

for (const { id: base, models, end, skip } of [packaged, gemma3]) {
  const app = appOfTests({ TUNERY_MODELS_DIR: models })

  test(`validation, preview and engine produce the same tokens of ${base}`, { skip: full.skip || skip }, async () => {
    const rows = texts.map((content) => JSON.stringify({ messages: [{ role: 'user', content }, answer] }))
    const { id } = (await app.upload(rows.join('\n'))).body
    const model = `model_id=${encodeURIComponent(base)}`
    const validation = (await app.api('POST', `/datasets/${id}/validate?${model}`)).body
    assert.equal(validation.valid, true, JSON.stringify(validation))
    let total = 0
    // After the prompt the row has the answer's one token, the end token and a line break.
    const ending = 3
    for (const [index, content] of texts.entries()) {
      const { sequences } = (await app.api('GET', `/datasets/${id}/preview?row=${index + 1}&${model}`)).body
      const { tokens } = sequences[0] as { tokens: { id: number; text: string; trained: boolean }[] }
      total += tokens.length
      assert.deepEqual(
        tokens.filter((token) => token.trained).map((token) => token.text),
        ['yes', end],
        'the answer and its end token are trained',
      )
      const { body } = await app.api('POST', '/chat/completions', {
        model: base,
        messages: [{ role: 'user', content }],
        max_tokens: 1,
      })
      assert.equal(body.usage.prompt_tokens, tokens.length - ending, `engine and trainer: ${content}`)
    }
    assert.equal(validation.tokens.total, total)
  })
}
