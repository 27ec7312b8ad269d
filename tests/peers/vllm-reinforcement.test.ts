// Learning from graders with vLLM as the engine: the weights of each step are pushed into it, and its probabilities are
// those of the trainer.
import assert from 'node:assert/strict'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { start, stories, upload, wordGraders } from '../../bench/reinforcement/jobs.ts'
import { startService } from '../../bench/support/service.ts'
import { root } from '../../lib/root.ts'
import { clientOf } from './shared.ts'
import { base } from './upstreams.ts'

let service: Awaited<ReturnType<typeof startService>>
before(async () => {
  service = await startService({
    TUNERY_ENGINE: 'vllm',
    TUNERY_VLLM_PYTHON: path.join(root, '.local/vllm/bin/python'),
    TUNERY_ENGINE_OPTIONS: '--cache-mb 500',
    TUNERY_TRAINING_PRIORITY: 'normal',
  })
})
after(() => service?.stop())

test('a job samples from vLLM with the weights of each step, and its result is served there', async () => {
  const job = await start(service, base, await upload(service, stories(6)), {
    method_options: { objective: 'reinforcement', graders: wordGraders, group_size: 4, max_tokens: 24 },
    training_config: { batch_size: 2, epochs: 1, learning_rate: 1e-3 },
  })
  const model = await job.model
  const gaps = job.steps.map((step) => (step as unknown as { probability_gap: number }).probability_gap)
  assert.equal(gaps.length, 3)
  // vLLM computes in bfloat16: 0.04 to 0.07 here.
  for (const gap of gaps) assert.ok(gap < 0.1, `the gap in nats is ${gaps.join(', ')}`)
  const asked = { model, messages: [{ role: 'user' as const, content: 'Tell a story.' }], max_tokens: 8 }
  const { response } = await clientOf(service).chat.completions.create(asked).withResponse()
  assert.match(response.headers.get('x-weights')!, /server=vllm/)
})
