// Output tokens per second at 1, 8 and 32 clients; and time to first token at 32 clients with prompts of 256 tokens.
import { statSync } from 'node:fs'
import { firstTokens, measure, type Placement, percentile, tokensPerSecond } from '../job.ts'
import { startBestPeer } from '../peer.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { noEndToken, peerWeights, sampling, startOurs } from '../servers.ts'

const minRatio: Record<number, number> = { 1: 1.05, 8: 1.1, 32: 1.15 }
const maxFirstToken = 0.9
const output = 128
/** A single stream takes only seconds, and measurements vary by 10 %: use several. */
const minRequests = 8

/** Parameters of SmolLM2-135M, with its embeddings, which are its head too. */
const parameters = 134.5e6

/** What so many tokens a second take: all weights are read once a step, which serves `at_once` tokens. */
const demandOf = (tokens_per_s: number, at_once: number) => ({
  read_gb_per_s: (statSync(peerWeights().at(-1)!).size * tokens_per_s) / at_once / 1e9,
  int8: (2 * parameters * tokens_per_s) / 1e9,
})

/** `placements`: of the load's process; each has its rows. */
export async function throughput(
  rounds: number,
  report: (row: Row) => void,
  placements: readonly Placement[],
): Promise<void> {
  const us = await startOurs()
  try {
    for (const clients of [1, 8, 32]) {
      const bodies = (turn: number, requests = Math.max(minRequests, clients), max_tokens = output) =>
        Array.from({ length: requests }, (_, index) => ({
          ...user(text(32, 1 + turn * 1000 + index + clients * 100_000)),
          ...sampling,
          ...noEndToken,
          max_tokens,
        }))
      // Makes the eight-bit copy too, where there is none yet.
      await measure(us, clients, bodies(999))
      const { them, note } = await startBestPeer(clients, 1024, async (side) =>
        tokensPerSecond(await measure(side, clients, bodies(998, Math.max(2, clients), output / 2))),
      )
      try {
        await measure(them, clients, bodies(999))
        for (const placement of placements) {
          const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
            tokensPerSecond(await measure(side, clients, bodies(turn), undefined, placement), output),
          )
          const where = placement === 'pinned' ? ', load pinned to a core' : ''
          const what = `output at ${clients} client${clients > 1 ? 's' : ''}${where}`
          const row = comparisonRow('throughput', what, 'tokens/s', figures, { least: minRatio[clients]! }, note)
          report({ ...row, demand: demandOf(row.ours, clients) })
        }
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
  const clients = 32
  const prompt = 256
  const bodies = (turn: number) =>
    Array.from({ length: clients }, (_, index) => ({
      ...user(text(prompt - 30, 5_000_000 + turn * 1000 + index)),
      ...sampling,
      ...noEndToken,
      max_tokens: 32,
    }))
  await measure(us, clients, bodies(999))
  const { them, note } = await startBestPeer(clients, 1024, async (side) =>
    tokensPerSecond(await measure(side, clients, bodies(998)), 32),
  )
  try {
    await measure(them, clients, bodies(999))
    const figures = await interleave(rounds, { ours: us, theirs: them }, async (side, turn) =>
      percentile(firstTokens(await measure(side, clients, bodies(turn))), 0.95),
    )
    const what = 'p95 at 32 clients, prompts of 256 tokens'
    const row = comparisonRow('first-token', what, 'ms', figures, { most: maxFirstToken }, note)
    report({ ...row, demand: { int8: demandOf((clients * prompt) / (row.ours / 1000), prompt).int8 } })
  } finally {
    await Promise.all([us.stop(), them.stop()])
  }
}
