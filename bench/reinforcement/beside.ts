// Live requests beside a job that learns from graders: their times alone and beside it, the job's steps, and the memory
// of all processes.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Service } from '../beside/job-events.ts'
import { percentile } from '../serving/job.ts'
import { engineOf, watchMemory, watchResident } from '../support/memory.ts'
import { base, mean, start, stories, upload, wordGraders } from './jobs.ts'

const answer_tokens = 32

/** Milliseconds of each answer of `clients` that ask one after the other for a time. */
async function ask(service: Service, clients: number, seconds: number): Promise<number[]> {
  const until = performance.now() + seconds * 1000
  const times: number[] = []
  const client = async (index: number) => {
    for (let turn = 0; performance.now() < until; turn++) {
      const began = performance.now()
      await service.api('POST', '/chat/completions', {
        model: base,
        messages: [{ role: 'user', content: `Tell a story about the number ${index * 1000 + turn}.` }],
        max_tokens: answer_tokens,
        temperature: 0.7,
        logit_bias: { '0': -100, '2': -100 },
      })
      times.push(performance.now() - began)
      // People read between their requests.
      await sleep(500)
    }
  }
  await Promise.all(Array.from({ length: clients }, (_, index) => client(index)))
  return times
}

export async function measureBeside(service: Service, seconds: number): Promise<void> {
  const shown = (times: number[]) => {
    const [p50, p95] = [0.5, 0.95].map((share) => percentile(times, share).toFixed(0))
    return `p50 ${p50} ms, p95 ${p95} ms (${times.length} answers)`
  }
  await ask(service, 1, 3)
  const [engine, trainer] = [watchResident(engineOf(service.pid)), watchMemory(service.pid)]
  const dataset = await upload(service, stories(200))
  for (const clients of [1, 4]) {
    const alone = await ask(service, clients, seconds / 2)
    const { id, steps, model } = await start(service, base, dataset, {
      method_options: { objective: 'reinforcement', graders: wordGraders, max_tokens: 256, refill_rounds: 0 },
      training_config: { batch_size: 4, epochs: 10 },
    })
    while (steps.length < 2) await sleep(200)
    const began = steps.length
    const beside = await ask(service, clients, seconds)
    const counted = steps.slice(began - 1)
    await service.api('POST', `/fine-tuning/jobs/${id}/cancel`)
    await model
    const step = mean(counted.slice(1).map(({ at_ms }, index) => (at_ms - counted[index]!.at_ms) / 1000))
    const ratio = percentile(beside, 0.5) / percentile(alone, 0.5)
    console.log(
      `${clients} clients, answers of ${answer_tokens} tokens: alone ${shown(alone)}; beside the job ` +
        `${shown(beside)}, ${ratio.toFixed(2)} times the median; a step of the job ${step.toFixed(1)} s`,
    )
  }
  const trainer_mb = (trainer.end() / 1e6).toFixed(0)
  console.log(`Most memory: engine ${engine.end().toFixed(0)} MB, trainer ${trainer_mb} MB`)
}
