// Longer and longer prompts of one client: time to the first token, time of each token after it, memory of the engine.
import { firstTokens, furtherTokens, measure, median } from '../../serving/job.ts'
import { text, user } from '../../serving/prompts.ts'
import { noEndToken, sampling, startOurs } from '../../serving/servers.ts'
import { engineOf, residentMb } from '../../support/memory.ts'
import type { Sweep } from '../sweep.ts'

const output = 32
/** Tokens of the chat template around a prompt, and some room. */
const around = 48

export const context: Sweep = {
  name: 'context',
  what: 'tokens of prompt and answer',
  sizes: [128, 256, 512, 1024, 2048, 4096, 8192],
  large: [],
  plots: [
    {
      title: 'Time',
      measures: [
        { name: 'first token', unit: 'ms', bound: { most: 1.7 } },
        { name: 'each further token', unit: 'ms', bound: { most: 0.8 } },
      ],
    },
    { title: 'Memory', measures: [{ name: 'engine', unit: 'MB', bound: { most: 1 } }] },
  ],
  async open(threads) {
    const us = await startOurs({ TUNERY_THREADS: String(threads) })
    const ask = (size: number, seed: number) =>
      measure(us, 1, [
        { ...user(text(size - output - around, 8_000_000 + seed)), ...sampling, ...noEndToken, max_tokens: output },
      ])
    // Loads the model.
    await ask(128, 0)
    let seed = 1
    return {
      close: () => us.stop(),
      async at(size) {
        const first: number[] = []
        const further: number[] = []
        for (let turn = 0; turn < 2; turn++) {
          const timing = await ask(size, seed++)
          first.push(firstTokens(timing)[0]!)
          further.push(furtherTokens(timing)[0]!)
        }
        return {
          'first token': median(first),
          'each further token': median(further),
          engine: residentMb(engineOf(us.pid)),
        }
      },
    }
  },
}
