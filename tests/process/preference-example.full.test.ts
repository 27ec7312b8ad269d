// The example of docs/guides/preference-tuning.md with the default model: two trainings, about three minutes.
import assert from 'node:assert/strict'
import path from 'node:path'
import { test } from 'node:test'
import { cases, isGood, preferences, writtenReplies } from '../../examples/replies/replies.ts'
import { root } from '../../lib/root.ts'
import { liftedScores } from '../support/preferences.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests({ TUNERY_MODELS_DIR: path.join(root, '.local/models'), TUNERY_THREADS: '2' })

test('preferences lift the share of good replies that the written ones alone do not', async () => {
  const all = cases(160, 42)
  const [train, heldOut] = [all.slice(0, 120), all.slice(120)]
  const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
  const scores = await liftedScores(app, base, writtenReplies(train), preferences(train), {}, {}, preferences(heldOut))
  const [before, after] = await scores(isGood)
  console.log(`good replies on ${heldOut.length} held-out requests: ${before}, then ${after}`)
  assert.ok(before! <= 0.5 && after! >= 0.9, `${before}, then ${after}`)
})
