// Speculative decoding, on (the default) compared with off: prompt lookup on the demo's extraction with the base, and
// drafts from training answers on three tasks with models that were tuned for them, merged as busy ones are.
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { copyOf, trainedTasks } from '../../support/adapters.ts'
import { measure, tokensPerSecond } from '../job.ts'
import { extraction } from '../prompts.ts'
import { comparisonRow, interleave, type Row, type Sides } from '../rounds.ts'
import { engineOptions, type Ours, startOurs } from '../servers.ts'
import { taskNames, taskRows } from '../tasks.ts'
import { waitUntilMerged } from './adapters.ts'

const requests = 16
const trainedRows = 400
/** Least gain of a task by the number of clients. With many, drafts must do no harm. */
const least: Record<number, number> = { 1: 1.8, 4: 1.4, 8: 0.97, 32: 0.97 }

export async function speculation(rounds: number, report: (row: Row) => void): Promise<void> {
  const { dataDir, models } = await trainedTasks(trainedRows)
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-drafts-'))
  const start = async (name: string, ...options: string[]) => {
    const settings = { TUNERY_MERGED_MEMORY_MB: '2000', TUNERY_MERGE_AFTER_TOKENS: '1', ...engineOptions(...options) }
    const side = await startOurs(settings, copyOf(dataDir, path.join(folder, name)))
    for (const [index, model] of models.entries())
      await side.service.api('POST', '/deployments', { model, name: taskNames[index] })
    return side
  }
  const sides: Sides<Ours> = { ours: await start('on'), theirs: await start('off', '--no-speculation') }
  const gain = async (what: string, clients: number, bound: number, bodies: (turn: number) => object[]) => {
    const body = (more: object) => ({ temperature: 0, stream: true, stream_options: { include_usage: true }, ...more })
    // Acceptance and costs of steps are learned in the first answers.
    for (const side of [sides.ours, sides.theirs]) await measure(side, clients, bodies(99).map(body))
    const figures = await interleave(rounds, sides, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, bodies(turn).map(body))),
    )
    const at = `${what} at ${clients} client${clients > 1 ? 's' : ''}, on (ours) and off`
    report(comparisonRow('speculation', at, 'tokens/s', figures, { least: bound }))
  }
  try {
    for (const side of [sides.ours, sides.theirs]) {
      await measure(
        side,
        1,
        taskNames.map((model) => ({ ...extraction(0), model, max_tokens: 2 })),
      )
      await waitUntilMerged(side, taskNames.length)
    }
    await gain('prompt lookup', 1, 1.3, (turn) =>
      Array.from({ length: requests }, (_, index) => ({ ...extraction(turn * requests + index), max_tokens: 60 })),
    )
    for (const task of taskNames)
      for (const clients of [1, 4, 8, 32])
        await gain(task, clients, least[clients]!, (turn) =>
          taskRows(task, Math.max(requests, 2 * clients), 1000 + turn).map(({ messages }) => ({
            model: task,
            messages: messages.slice(0, -1),
            max_tokens: 150,
          })),
        )
  } finally {
    await Promise.all([sides.ours.stop(), sides.theirs.stop()])
    rmSync(folder, { recursive: true, force: true })
  }
}
