// Output tokens per second at 1, 8 and 32 clients; and time to first token at 32 clients with prompts of 256 tokens.
import { firstTokens, measure, percentile, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { noEndToken, sampling, startLlamaServer, startOurs } from '../servers.ts'

const minRatio: Record<number, number> = { 1: 1, 8: 1, 32: 1.1 }
const output = 128
/** A single stream takes only seconds, and measurements vary by 10 %: use several. */
const minRequests = 8

export async function throughput(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  try {
    for (const clients of [1, 8, 32]) {
      const them = await startLlamaServer(clients)
      try {
        const bodies = (turn: number) =>
          Array.from({ length: Math.max(minRequests, clients) }, (_, index) => ({
            ...user(text(32, 1 + turn * 1000 + index + clients * 100_000)),
            ...sampling,
            ...noEndToken,
            max_tokens: output,
          }))
        for (const side of [us, them]) await measure(side, clients, bodies(999))
        const found = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
          tokensPerSecond(await measure(side, clients, bodies(turn)), output),
        )
        report(
          comparisonRow('throughput', `output at ${clients} client${clients > 1 ? 's' : ''}`, 'tokens/s', found, {
            least: minRatio[clients]!,
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

export async function firstToken(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  const them = await startLlamaServer(32)
  try {
    const bodies = (turn: number) =>
      Array.from({ length: 32 }, (_, index) => ({
        ...user(text(226, 5_000_000 + turn * 1000 + index)),
        ...sampling,
        ...noEndToken,
        max_tokens: 32,
      }))
    for (const side of [us, them]) await measure(side, 32, bodies(999))
    const found = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      percentile(firstTokens(await measure(side, 32, bodies(turn))), 0.95),
    )
    report(comparisonRow('first-token', 'p95 at 32 clients, prompts of 256 tokens', 'ms', found, { most: 1 }))
  } finally {
    await Promise.all([us.stop(), them.stop()])
  }
}
