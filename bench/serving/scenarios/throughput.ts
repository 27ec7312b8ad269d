// Output tokens a second at 1, 8 and 32 clients, and the time to the first token at 32 clients with prompts of 256
// tokens.
import { firstTokens, measure, percentile, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { compared, inTurns, type Row } from '../rounds.ts'
import { endless, ours, sampling, theirs } from '../servers.ts'

const asked: Record<number, number> = { 1: 1, 8: 1, 32: 1.1 }
const output = 128
/** A single stream takes a few seconds, and machines waver by a tenth from one to the next. */
const requestsLeast = 8

export async function throughput(rounds: number, say: (row: Row) => void): Promise<void> {
  const us = await ours()
  try {
    for (const clients of [1, 8, 32]) {
      const them = await theirs(clients)
      try {
        const bodies = (turn: number) =>
          Array.from({ length: Math.max(requestsLeast, clients) }, (_, index) => ({
            ...user(text(32, 1 + turn * 1000 + index + clients * 100_000)),
            ...sampling,
            ...endless,
            max_tokens: output,
          }))
        for (const side of [us, them]) await measure(side, clients, bodies(999))
        const found = await inTurns(rounds, { ours: us, theirs: them }, async (side, turn) =>
          tokensPerSecond(await measure(side, clients, bodies(turn)), output),
        )
        say(
          compared('throughput', `output at ${clients} client${clients > 1 ? 's' : ''}`, 'tokens/s', found, {
            least: asked[clients]!,
          }),
        )
      } finally {
        await them.stop()
      }
    }
  } finally {
    await us.stop()
  }
}

export async function firstToken(rounds: number, say: (row: Row) => void): Promise<void> {
  const us = await ours()
  const them = await theirs(32)
  try {
    const bodies = (turn: number) =>
      Array.from({ length: 32 }, (_, index) => ({
        ...user(text(226, 5_000_000 + turn * 1000 + index)),
        ...sampling,
        ...endless,
        max_tokens: 32,
      }))
    for (const side of [us, them]) await measure(side, 32, bodies(999))
    const found = await inTurns(rounds, { ours: us, theirs: them }, async (side, turn) =>
      percentile(firstTokens(await measure(side, 32, bodies(turn))), 0.95),
    )
    say(compared('first-token', 'p95 at 32 clients, prompts of 256 tokens', 'ms', found, { most: 1 }))
  } finally {
    await Promise.all([us.stop(), them.stop()])
  }
}
