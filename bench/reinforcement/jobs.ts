// Jobs that learn from graders, as a benchmark runs them: what is asked and rewarded, and what the steps report.
import { orders } from '../../examples/orders/orders.ts'
import { jobEvents, type Service } from '../beside/job-events.ts'
import { type ProcessorSeconds, processorSeconds, secondsBetween } from '../support/processor-time.ts'

export const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'

/** What is rewarded without a program, so that answers to a prompt nearly always differ: these words in them. */
export const words = ['she', 'his', 'was', 'when', 'but', 'why', 'then', 'never', 'because', 'little']
export const wordGraders = words.map((word) => ({
  type: 'regex',
  name: word,
  pattern: `\\b${word}\\b`,
  ignore_case: true,
}))

const things = ['a lighthouse', 'the last train', 'two brothers', 'a lost key', 'the old mill', 'a winter market']
const places = ['by the sea', 'in a small town', 'in the mountains', 'on an island', 'near the border']

/** Prompts that are answered at length. */
export const stories = (count: number) =>
  Array.from({ length: count }, (_, index) => ({
    messages: [
      {
        role: 'user',
        content: `Tell a long story about ${things[index % 6]} ${places[Math.floor(index / 6) % 5]}, number ${index}.`,
      },
    ],
  }))

/** The example's orders: for supervised training, and prompts with their answers. */
export function orderRows(answers: number, prompts: number) {
  const all = orders(answers + prompts, 7)
  return { answered: all.slice(0, answers), graded: all.slice(answers) }
}

export interface Step {
  reward: number
  answer_tokens: number
  sampling_seconds: number
  grading_seconds: number
  update_seconds: number
  push_seconds: number
  at_ms: number
  /** Processor time of all processes of the service until then. */
  cpu: ProcessorSeconds
}

export async function upload(service: Service, rows: readonly object[]): Promise<string> {
  const form = new FormData()
  form.set('file', new Blob([rows.map((row) => JSON.stringify(row)).join('\n')]), 'rows.jsonl')
  const { id } = await service.api('POST', '/datasets/', form)
  await service.idle()
  return id
}

export interface Running {
  id: string
  steps: Step[]
  /** Resolves with the model, once the job is completed. */
  model: Promise<string>
}

/** Starts a job; its steps come as they end. */
export async function start(
  service: Service,
  model_id: string,
  dataset_id: string,
  config: object,
  onStep: (step: Step) => void = () => {},
): Promise<Running> {
  const { id } = await service.api('POST', '/fine-tuning/jobs', { model_id, dataset_id, config })
  const steps: Step[] = []
  const model = (async () => {
    for await (const { type, data, created_at } of jobEvents(service, id))
      if (type === 'metrics' && data?.sampling_seconds !== undefined) {
        const at = { at_ms: Date.parse(created_at), cpu: processorSeconds(service.pid) }
        const step = { ...(data as unknown as Step), ...at }
        steps.push(step)
        onStep(step)
      }
    const { status, model, error } = await service.api('GET', `/fine-tuning/jobs/${id}`)
    if (status !== 'completed' && status !== 'cancelled') throw new Error(`the job is ${status}: ${error?.message}`)
    return model
  })()
  return { id, steps, model }
}

export const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length

const parts = ['sampling_seconds', 'grading_seconds', 'update_seconds', 'push_seconds'] as const

/** Seconds of a step and of its parts, the first steps left out, and answers a second. */
export function figuresOf(steps: readonly Step[], answers: number, warm_up: number) {
  const counted = steps.slice(warm_up)
  const means = Object.fromEntries(parts.map((part) => [part, mean(counted.map((step) => step[part]))]))
  // From the end of the last step that is left out, so that what lies between steps counts, too.
  const step_seconds = (counted.at(-1)!.at_ms - steps[warm_up - 1]!.at_ms) / 1000 / counted.length
  return {
    samples_per_second: answers / step_seconds,
    step_seconds,
    cpu_seconds: secondsBetween(steps[warm_up - 1]!.cpu, counted.at(-1)!.cpu) / counted.length,
    ...means,
    answer_tokens: mean(counted.map(({ answer_tokens }) => answer_tokens)),
    rewards: steps.map(({ reward }) => reward),
  }
}
