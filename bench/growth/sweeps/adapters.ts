// More and more registered adapters on one base: lists, names for them, the first token of one that is not in memory,
// and the memory of server and engine after some of them have answered.

import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { seededRandom } from '../../../tests/support/random.ts'
import { firstTokens, measure, median, percentile } from '../../serving/job.ts'
import { text, user } from '../../serving/prompts.ts'
import { startOurs } from '../../serving/servers.ts'
import { copyAdapters, trainedAdapters } from '../../support/adapters.ts'
import { engineOf, residentMb } from '../../support/memory.ts'
import { secondsOf } from '../support.ts'
import type { Sweep } from '../sweep.ts'

/** Adapters that answer, each once. */
const asked = 64

export const adapters: Sweep = {
  name: 'adapters',
  what: 'adapters of one base',
  sizes: [1, 10, 100, 1000],
  large: [],
  plots: [
    {
      title: 'Time',
      measures: [
        { name: 'page of 20', unit: 'ms', bound: { most: 0.3 } },
        { name: 'name for one (POST /deployments)', unit: 'ms', bound: { most: 0.3 } },
        { name: 'first token of any, median', unit: 'ms', bound: { most: 0.3 } },
        { name: 'first token of any, p95', unit: 'ms', bound: { most: 0.3 } },
        { name: 'start of the service', unit: 'ms', bound: { most: 0.3 } },
      ],
    },
    {
      title: 'Memory',
      measures: [
        { name: 'server', unit: 'MB', bound: { most: 0.3 } },
        { name: 'engine', unit: 'MB', bound: { most: 0.3 } },
      ],
    },
  ],
  async open(threads) {
    const prepared = await trainedAdapters(1)
    const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-growth-adapters-'))
    const dataDir = path.join(folder, 'data')
    cpSync(prepared.dataDir, dataDir, { recursive: true })
    let { models } = prepared
    return {
      close: async () => rmSync(folder, { recursive: true, force: true }),
      async at(size) {
        models = copyAdapters({ ...prepared, dataDir, models }, size)
        let us: Awaited<ReturnType<typeof startOurs>> | undefined
        const start = await secondsOf(async () => {
          us = await startOurs({ TUNERY_MERGED_MEMORY_MB: '0', TUNERY_THREADS: String(threads) }, dataDir)
        })
        const { service, pid, stop } = us!
        try {
          const ask = async (model: string, seed: number) =>
            firstTokens(
              await measure({ ...us!, model }, 1, [
                {
                  ...user(text(16, 6_500_000 + seed)),
                  stream: true,
                  stream_options: { include_usage: true },
                  max_tokens: 4,
                },
              ]),
            )[0]!
          // Loads the base.
          await ask(us!.model, 0)
          const next = seededRandom(size)
          const order = [...models].sort(() => next() - 0.5).slice(0, asked)
          const first: number[] = []
          for (const [index, model] of order.entries()) first.push(await ask(model, index + 1))
          const pages: number[] = []
          const names: number[] = []
          for (let turn = 0; turn < 9; turn++) {
            pages.push(1000 * (await secondsOf(() => service.api('GET', '/fine-tuning/models?limit=20'))))
            const name = `growth-${turn}`
            const body = { model: models[turn % models.length], name }
            names.push(1000 * (await secondsOf(() => service.api('POST', '/deployments', body))))
            await service.api('DELETE', `/deployments/${name}`)
          }
          return {
            'page of 20': median(pages),
            'name for one (POST /deployments)': median(names),
            'first token of any, median': median(first),
            'first token of any, p95': percentile(first, 0.95),
            'start of the service': 1000 * start,
            server: residentMb(pid),
            engine: residentMb(engineOf(pid)),
          }
        } finally {
          await stop()
        }
      },
    }
  },
}
