// More and more streams at once: slots are bounded, the rest waits in the queue.
import { firstTokens, measure, percentile, tokensPerSecond } from '../../serving/job.ts'
import { text, user } from '../../serving/prompts.ts'
import { noEndToken, sampling, startOurs } from '../../serving/servers.ts'
import { engineOf, watchResident } from '../../support/memory.ts'
import type { Sweep } from '../sweep.ts'

const output = 8
/** Few streams take only moments: several turns of them. */
const requestsMin = 32

export const streams: Sweep = {
  name: 'streams',
  what: 'streams at once',
  sizes: [1, 10, 100, 1000],
  large: [3000],
  plots: [
    {
      title: 'Time to the first token',
      measures: [
        { name: 'first token, median', unit: 'ms', bound: { most: 1.15 } },
        { name: 'first token, p95', unit: 'ms', bound: { most: 1.15 } },
      ],
    },
    { title: 'Output of all streams', measures: [{ name: 'output', unit: 'tokens/s', bound: { least: -0.1 } }] },
    {
      title: 'Memory at its peak',
      measures: [
        { name: 'server', unit: 'MB', bound: { most: 0.3 } },
        { name: 'engine', unit: 'MB', bound: { most: 0.3 } },
      ],
    },
  ],
  async open(threads) {
    const us = await startOurs({ TUNERY_MAX_WAITING: '10000', TUNERY_THREADS: String(threads) })
    const bodies = (count: number, seed: number) =>
      Array.from({ length: count }, (_, index) => ({
        ...user(text(8, 9_000_000 + seed * 10_000 + index)),
        ...sampling,
        ...noEndToken,
        max_tokens: output,
      }))
    // Loads the model.
    await measure(us, 1, bodies(1, 0))
    return {
      close: () => us.stop(),
      async at(size) {
        const watched = { server: watchResident(us.pid), engine: watchResident(engineOf(us.pid)) }
        const timing = await measure(us, size, bodies(Math.max(requestsMin, size), size))
        const first = firstTokens(timing)
        return {
          'first token, median': percentile(first, 0.5),
          'first token, p95': percentile(first, 0.95),
          output: tokensPerSecond(timing, output),
          server: watched.server.end(),
          engine: watched.engine.end(),
        }
      },
    }
  },
}
