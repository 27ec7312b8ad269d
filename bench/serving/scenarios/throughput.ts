// Output tokens per second at 1, 8 and 32 clients; and time to first token at 32 clients with prompts of 256 tokens.
import path from 'node:path'
import { firstTokens, measure, percentile, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { noEndToken, peerWeights, type Side, sampling, startLlamaServer, startOurs } from '../servers.ts'

const minRatio: Record<number, number> = { 1: 1.05, 8: 1.1, 32: 1.15 }
const maxFirstToken = 0.9
const output = 128
/** A single stream takes only seconds, and measurements vary by 10 %: use several. */
const minRequests = 8

/** Starts llama-server with the weights that it answers faster with, by one turn of each. */
async function startBestPeer(
  clients: number,
  measureOnce: (side: Side) => Promise<number>,
): Promise<{ them: Side; note: string }> {
  const tried: { weights: string; speed: number }[] = []
  for (const weights of peerWeights()) {
    const side = await startLlamaServer(clients, 1024, { weights })
    try {
      await measureOnce(side)
      tried.push({ weights, speed: await measureOnce(side) })
    } finally {
      await side.stop()
    }
  }
  const [best] = tried.sort((one, other) => other.speed - one.speed)
  const note = tried.map(({ weights, speed }) => `${path.basename(weights)} ${speed.toFixed(0)}`).join(', ')
  return {
    them: await startLlamaServer(clients, 1024, { weights: best!.weights }),
    note: `peer tried: ${note} tokens/s`,
  }
}

export async function throughput(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  try {
    for (const clients of [1, 8, 32]) {
      const bodies = (turn: number) =>
        Array.from({ length: Math.max(minRequests, clients) }, (_, index) => ({
          ...user(text(32, 1 + turn * 1000 + index + clients * 100_000)),
          ...sampling,
          ...noEndToken,
          max_tokens: output,
        }))
      // Makes the eight-bit copy too, where there is none yet.
      await measure(us, clients, bodies(999))
      const { them, note } = await startBestPeer(clients, async (side) =>
        tokensPerSecond(await measure(side, clients, bodies(998)), output),
      )
      try {
        await measure(them, clients, bodies(999))
        const found = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
          tokensPerSecond(await measure(side, clients, bodies(turn)), output),
        )
        report(
          comparisonRow(
            'throughput',
            `output at ${clients} client${clients > 1 ? 's' : ''}`,
            'tokens/s',
            found,
            { least: minRatio[clients]! },
            note,
          ),
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
  const bodies = (turn: number) =>
    Array.from({ length: 32 }, (_, index) => ({
      ...user(text(226, 5_000_000 + turn * 1000 + index)),
      ...sampling,
      ...noEndToken,
      max_tokens: 32,
    }))
  await measure(us, 32, bodies(999))
  const { them, note } = await startBestPeer(32, async (side) =>
    tokensPerSecond(await measure(side, 32, bodies(998)), 32),
  )
  try {
    await measure(them, 32, bodies(999))
    const found = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      percentile(firstTokens(await measure(side, 32, bodies(turn))), 0.95),
    )
    report(
      comparisonRow(
        'first-token',
        'p95 at 32 clients, prompts of 256 tokens',
        'ms',
        found,
        { most: maxFirstToken },
        note,
      ),
    )
  } finally {
    await Promise.all([us.stop(), them.stop()])
  }
}
