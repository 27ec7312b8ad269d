// Prompts of 2,000 tokens: alone, compared with a loop over the same kernels with nothing around it; and what eight
// streams of short requests feel of them.
import { execFile } from 'node:child_process'
import path from 'node:path'
import { promisify } from 'node:util'
import type { Measurement } from '../../steps/measure.ts'
import { firstTokens, furtherTokens, measure, percentile } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row } from '../rounds.ts'
import { gguf, noEndToken, root, sampling, startOurs, threads } from '../servers.ts'

const promptTokens = 2000
const slowestAlone = 1.05
const slowestStreams = 2
const streams = 8
const seconds = 15

export async function longPrompts(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  let seed = 7_000_000
  const long = () => ({ ...user(text(promptTokens - 30, seed++)), ...sampling, ...noEndToken, max_tokens: 1 })
  const short = () => ({ ...user(text(32, seed++)), ...sampling, ...noEndToken, max_tokens: 96 })
  const many = (make: () => object, count: number) => Array.from({ length: count }, make)
  try {
    // Makes the eight-bit copy too, where there is none yet.
    await measure(us, 1, many(long, 2))
    const alone = await interleave(rounds, { ours: true, theirs: false }, async (isOurs) =>
      isOurs ? percentile(firstTokens(await measure(us, 1, many(long, 3))), 0.5) : await bareLoop(),
    )
    const what = `first token of ${promptTokens} tokens, and a bare loop`
    report(comparisonRow('long-prompts', what, 'ms', alone, { most: slowestAlone }))

    await measure(us, streams, many(short, streams))
    const beside = await interleave(rounds, { ours: true, theirs: false }, async (withLong) => {
      const running = measure(us, streams, many(short, 200), seconds)
      const disturbing = withLong ? measure(us, 1, many(long, 50), seconds) : null
      await disturbing
      return percentile(furtherTokens(await running), 0.95)
    })
    const title = `time per token of ${streams} streams, beside long prompts and alone, p95`
    report(comparisonRow('long-prompts', title, 'ms', beside, { most: slowestStreams }))
  } finally {
    await us.stop()
  }
}

/** Milliseconds of a prompt, with the kernels and weights that the engine uses here. */
async function bareLoop(): Promise<number> {
  const step = `prompt ${promptTokens}`
  const run = async (kernels: Measurement['kernels']) => {
    const what: Measurement = {
      model: gguf.replace(/\.gguf$/, '.eight-bits.gguf'),
      adapter: null,
      kernels,
      threads,
      steps: [step],
    }
    const program = path.join(root, 'bench/steps/measure.ts')
    const { stdout } = await promisify(execFile)(process.execPath, [program, JSON.stringify(what)])
    return (JSON.parse(stdout) as Record<string, number>)[step]!
  }
  return run('own').catch(() => run('library'))
}
