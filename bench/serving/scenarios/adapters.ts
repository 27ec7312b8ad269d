// Four adapters at once at 8 clients, compared with a llama-server that has the four and gets one by each request; and
// one adapter compared with the base model. Each with unmerged and with merged adapters.
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { copyOf, trainedAdapters } from '../../support/adapters.ts'
import { measure, tokensPerSecond } from '../job.ts'
import { startBestPeer } from '../peer.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { noEndToken, type Ours, sampling, startOurs } from '../servers.ts'

const output = 96
interface Mode {
  title: string
  settings: Record<string, string>
  /** Minimum ratios: four adapters at once, and one adapter by number of clients. */
  four: number
  one: { 1: number; 8: number; 32: number }
  /** How many adapters must be merged before measuring. */
  merged: number
}
const modes: Mode[] = [
  {
    title: 'unmerged',
    settings: { TUNERY_MERGED_MEMORY_MB: '0' },
    four: 2,
    one: { 1: 0.6, 8: 0.9, 32: 0.75 },
    merged: 0,
  },
  {
    title: 'merged',
    settings: { TUNERY_MERGED_MEMORY_MB: '2000', TUNERY_MERGE_AFTER_TOKENS: '1' },
    four: 2,
    one: { 1: 0.98, 8: 0.98, 32: 0.98 },
    merged: 4,
  },
]

export async function adapters(rounds: number, report: (row: Row) => void): Promise<void> {
  const prepared = await trainedAdapters(4)
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-adapters-'))
  try {
    for (const mode of modes) {
      const us = await startOurs(mode.settings, copyOf(prepared.dataDir, path.join(folder, mode.title)))
      try {
        for (const [index, model] of prepared.models.entries())
          await us.service.api('POST', '/deployments', { model, name: `adapter-${index}` })
        await fourAtOnce(us, prepared.files, mode, rounds, report)
        await oneAgainstBase(us, mode, rounds, report)
      } finally {
        await us.stop()
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const body = (seed: number) => ({ ...user(text(32, seed)), ...sampling, ...noEndToken, max_tokens: output })

async function fourAtOnce(
  us: Ours,
  files: string[],
  mode: Mode,
  rounds: number,
  report: (row: Row) => void,
): Promise<void> {
  const bodies = (turn: number, named: (adapter: number) => object) =>
    Array.from({ length: 16 }, (_, index) => ({ ...body(2_000_000 + turn * 100 + index), ...named(index % 4) }))
  const byName = (adapter: number) => ({ model: `adapter-${adapter}` })
  const byScale = (adapter: number) => ({ lora: files.map((_, id) => ({ id, scale: id === adapter ? 1 : 0 })) })
  const { them, note } = await startBestPeer(
    8,
    1024,
    async (side) => tokensPerSecond(await measure(side, 8, bodies(998, byScale).slice(0, 8)), output),
    { adapters: files },
  )
  try {
    await measure(us, 8, bodies(900, byName))
    await waitUntilMerged(us, mode.merged)
    await measure(us, 8, bodies(901, byName))
    await measure(them, 8, bodies(900, byScale))
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      tokensPerSecond(await measure(side, 8, bodies(turn, side === them ? byScale : byName)), output),
    )
    const what = `four at once at 8 clients, ${mode.title}`
    report(comparisonRow('adapters', what, 'tokens/s', figures, { least: mode.four }, note))
  } finally {
    await them.stop()
  }
}

/** Waits until this many adapters are merged; one request each has made them due. */
export async function waitUntilMerged(us: Ours, count: number): Promise<void> {
  for (;;) {
    const text = await (await fetch(`${us.url}/metrics`)).text()
    const gauge = (name: string) => Number(new RegExp(`^tunery_${name} (.+)$`, 'm').exec(text)?.[1])
    if (gauge('merge_refusals') > 0) throw new Error('an adapter was not merged; the log of the service says why')
    if (gauge('merged_adapters') === count) return
    await sleep(100)
  }
}

async function oneAgainstBase(us: Ours, mode: Mode, rounds: number, report: (row: Row) => void): Promise<void> {
  const adapter = { ...us, name: 'adapter', model: 'adapter-0' }
  for (const clients of [1, 8, 32] as const) {
    const bodies = (turn: number) =>
      Array.from({ length: Math.max(2, clients) }, (_, index) =>
        body(3_000_000 + clients * 100_000 + turn * 100 + index),
      )
    await measure(adapter, clients, bodies(900))
    const figures = await interleave(rounds, { ours: adapter, theirs: us }, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, bodies(turn)), output),
    )
    const what = `one (ours) against the base, ${clients} client${clients > 1 ? 's' : ''}, ${mode.title}`
    report(comparisonRow('adapters', what, 'tokens/s', figures, { least: mode.one[clients] }))
  }
}
