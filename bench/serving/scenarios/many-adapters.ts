// 200 deployed adapters on one base, requested by Zipf's law, compared with one adapter under the same load: p95 of the
// time to first token, and memory.

import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { seededRandom } from '../../../tests/support/random.ts'
import { copyAdapters, copyOf, trainedAdapters } from '../../support/adapters.ts'
import { firstTokens, measure, percentile } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row, singleRow } from '../rounds.ts'
import { noEndToken, sampling, startOurs } from '../servers.ts'

const count = 200
const clients = 8
const requests = 200

/** Memory of a process and its children, in MB. */
function memory(pid: number): number {
  const status = (id: string | number) => {
    try {
      return readFileSync(`/proc/${id}/status`, 'utf8')
    } catch {
      return ''
    }
  }
  const children = readdirSync('/proc').filter(
    (id) => /^\d+$/.test(id) && new RegExp(`^PPid:\\s+${pid}$`, 'm').test(status(id)),
  )
  return [pid, ...children].reduce<number>(
    (sum, id) => sum + Number(/VmRSS:\s+(\d+)/.exec(status(id))?.[1] ?? 0) / 1000,
    0,
  )
}

/** The adapter of each request: the k-th one with a probability proportional to 1/k. */
function zipf(seed: number): number[] {
  const weights = Array.from({ length: count }, (_, index) => 1 / (index + 1))
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  const next = seededRandom(seed)
  return Array.from({ length: requests }, () => {
    let left = next() * total
    const index = weights.findIndex((weight) => {
      left -= weight
      return left <= 0
    })
    return Math.max(0, index)
  })
}

export async function manyAdapters(rounds: number, report: (row: Row) => void): Promise<void> {
  const prepared = await trainedAdapters(4)
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-many-'))
  const dataDir = copyOf(prepared.dataDir, path.join(folder, 'data'))
  const models = copyAdapters({ ...prepared, dataDir }, count)
  const us = await startOurs({}, dataDir)
  try {
    const before = memory(us.pid)
    for (const [index, model] of models.entries())
      await us.service.api('POST', '/deployments', { model, name: `adapter-${index}` })
    const bodies = (turn: number, which: number[]) =>
      which.map((adapter, index) => ({
        ...user(text(32, 4_000_000 + turn * 1000 + index)),
        ...sampling,
        ...noEndToken,
        model: `adapter-${adapter}`,
        max_tokens: 16,
      }))
    await measure(us, clients, bodies(900, zipf(900)))
    const sides = { ours: (turn: number) => zipf(turn), theirs: () => new Array(requests).fill(0) }
    let peak = 0
    const figures = await interleave(rounds, sides, async (which, turn) => {
      const timing = await measure(us, clients, bodies(turn, which(turn)))
      peak = Math.max(peak, memory(us.pid))
      return percentile(firstTokens(timing), 0.95)
    })
    const note =
      `${memory(us.pid).toFixed(0)} MB at the end, ${peak.toFixed(0)} at most, ` +
      `${before.toFixed(0)} before a deployment`
    report(
      comparisonRow('many', `first token p95, ${count} by Zipf (ours) against one`, 'ms', figures, { most: 1.5 }, note),
    )
    report(singleRow('many', `memory of the service with ${count} deployed`, 'MB', [peak], {}))
  } finally {
    await us.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}
