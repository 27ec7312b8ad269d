// Speculation by prompt look-up on the demo's extraction, at one client: on, as it is by itself, beside switched off.
import { measure, tokensPerSecond } from '../job.ts'
import { extraction } from '../prompts.ts'
import { compared, inTurns, type Row } from '../rounds.ts'
import { engineOptions, ours } from '../servers.ts'

export async function speculation(rounds: number, say: (row: Row) => void): Promise<void> {
  const on = await ours()
  const off = await ours(engineOptions('--no-speculation'))
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
    const found = await inTurns(rounds, { ours: on, theirs: off }, async (side, turn) =>
      tokensPerSecond(await measure(side, 1, bodies(turn))),
    )
    say(compared('speculation', 'extraction at 1 client, on (ours) and off', 'tokens/s', found, { least: 1.3 }))
  } finally {
    await Promise.all([on.stop(), off.stop()])
  }
}
