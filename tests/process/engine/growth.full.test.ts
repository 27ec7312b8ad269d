// A batch runner that grows while its sequences run.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chat, modelName, modelPath, readEvents, startEngine, textOf } from './engine-process.ts'

test('requests that arrive while others run grow the runner, without changing the running answers', async () => {
  const questions = Array.from({ length: 12 }, (_, index) =>
    chat(`Write about the number ${index}.`, { max_tokens: 40, stream: true, seed: index }),
  )
  const answers = async (slots: string, together: boolean) => {
    const engine = await startEngine(['--model', `${modelName}=${modelPath}`, '--slots', slots])
    const texts: string[] = []
    try {
      const ask = async (index: number) => {
        texts[index] = textOf(await readEvents(engine.stream('/v1/chat/completions', questions[index]!)))
      }
      if (together) await Promise.all(questions.map((_, index) => ask(index)))
      else for (const index of questions.keys()) await ask(index)
      return { texts, runners: await engine.metric('runners'), bytes: await engine.metric('kv_cache_bytes') }
    } finally {
      await engine.stop()
    }
  }
  const alone = await answers('16', false)
  const grown = await answers('16', true)
  assert.ok(grown.bytes > alone.bytes, 'the runner has grown')
  assert.equal(grown.runners, 1)
  // Batches of different sizes round differently, so texts may diverge late; their start is the same.
  for (const [index, text] of grown.texts.entries()) assert.equal(text.slice(0, 20), alone.texts[index]!.slice(0, 20))
})
