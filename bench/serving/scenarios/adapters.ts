// Four adapters at once at 8 clients, beside a llama-server that has the four and is told one by each request; and one
// adapter beside the base alone. Both as the engine computes adapters, and from merged copies.
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { copyOf, trainedAdapters } from '../../support/adapters.ts'
import { measure, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { compared, inTurns, type Row } from '../rounds.ts'
import { endless, type Ours, ours, sampling, theirs } from '../servers.ts'

const output = 96
interface Mode {
  title: string
  settings: Record<string, string>
  /** What the ratios have to keep: of four adapters at once, and of one at so many clients. */
  four: number
  one: { 1: number; 8: number; 32: number }
  /** Adapters to be served from merged copies before anything is measured. */
  merged: number
}
const modes: Mode[] = [
  {
    title: 'unmerged',
    settings: { TUNERY_MERGED_MEMORY_MB: '0' },
    four: 1.3,
    one: { 1: 0.6, 8: 0.85, 32: 0.75 },
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

export async function adapters(rounds: number, say: (row: Row) => void): Promise<void> {
  const prepared = await trainedAdapters(4)
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-adapters-'))
  try {
    for (const mode of modes) {
      const us = await ours(mode.settings, copyOf(prepared.dataDir, path.join(folder, mode.title)))
      try {
        for (const [index, model] of prepared.models.entries())
          await us.service.api('POST', '/deployments', { model, name: `adapter-${index}` })
        await fourAtOnce(us, prepared.files, mode, rounds, say)
        await oneBesideBase(us, mode, rounds, say)
      } finally {
        await us.stop()
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const body = (seed: number) => ({ ...user(text(32, seed)), ...sampling, ...endless, max_tokens: output })

async function fourAtOnce(
  us: Ours,
  files: string[],
  mode: Mode,
  rounds: number,
  say: (row: Row) => void,
): Promise<void> {
  const them = await theirs(8, 1024, files)
  try {
    const asked = (turn: number, named: (adapter: number) => object) =>
      Array.from({ length: 16 }, (_, index) => ({ ...body(2_000_000 + turn * 100 + index), ...named(index % 4) }))
    const byName = (adapter: number) => ({ model: `adapter-${adapter}` })
    const byScale = (adapter: number) => ({ lora: files.map((_, id) => ({ id, scale: id === adapter ? 1 : 0 })) })
    await measure(us, 8, asked(900, byName))
    await untilMerged(us, mode.merged)
    await measure(us, 8, asked(901, byName))
    await measure(them, 8, asked(900, byScale))
    const found = await inTurns(rounds, { ours: us, theirs: them }, async (side, turn) =>
      tokensPerSecond(await measure(side, 8, asked(turn, side === them ? byScale : byName)), output),
    )
    say(compared('adapters', `four at once at 8 clients, ${mode.title}`, 'tokens/s', found, { least: mode.four }))
  } finally {
    await them.stop()
  }
}

/** Waits until so many adapters are served from merged copies; asking them once has earned them theirs. */
async function untilMerged(us: Ours, count: number): Promise<void> {
  for (;;) {
    const text = await (await fetch(`${us.url}/metrics`)).text()
    const gauge = (name: string) => Number(new RegExp(`^tunery_${name} (.+)$`, 'm').exec(text)?.[1])
    if (gauge('merge_refusals') > 0)
      throw new Error('an adapter was refused a merged copy; the log of the service says why')
    if (gauge('merged_adapters') === count) return
    await sleep(100)
  }
}

async function oneBesideBase(us: Ours, mode: Mode, rounds: number, say: (row: Row) => void): Promise<void> {
  const adapter = { ...us, name: 'adapter', model: 'adapter-0' }
  for (const clients of [1, 8, 32] as const) {
    const asked = (turn: number) =>
      Array.from({ length: Math.max(2, clients) }, (_, index) =>
        body(3_000_000 + clients * 100_000 + turn * 100 + index),
      )
    await measure(adapter, clients, asked(900))
    const found = await inTurns(rounds, { ours: adapter, theirs: us }, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, asked(turn)), output),
    )
    const what = `one (ours) beside the base, ${clients} client${clients > 1 ? 's' : ''}, ${mode.title}`
    say(compared('adapters', what, 'tokens/s', found, { least: mode.one[clients] }))
  }
}
