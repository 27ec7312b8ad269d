// Reinforcement on top of a little supervised tuning, through the public API: the packaged base learns a form from 20
// answers, then from a grader that says whether an answer is exactly right. Both models are scored on held-out rows.
//
//   scripts/node examples/learn-from-grader.ts [--seed 7] [--answers 20] [--prompts 320] [--held-out 200] [--epochs 3]
//     [--rate 0.0003] [--group-size 8] [--batch-size 8] [--supervised-epochs 4] [--only-supervised]
//
// It ends with a line of JSON, and with 1 if the first model scores 0.6 or more, or the second less than 0.85.
import { parseArgs } from 'node:util'
import { call, events, type Service, startService } from '../scripts/demo/service.ts'
import { answeredRows, gradedRows, grader, type Order, orders } from './orders/orders.ts'

const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const bounds = { supervised_below: 0.6, reinforced_least: 0.85 }
const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '7' },
    answers: { type: 'string', default: '20' },
    prompts: { type: 'string', default: '320' },
    'held-out': { type: 'string', default: '200' },
    epochs: { type: 'string', default: '3' },
    rate: { type: 'string', default: '0.0003' },
    'group-size': { type: 'string', default: '8' },
    'batch-size': { type: 'string', default: '8' },
    'supervised-epochs': { type: 'string', default: '4' },
    'only-supervised': { type: 'boolean', default: false },
  },
})
const option = (name: Exclude<keyof typeof values, 'only-supervised'>) => Number(values[name])

interface Job {
  status: string
  model: string
  error: { message: string } | null
}

async function upload(service: Service, rows: readonly object[]): Promise<string> {
  const form = new FormData()
  form.set('file', new Blob([rows.map((row) => JSON.stringify(row)).join('\n')]), 'rows.jsonl')
  const dataset = await call<{ id: string }>(service, 'POST', '/datasets/', form)
  const report = await call<{ valid: boolean; errors?: string[] }>(service, 'POST', `/datasets/${dataset.id}/validate`)
  if (!report.valid) throw new Error(`the rows are not valid: ${report.errors?.join('; ')}`)
  return dataset.id
}

/** Trains to the end, and shows what the steps report. */
async function train(service: Service, model_id: string, dataset_id: string, config: object) {
  const began = performance.now()
  const { id } = await call<{ id: string }>(service, 'POST', '/fine-tuning/jobs', { model_id, dataset_id, config })
  const steps: Record<string, number>[] = []
  for await (const { type, message, data } of events(service, id)) {
    if (type === 'metrics') console.log(`  ${message}`)
    if (type === 'metrics' && data?.reward !== undefined) steps.push(data as Record<string, number>)
  }
  const job = await call<Job>(service, 'GET', `/fine-tuning/jobs/${id}`)
  if (job.status !== 'completed')
    throw new Error(`the job is ${job.status}: ${job.error?.message ?? 'no reason given'}`)
  return { model: job.model, seconds: Math.round((performance.now() - began) / 1000), steps }
}

/** The share of held-out rows that a model answers exactly right, at temperature 0. */
async function score(service: Service, model: string, dataset: string): Promise<number> {
  const body = { model, dataset, graders: [grader], sampling: { temperature: 0, max_tokens: 48 } }
  const { id } = await call<{ id: string }>(service, 'POST', '/evaluations/', body)
  for (;;) {
    const evaluation = await call<Evaluation>(service, 'GET', `/evaluations/${id}`)
    if (evaluation.status === 'completed') return evaluation.result!.model.pass_rate
    if (evaluation.error) throw new Error(evaluation.error.message)
    await new Promise((resolve) => setTimeout(resolve, 300))
  }
}

interface Evaluation {
  status: string
  error: { message: string } | null
  result: { model: { pass_rate: number } } | null
}

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length

async function main(service: Service): Promise<boolean> {
  const [answers, prompts] = [option('answers'), option('prompts')]
  const all: Order[] = orders(answers + prompts + option('held-out'), option('seed'))
  const heldOut = await upload(service, gradedRows(all.slice(answers + prompts)))
  console.log(`Supervised: ${answers} answers`)
  const supervised = await train(service, base, await upload(service, answeredRows(all.slice(0, answers))), {
    training_config: { epochs: option('supervised-epochs') },
  })
  const before = await score(service, supervised.model, heldOut)
  console.log(`Exactly right on ${option('held-out')} held-out rows: ${before}`)
  if (values['only-supervised']) return before < bounds.supervised_below
  console.log(`Reinforcement: ${prompts} prompts`)
  const graded = await upload(service, gradedRows(all.slice(answers, answers + prompts)))
  const reinforced = await train(service, supervised.model, graded, {
    method_options: { objective: 'reinforcement', grader, max_tokens: 32, group_size: option('group-size') },
    training_config: { epochs: option('epochs'), batch_size: option('batch-size'), learning_rate: option('rate') },
    evaluation_config: { validation_split: 0.1, every_steps: 12 },
  })
  const after = await score(service, reinforced.model, heldOut)
  console.log(`Exactly right on ${option('held-out')} held-out rows: ${after}`)
  const of = (name: string) => Number(mean(reinforced.steps.map((step) => step[name] ?? 0)).toFixed(3))
  const seconds = { supervised: supervised.seconds, reinforcement: reinforced.seconds }
  const split = Object.fromEntries(
    ['sampling_seconds', 'grading_seconds', 'update_seconds', 'push_seconds'].map((name) => [name, of(name)]),
  )
  console.log(JSON.stringify({ supervised: before, reinforced: after, seconds, steps: reinforced.steps.length, split }))
  return before < bounds.supervised_below && after >= bounds.reinforced_least
}

const service = await startService()
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => service.stop().then(() => process.exit(1)))
try {
  if (!(await main(service))) process.exitCode = 1
} finally {
  await service.stop()
}
