// Time from a job's creation to its first step, and from its last step to the first token of its model.
import { setTimeout as sleep } from 'node:timers/promises'
import type { JobEvent } from '../../contract/fine-tuning.ts'
import { type ProcessorSeconds, processorSeconds, secondsBetween } from '../support/processor-time.ts'
import { jobEvents, type Service } from './job-events.ts'

/** Seconds that both may take at most. */
const target_s = 3
/** Between two jobs: the time to look at a result before the next one. */
const pause_ms = 8000

const phases = [
  'claimed by the worker',
  'trainer started',
  'imports, data, check of memory',
  'model loaded',
  'first step',
  'result saved, converted and scored',
  'compared with the engine, registered',
  'first token of the model',
] as const

/** Runs `turns` jobs one after the other and prints where their time goes. Returns whether both medians are in time. */
export async function measureStart(
  service: Service,
  train: () => Promise<{ id: string; created_at: string }>,
  turns: number,
): Promise<boolean> {
  const table: number[][] = []
  // The first one right after the upload of its rows.
  for (let turn = 0; turn <= turns; turn++) {
    if (turn > 0) await sleep(pause_ms)
    const { seconds, processor } = await timesOf(service, train)
    if (turn > 0) table.push(seconds)
    const { start, end } = ends(seconds)
    console.log(
      `${turn === 0 ? 'right after the upload' : `turn ${turn}`}: ${start.toFixed(2)} s from creation to the end ` +
        `of the first step (${processor.start.toFixed(2)} s of processor time), ${end.toFixed(2)} s from the last ` +
        `step to the model's first token (${processor.end.toFixed(2)} s)`,
    )
  }
  for (const [index, phase] of phases.entries())
    console.log(`  ${median(table.map((row) => row[index]!)).toFixed(2)} s  ${phase}`)
  let met = true
  for (const [key, what] of [
    ['start', 'created to the end of the first step'],
    ['end', 'last step to the first token of the model'],
  ] as const) {
    const figure = median(table.map((row) => ends(row)[key]))
    if (figure > target_s) met = false
    console.log(`${what}: ${figure.toFixed(2)} s, target ${target_s} s: ${figure > target_s ? 'missed' : 'met'}`)
  }
  return met
}

/** Seconds in each of `phases`, and processor time of the whole service at start and end. */
async function timesOf(service: Service, train: () => Promise<{ id: string; created_at: string }>) {
  const used = () => processorSeconds(service.pid)
  const at: Record<string, number> = {}
  const readings: Record<string, ProcessorSeconds> = { created: used() }
  const job = await train()
  let last: JobEvent | undefined
  for await (const event of jobEvents(service, job.id)) {
    const mark = event.data?.phase ?? event.data?.status ?? (at.converting ? `saved: ${event.type}` : event.type)
    at[String(mark)] ??= Date.parse(event.created_at)
    if (mark === 'metrics' || mark === 'converting') readings[mark] ??= used()
    last = event
  }
  if (last?.data?.status !== 'completed') throw new Error(JSON.stringify(last))
  const { model } = last.data
  await service.api('POST', '/chat/completions', {
    model,
    messages: [{ role: 'user', content: 'Hello' }],
    max_tokens: 1,
  })
  const names = ['running', 'preparing', 'loading', 'training', 'metrics', 'converting', 'saved: progress', 'completed']
  const marks = [Date.parse(job.created_at), ...names.map((name) => at[name]!), Date.now()]
  const seconds = marks.slice(1).map((mark, index) => (mark - marks[index]!) / 1000)
  return {
    // The steps between the first and the last one are neither start nor end.
    seconds: seconds.toSpliced(5, 1),
    processor: {
      start: secondsBetween(readings.created!, readings.metrics!),
      // Without the trainer that is prepared for the next job.
      end: secondsBetween(readings.converting!, used(), { known: true }),
    },
  }
}

const sum = (values: number[]) => values.reduce((total, value) => total + value, 0)
const ends = (seconds: number[]) => ({ start: sum(seconds.slice(0, 5)), end: sum(seconds.slice(5)) })
const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!
