// Speculative decoding (prompt lookup) on the demo's extraction at one client: on (the default) compared with off.
import { measure, tokensPerSecond } from '../job.ts'
import { extraction } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { engineOptions, startOurs } from '../servers.ts'

export async function speculation(rounds: number, report: (row: Row) => void): Promise<void> {
  const on = await startOurs()
  const off = await startOurs(engineOptions('--no-speculation'))
  try {
    const bodies = (turn: number) =>
      Array.from({ length: 16 }, (_, index) => ({
        ...extraction(turn * 16 + index),
        temperature: 0,
        max_tokens: 60,
        stream: true,
        stream_options: { include_usage: true },
      }))
    for (const side of [on, off]) await measure(side, 1, bodies(99).slice(0, 2))
    const found = await interleave(rounds, { ours: on, theirs: off }, async (side, turn) =>
      tokensPerSecond(await measure(side, 1, bodies(turn))),
    )
    report(comparisonRow('speculation', 'extraction at 1 client, on (ours) and off', 'tokens/s', found, { least: 1.3 }))
  } finally {
    await Promise.all([on.stop(), off.stop()])
  }
}
